"""A fill's memory pools count by what the driver keeps reserved for them, and its graphs by what
their nodes allocate. A pool grows by 32 MiB."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent_peers import (
    RunningAgent,
    until,
)
from tests.unit.sharing_lab import (
    CONTEXT_MB,
    OUT_OF_MEMORY,
    SharingLab,
    agent_of_fills,
    lab_of,
    lend,
    result,
)
from tests.unit.shim_lab import compiled, simulated_gpu

DRIVERS_CONTEXT_MB = 256  # what the simulated driver takes for one
PAGE_MB = 1  # what the program works on, rounded


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RunningAgent]:
    with agent_of_fills(tmp_path) as started:
        yield started


@pytest.fixture
def lab(tmp_path: Path, agent: RunningAgent) -> Iterator[SharingLab]:
    with lab_of(agent, tmp_path / "lab") as started:
        yield started


def fill(agent: RunningAgent, lab: SharingLab, limit_mb: int, *steps: str) -> list[Any]:
    """What the steps of a fill with this limit gave; of `info`, how much the pools hold."""
    lend(agent, lab, f"mem={limit_mb}M")
    found: list[Any] = result(lab.start(2, "gate", 0.2, *steps))["results"]
    base = CONTEXT_MB + PAGE_MB
    return [limit_mb - base - each[0] if isinstance(each, list) else each for each in found]


def test_a_pool_counts_what_it_keeps_until_it_is_trimmed(
    agent: RunningAgent, lab: SharingLab
) -> None:
    steps = ["pool:100", "info", "free", "sync", "info", "pool:120", "info", "free", "sync", "trim"]
    found = fill(agent, lab, 4096, *steps, "info")
    assert found == [0, 128, 0, 0, 128, 0, 128, 0, 0, 0, 0]


def test_a_pool_without_a_threshold_gives_back_when_the_process_waits(
    agent: RunningAgent, lab: SharingLab
) -> None:
    found = fill(agent, lab, 4096, "async:100", "info", "free", "sync", "info")
    assert found == [0, 128, 0, 0, 0]


def test_a_destroyed_pool_counts_until_its_last_allocation_is_freed(
    agent: RunningAgent, lab: SharingLab
) -> None:
    steps = ["pool:64", "pool:36", "destroy", "info", "free", "info", "free", "info"]
    assert fill(agent, lab, 4096, *steps) == [0, 0, 0, 128, 0, 128, 0, 0]


def test_what_a_pool_keeps_in_reserve_makes_room_for_other_allocations(
    agent: RunningAgent, lab: SharingLab
) -> None:
    found = fill(agent, lab, 2048, "pool:1000", "free", "sync", "alloc:1000", "info")
    assert found == [0, 0, 0, 0, 1000]


def test_a_pool_that_grows_by_more_than_was_asked_for_keeps_to_the_limit(
    agent: RunningAgent, lab: SharingLab
) -> None:
    # 505 MiB would fit beside context and page; the 512 that the pool takes for them do not.
    found = fill(agent, lab, 1024, "pool:505", "info", "pool:400", "info")
    assert found == [OUT_OF_MEMORY, 0, 0, 416]


def test_what_a_graph_allocates_counts_while_it_is_instantiated(
    agent: RunningAgent, lab: SharingLab
) -> None:
    found = fill(agent, lab, 2048, "graph:1000", "info", "graph:1000", "free", "info", "graph:1100")
    assert found == [0, 1000, OUT_OF_MEMORY, 0, 0, 0]


def test_the_account_is_what_the_driver_has_taken(agent: RunningAgent, lab: SharingLab) -> None:
    lend(agent, lab, "mem=4096M")
    linked = compiled("linked_nvml", f"-L{simulated_gpu()}", "-l:libnvidia-ml.so.1", "-ldl")

    def driver_mb() -> int:
        """All that is in use on the GPU, as a process outside of the fill sees it."""
        out, _ = lab.start(1, "monitor", program=linked).communicate(timeout=20)
        return int(json.loads(out)[0][2])

    before = driver_mb()
    process = lab.start(
        2, "gate", 0.2, "pool:100", "async:40", "graph:9", "alloc:7", "free", "wait"
    )
    until(lambda: held_mb(agent) == CONTEXT_MB + 128 + 64 + 9, 20)
    assert driver_mb() - before == held_mb(agent) - CONTEXT_MB + DRIVERS_CONTEXT_MB
    process.send_signal(signal.SIGUSR1)
    assert result(process)["results"] == [0] * 6


def fills(agent: RunningAgent) -> list[Any]:
    return list(agent.agent.node.fills.values())


def held_mb(agent: RunningAgent) -> int:
    return sum(int(fill.memory.view.gpus[0].memory_bytes) for fill in fills(agent)) >> 20
