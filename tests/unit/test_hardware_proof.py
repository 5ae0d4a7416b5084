"""The proof that nothing of a fill runs while its gate is shut must not succeed by mistake."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hardware import proof
from tests.hardware.bed import Bed, compiled
from tests.hardware.proof import MORE_WAYS, Wave, driver_paths, verdict
from tests.unit.shim_lab import hooks, interposer, simulated_gpu

NOT_TRIED = Path(proof.__file__).with_name("paths_not_tried.txt")
SHUT_S = 0.5
PATHS = ("cuLaunchKernel", "cuMemcpyHtoD_v2", "cuMemsetD32Async_ptsz", "driver-alone")
"""A kernel, a copy that is watched, one whose destination is seen, and a path from Python."""


@pytest.fixture
def bed() -> Iterator[Bed]:
    interposer()
    simulated_gpu()
    with Bed(simulated=True) as bed:
        yield bed


def found(bed: Bed, environment: dict[str, str] | None) -> dict[str, str]:
    """Verdicts on PATHS under the gate, or in an environment without one."""
    traces = dict(driver_paths())
    python = [sys.executable, "-m", "tests.hardware.proof_frameworks"]
    with bed.agent(ignore_training=True) as agent:
        wave = Wave(bed, agent, environment or bed.environment("gate"))
        try:
            for name in PATHS:
                program = [str(compiled("paths", "paths_calls"))] if name in traces else python
                wave.start(name, traces.get(name, "framework"), [*program, name])
            wave.prove(SHUT_S, time.monotonic() + 15)
        finally:
            wave.stop()
    return {path.name: path.status for path in wave.paths}


def test_paths_are_proven_under_the_gate(bed: Bed) -> None:
    assert found(bed, None) == dict.fromkeys(PATHS, "proven")


def test_paths_that_no_gate_holds_leak(bed: Bed) -> None:
    assert found(bed, bed.environment()) == dict.fromkeys(PATHS, "leaks")


def test_a_path_that_never_moves_is_not_proven(bed: Bed) -> None:
    with bed.agent(ignore_training=True) as agent:
        wave = Wave(bed, agent, bed.environment("gate"))
        wave.start("sleeper", "kernel", [sys.executable, "-c", "import time; time.sleep(60)"])
        wave.start("broken", "kernel", [sys.executable, "-c", "raise SystemExit('no GPU')"])
        try:
            wave.prove(0.2, time.monotonic() + 0.5)
        finally:
            wave.stop()
    assert [path.status for path in wave.paths] == ["not proven", "not proven"]
    assert wave.paths[1].facts["why"] == "no GPU"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "proven"),
        ({"changes_while_shut": 1}, "leaks"),
        ({"returns_while_shut": 1}, "leaks"),
        ({"moved_before": False}, "not proven"),
        ({"moved_after": False}, "not proven"),
        ({"stood_in_call": False}, "not proven"),
        ({"where": 2, "stood_in_call": False}, "leaks"),
    ],
)
def test_a_verdict_needs_all_of_it(more: dict[str, object], expected: str) -> None:
    whole = {"moved_before": True, "moved_after": True, "stood_in_call": True}
    assert verdict(whole | more) == expected


def test_every_hook_that_starts_work_is_tried_or_has_a_reason() -> None:
    tried = {name.split("/")[0] for name, _ in driver_paths()}
    reasons: set[str] = set()
    for line in NOT_TRIED.read_text().splitlines():
        names, _, reason = line.partition(": ")
        if line and not line.startswith("#"):
            assert reason
            reasons |= set(names.split())
    by_symbol = {
        hook.symbol
        for hook in hooks()
        if (hook.operation and not hook.setup)
        or hook.symbol.startswith(("cuLaunch", "cuGraphLaunch"))
    }
    plain = {symbol.removesuffix("_ptsz").removesuffix("_ptds") for symbol in by_symbol - tried}
    assert plain == reasons
    assert tried <= by_symbol
    assert {name.split("/")[0] for name in MORE_WAYS} <= tried
