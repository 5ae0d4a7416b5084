"""Hold-outs and the calibrated slowdown with real interposers on the simulated GPU."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.board import Closed
from agent.jobs import HostJob
from tests.unit.agent_peers import (
    FakeGpus,
    RunningAgent,
    fill_begins,
    host_begins,
    running,
    settings_for,
    until,
    uuid_of,
)
from tests.unit.sharing_lab import CUDA_PROGRAM, SharingLab
from tests.unit.shim_lab import interposer, simulated_gpu

pytestmark = pytest.mark.timeout(180)
AT_MOST_S = 90
"""For an estimate: it comes after some 10 s, later where iterations scatter."""


@contextlib.contextmanager
def filled(folder: Path, **given: Any) -> Iterator[tuple[RunningAgent, HostJob]]:
    """A training with bubbles of 25 ms after 5 ms of work, and a fill that would never stop."""
    if shutil.which("make") is None or shutil.which("gcc") is None:
        pytest.skip("needs make and gcc")
    interposer()
    simulated_gpu()
    settings = settings_for(
        folder,
        drain_interval_s=0.1,
        guard=False,
        calibration_fraction=0.25,
        calibration_hold_s=0.4,
        **given,
    )
    gpus = FakeGpus()
    gpus.slow[uuid_of(0)] = ("its power cap",)
    with running(settings, gpus) as agent:
        lab = SharingLab(folder, agent, program=CUDA_PROGRAM)
        try:
            host_begins(agent, 1, spec="on,slowdown=1%")
            lab.start(1, "monitor", "train", 3 * AT_MOST_S // 2, 500, 10, 25_000)
            [gpu] = agent.agent.node.gpus.values()
            until(lambda: gpu.ready_ns, 20)
            assert fill_begins(agent, 2, "mem=2G").verb == "ok"
            lab.start(2, "gate", "infer", 3 * AT_MOST_S // 2, 100, 5, 0)
            yield agent, agent.agent.node.jobs.hosts[1]
        finally:
            lab.stop()


def test_fills_are_held_out_and_a_gate_that_keeps_its_rules_costs_next_to_nothing(
    tmp_path: Path,
) -> None:
    with filled(tmp_path, budget_control=False) as (agent, host):
        entry = next(iter(agent.agent.node.gpus.values())).policy.memory.view.fills[0]
        seen: list[int] = []
        end = time.monotonic() + AT_MOST_S
        while host.calibrated_slowdown is None:
            assert time.monotonic() < end, "no estimate came"
            seen.append(int(entry.reason) if not entry.allowed else 0)
            time.sleep(0.02)
        assert 0.05 < seen.count(Closed.CALIBRATION) / len(seen) < 0.75
        assert seen.count(0) > 0
        assert host.calibrated_slowdown < 0.02
        assert host.record().calibrated_slowdown == host.calibrated_slowdown


def test_a_gate_that_ignores_training_is_found_out(tmp_path: Path) -> None:
    loosened = {"ignore_training": True, "budget_control": False, "in_flight_us": 2000}
    with filled(tmp_path, **loosened) as (agent, host):
        until(lambda: (host.calibrated_slowdown or 0) > 0.02, AT_MOST_S)
        until(lambda: agent.events("slowdown"))
        assert "power cap" in agent.events("slowdown")[0]["text"]
        assert len(agent.events("slowdown")) == 1
