"""The measurement of a launch's cost: its arithmetic, and a dry run on the simulated GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.hardware.bed import Bed
from tests.hardware.cost import BURST, CONDITIONS, ROLES, goals_met, helper_share, measured, summary
from tests.unit.shim_lab import interposer, simulated_gpu


def a_run(number: int, mean_ns: float, helper_ns: int = 0) -> dict[str, Any]:
    threads = [
        {"name": "cost", "launches": True, "cpu_ns": 900},
        {"name": "specinf-mon", "launches": False, "cpu_ns": helper_ns},
    ]
    figures = dict.fromkeys(("mean_ns", "median_ns", "p99_ns", "with_wait_ns"), mean_ns)
    return {"round": number, "wall_ns": 1000, "threads": threads, **figures}


def test_a_run_is_compared_with_the_one_alone_of_its_own_round() -> None:
    runs = {
        "alone": [a_run(0, 1000), a_run(1, 5000), a_run(3, 2000)],
        "monitor": [a_run(1, 5040, 20), a_run(2, 9000, 20), a_run(3, 2080, 20)],
    }
    row = summary(runs)["monitor"]
    assert row["more_mean_ns"] == {"median": 60, "least": 40, "most": 80}
    assert row["helper_cpu_percent"] == 2
    result: dict[str, Any] = {s: {"summary": summary(runs)} for s in ("all_cpus", "one_cpu")}
    met = goals_met(result)
    assert met["monitor, all_cpus"]
    assert not met["gate, all_cpus"]  # never measured


@pytest.fixture
def bed() -> Iterator[Bed]:
    interposer()
    simulated_gpu()
    with Bed(simulated=True) as bed:
        yield bed


@pytest.mark.parametrize("condition", CONDITIONS[:4], ids=lambda condition: condition.name)
def test_each_condition_is_what_its_name_says(bed: Bed, condition: Any) -> None:
    run = measured(bed, condition, 0, 0.1)
    assert run["role"] == ROLES.get(condition.role, 0)
    assert run["launches"] >= BURST
    assert run["mean_ns"] > 0
    assert sum(thread["launches"] for thread in run["threads"]) == 1
    assert (helper_share(run) > 0) == (condition.role is not None)
    if condition.role == "gate":
        assert run["released"] >= run["launches"]
