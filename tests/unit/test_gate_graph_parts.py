"""Long CUDA graphs of a fill are launched in parts: they fit bubbles.

On a simulated GPU; its log says what ran.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.stolen_time import stolen_time
from tests.unit.gated_machine import FILL, Machine, gated_machine
from tests.unit.graph_lab import beside_training, launches, run
from tests.unit.lending_agent import TUNING


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return gated_machine(tmp_path)


@pytest.mark.parametrize("part_us", [0, 150])
def test_a_graph_in_parts_fills_bubbles_and_its_time_is_told(
    machine: Machine, part_us: int
) -> None:
    with (
        beside_training(machine, 8, "--compute-us", "30000", "--stall-ms", "40") as agent,
        stolen_time() as stolen,
    ):
        agent.policy.write_tuning(replace(TUNING, graph_part_us=part_us))
        more = ("--graph", "--kernels-per-batch", "40", "--kernel-us", "50")
        fill = machine.infer(4, *more)
        assert fill.wait(30) == 0
    released = sum(use.kernels for use in agent.collect())
    work = machine.fill_work(FILL)
    graphs = len([op for op in work if op.in_graph]) / 40
    truly = sum(op.end_ns - op.start_ns for op in work)
    if part_us == 0:
        assert released <= 1.1 * graphs
    else:
        assert released >= 8 * graphs
        assert machine.truth(FILL).filled_share >= 0.8 * stolen.given
    assert agent.gpu_time_ns() == pytest.approx(truly, rel=0.02)


def test_a_graph_longer_than_every_bubble_runs_all_the_same(machine: Machine) -> None:
    with (
        beside_training(machine, 8, "--compute-us", "20000", "--stall-ms", "5"),
        stolen_time() as stolen,
    ):
        more = ("--graph", "--kernels-per-batch", "200", "--kernel-us", "50", "--in-flight", "1")
        fill = machine.infer(4, *more)
        assert fill.wait(30) == 0
    assert machine.truth(FILL).filled_share >= 0.3 * stolen.given


def test_short_graphs_stay_whole(machine: Machine) -> None:
    work = run(
        machine,
        "g = gpu.instantiate(graph('g', kernels=10, us=15))\n"
        "for _ in range(50): run(g)\n"
        "gpu.synchronize(s)\n",
    )
    assert launches(work, "g") == 50
