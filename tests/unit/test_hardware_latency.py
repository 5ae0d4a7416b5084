"""The measurement of the gate's latency: its arithmetic, and a dry run on the simulated GPU."""

from __future__ import annotations

from tests.hardware.bed import Bed
from tests.hardware.latency import measured, met, site_tuning, start_fill
from tests.hardware.latency_figures import (
    Block,
    Clock,
    ClockPair,
    Iteration,
    Kernel,
    bubbles_of,
    figures,
)
from tests.stolen_time import stolen_time
from tests.unit.shim_lab import interposer, simulated_gpu


def test_a_clock_that_drifts_is_right_at_both_ends_and_between() -> None:
    clock = Clock(ClockPair(10_000_000, 1_000_000, 3), ClockPair(20_001_000, 11_000_000, 3))
    assert clock.host_ns(10_000_000) == 1_000_000
    assert clock.host_ns(20_001_000) == 11_000_000
    assert clock.host_ns(15_000_500) == 6_000_000


ITERATIONS = [
    Iteration(0, 10, 1000),
    Iteration(5000, 5100, 6000),  # fill from 1200, until after the launch
    Iteration(9000, 9020, 10_000),  # fill has ended by the launch
    Iteration(13_000, 13_050, 14_000),  # shut out
    Iteration(17_000, 17_010, 18_000),  # between two blocks
]
KERNELS = [Kernel(900, 990), Kernel(1200, 2000), Kernel(4900, 5080), Kernel(6400, 8000)]
BLOCKS = [Block(0, 10_010, True), Block(9_990, 15_000, False), Block(15_000, 20_000, True)]


def test_each_bubble_has_its_own_times() -> None:
    first, second, third = bubbles_of(ITERATIONS, KERNELS, BLOCKS)
    assert (first.opening_ns, first.closing_ns, first.start_ns) == (200, 80, 100)
    assert first.fill_ns == 800 + 180
    assert (second.opening_ns, second.closing_ns, second.start_ns) == (400, 0, 20)
    assert (third.opening_ns, third.closing_ns, third.start_ns) == (None, None, 50)
    assert [first.filled, second.filled, third.filled] == [True, True, False]


def test_figures_keep_filled_and_shut_apart() -> None:
    row = figures(bubbles_of(ITERATIONS, KERNELS, BLOCKS))
    assert row["used_share"] == 1
    assert row["start_filled"]["count"] == 2
    assert row["start_shut"] == {"count": 1, "p50_us": 0.1, "p99_us": 0.1, "most_us": 0.1}
    assert row["used_while_shut"] == 0
    assert met("sync", row) == {"opening": True, "closing": True}
    row["closing"]["p99_us"] = 501
    assert met("sync", row)["closing"] is False
    assert met("wait", figures([])) == {"opening": None, "closing": None}


def test_bubbles_of_a_simulated_training_are_found_and_used() -> None:
    interposer()
    simulated_gpu()
    with (
        Bed(simulated=True) as bed,
        bed.agent(tuning=site_tuning()) as agent,
        stolen_time() as stolen,
    ):
        fill = start_fill(bed, agent, 60)
        try:
            row = measured(bed, agent, fill, "sync", 2.6)
        finally:
            fill.stop()
    assert row["bubbles"] >= 20
    assert 3500 <= row["length"]["p50_us"] <= 6000
    assert row["used_share"] > 0.5 * stolen.given
    assert row["filled_share"] > 0.2 * stolen.given
    assert row["start_shut"]["count"] > 0
    assert row["causes_on_board"].get("tail", 0) > 0
