"""The agent with real interposers on the simulated driver: training, and fill in its bubbles."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.agent_peers import (
    RunningAgent,
    fill_begins,
    host_begins,
    running,
    settings_for,
    until,
)
from tests.unit.sharing_lab import CUDA_PROGRAM, SharingLab, result
from tests.unit.shim_lab import interposer, simulated_gpu


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RunningAgent]:
    if shutil.which("make") is None or shutil.which("gcc") is None:
        pytest.skip("needs make and gcc")
    interposer()
    simulated_gpu()
    settings = settings_for(
        tmp_path, window_s=1, drain_interval_s=0.1, guard=False, evict_grace_s=1, evict_kill_s=0.5
    )
    with running(settings) as started:
        yield started


@pytest.fixture
def lab(tmp_path: Path, agent: RunningAgent) -> Iterator[SharingLab]:
    started = SharingLab(tmp_path, agent, program=CUDA_PROGRAM)
    yield started
    started.stop()


def test_fill_runs_in_the_bubbles_and_every_use_is_in_the_ledger(
    agent: RunningAgent, lab: SharingLab
) -> None:
    host_begins(agent, 1, spec="on,slowdown=20%")
    training = lab.start(1, "monitor", "train", 6, 500, 10, 25_000)
    node = agent.agent.node
    [gpu] = node.gpus.values()
    until(lambda: gpu.ready_ns, 20)
    assert fill_begins(agent, 2, "mem=2G").verb == "ok"
    fill = lab.start(2, "gate", "infer", 3, 100, 5, 0)
    assert result(fill)["iterations"] > 20
    until(lambda: len(agent.records("bubble_use")) > 20)
    trained = result(training)
    uses = agent.records("bubble_use")
    assert {(use["host_job_id"], use["fill_job_id"], use["host_step"]) for use in uses} == {
        (1, 2, "0")
    }
    gpu_time_s = sum(use["gpu_time_us"] for use in uses) / 1e6
    assert gpu_time_s > 0.1
    assert all(use["bubble_us"] > 0 for use in uses)
    assert trained["iterations"] > 50
    host = node.jobs.hosts[1]
    assert host.filled_us == pytest.approx(gpu_time_s * 1e6, rel=0.01)
    until(lambda: not node.trainings and not node.fills)
    windows = [each for each in agent.records("window") if each["fill_job_id"] is None]
    assert sum(each["bubble_us"] for each in windows) / 1e6 > 1.5


def test_off_holds_every_launch_and_on_lets_them_go(agent: RunningAgent, lab: SharingLab) -> None:
    host_begins(agent, 1, spec="on,slowdown=20%")
    lab.start(1, "monitor", "train", 20, 500, 4, 25_000)
    node = agent.agent.node
    [gpu] = node.gpus.values()
    until(lambda: gpu.ready_ns, 20)
    assert fill_begins(agent, 2, "mem=2G").verb == "ok"
    lab.start(2, "gate", "infer", 20, 100, 5, 0)

    def released() -> int:
        return sum(int(each.memory.view.gpus[0].released) for each in node.fills.values())

    until(lambda: released() > 20, 20)
    agent.slurm("off")
    time.sleep(0.2)
    held = released()
    time.sleep(0.7)
    assert released() == held
    agent.slurm("on")
    until(lambda: released() > held, 3)


def test_filling_goes_on_after_the_agent_is_started_again(
    tmp_path: Path, agent: RunningAgent, lab: SharingLab
) -> None:
    host_begins(agent, 1, spec="on,slowdown=20%")
    training = lab.start(1, "monitor", "train", 40, 500, 4, 25_000)
    [gpu] = agent.agent.node.gpus.values()
    until(lambda: gpu.ready_ns, 20)
    assert fill_begins(agent, 2, "mem=2G").verb == "ok"
    fill = lab.start(2, "gate", "infer", 30, 100, 5, 0)
    until(lambda: len(agent.records("bubble_use")) > 20, 20)
    agent.stop()
    time.sleep(1)
    with running(agent.settings) as again:
        before = len(again.records("bubble_use"))
        until(lambda: again.agent.node.trainings and again.agent.node.fills, 3)
        until(lambda: len(again.records("bubble_use")) > before + 20, 20)
        assert fill.poll() is None and training.poll() is None


def test_end_of_the_host_job_clears_the_gpu(agent: RunningAgent, lab: SharingLab) -> None:
    host_begins(agent, 1, spec="on,slowdown=20%")
    lab.start(1, "monitor", "train", 20, 500, 4, 25_000)
    node = agent.agent.node
    [gpu] = node.gpus.values()
    until(lambda: gpu.ready_ns, 20)
    assert fill_begins(agent, 2, "mem=2G").verb == "ok"
    fill = lab.start(2, "gate", "infer", 20, 100, 5, 0)
    until(lambda: len(agent.records("bubble_use")) > 5, 20)
    began = time.monotonic()
    assert agent.slurm("job_end", job_id=1).verb == "ok"
    assert time.monotonic() - began < 4
    assert fill.wait(1) != 0
    assert node.requeue == {2}
    assert not node.fills
