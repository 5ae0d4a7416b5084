"""Which unit tests need the machine to themselves: those that measure, or play a GPU in real time.

run.sh runs all others first, on two processors at once. And the plain agent, for any that want no
settings of their own, and a list of the shims that join it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.agent_peers import FakeShim, RunningAgent, running, settings_for

ALONE = (
    "test_agent_calibration_end_to_end",
    "test_agent_end_to_end",
    "test_agent_mps",
    "test_agent_process",
    "test_bench_peers",
    "test_endless_kernels",
    "test_gate_",
    "test_hardware_latency",
    "test_monitor_truth",
    "test_rescue",
    "test_simgpu_",
)
NOT_ALONE = ("test_simgpu_soak",)  # it looks at order, not at time


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.path.name
        if item.path.parent != Path(__file__).parent or name.startswith(NOT_ALONE):
            continue
        if name.startswith(ALONE):
            item.add_marker(pytest.mark.alone)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RunningAgent]:
    with running(settings_for(tmp_path)) as started:
        yield started


@pytest.fixture
def shims() -> Iterator[list[FakeShim]]:
    """Whoever joins the agent, closed at the end."""
    made: list[FakeShim] = []
    yield made
    for shim in made:
        shim.close()
