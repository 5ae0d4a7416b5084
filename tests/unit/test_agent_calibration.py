"""The calibrated slowdown: what fill costs is found by comparison, and kept under the budget."""

from __future__ import annotations

import pytest

from tests.unit.filled_training import SECOND, FilledTraining


def test_cost_of_a_fill_at_the_power_cap_is_known_within_seconds() -> None:
    training = FilledTraining(cost_ms=1.7, noise_ms=0.2)
    training.run(14)
    assert training.board.known
    assert training.found_cost == pytest.approx(training.true_cost, rel=0.35)


@pytest.mark.parametrize("noise_ms", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_cost_is_found_under_noise(noise_ms: float, seed: int) -> None:
    training = FilledTraining(cost_ms=1.7, noise_ms=noise_ms, seed=seed)
    training.run(300)
    assert training.board.known
    assert training.true_cost > 0.014
    assert training.found_cost == pytest.approx(training.true_cost, rel=0.25)


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_fill_that_costs_nothing_is_not_charged(seed: int) -> None:
    training = FilledTraining(cost_ms=0.0, noise_ms=0.3, seed=seed)
    training.run(300)
    assert training.board.known
    assert training.found_cost < 0.0015


@pytest.mark.parametrize("period_s", [0.7, 1.9, 3.3, 7.1])
@pytest.mark.parametrize("seed", range(1, 6))
def test_two_processes_that_beat_on_a_gpu_are_not_taken_for_slowed(
    period_s: float, seed: int
) -> None:
    """For two fifths of each beat the other process's work makes this one's longer by a third."""
    beat_ns = period_s * (1 + seed / 37) * SECOND
    training = FilledTraining(
        busy_ms=20,
        bubble_ms=40,
        noise_ms=0.3,
        slowdown=0.01,
        seed=seed,
        rhythm=lambda at: 1 + 0.3 * (at / beat_ns % 1 < 0.4),
    )
    training.run(90)
    assert training.found_cost == 0
    assert "".join(training.texts) == ""


def test_drift_is_no_cost() -> None:
    """Stretches grow by half in five minutes, filled or not."""
    training = FilledTraining(cost_ms=0, noise_ms=0.2, rhythm=lambda at: 1 + at / (600 * SECOND))
    training.run(300)
    assert training.found_cost < 0.001


def test_drift_hides_no_cost() -> None:
    training = FilledTraining(cost_ms=1.7, noise_ms=0.2, rhythm=lambda at: 1 - at / (900 * SECOND))
    training.run(300)
    assert training.found_cost == pytest.approx(training.true_cost, rel=0.25)


def test_a_changed_rhythm_is_compared_with_itself_only() -> None:
    """From the middle on iterations are twice as long, with more launches."""
    training = FilledTraining(
        cost_ms=1.7,
        noise_ms=0.2,
        rhythm=lambda at: 1 + (at > 150 * SECOND),
        launches=lambda at: 300 if at > 150 * SECOND else 200,
    )
    training.run(300)
    assert training.found_cost == pytest.approx(training.true_cost, rel=0.25)


def test_every_tenth_iteration_may_be_of_another_kind() -> None:
    count = iter(range(1_000_000))
    kinds: dict[int, bool] = {}

    def special(at: int) -> bool:
        return kinds.setdefault(at, next(count) % 10 == 0)

    training = FilledTraining(
        cost_ms=1.7,
        noise_ms=0.2,
        rhythm=lambda at: 3.0 if special(at) else 1.0,
        launches=lambda at: 900 if special(at) else 200,
    )
    training.run(300)
    assert training.found_cost == pytest.approx(training.true_cost, rel=0.3)


def test_launches_that_jitter_by_less_than_a_hundredth_are_alike() -> None:
    training = FilledTraining(cost_ms=1.7, noise_ms=0.2, launches=lambda at: 1000 + at % 9)
    training.run(120)
    assert training.board.known
    assert training.found_cost == pytest.approx(training.true_cost, rel=0.3)


def test_without_hold_outs_nothing_is_claimed() -> None:
    training = FilledTraining(cost_ms=1.7, given={"calibration_fraction": 0.0})
    training.run(120)
    assert not training.board.known
    assert training.found_cost == 0
    assert training.held_ticks == 0


def test_wild_stretches_are_not_known_yet() -> None:
    training = FilledTraining(cost_ms=0.1, noise_ms=15)
    training.run(20)
    assert not training.board.known


@pytest.mark.parametrize("fraction", [0.02, 0.05, 0.2])
def test_hold_outs_take_the_part_of_the_time_that_is_set(fraction: float) -> None:
    training = FilledTraining(given={"calibration_fraction": fraction})
    training.run(2000)
    assert training.held_ticks / training.ticks == pytest.approx(fraction, rel=0.15)


def test_hold_outs_come_more_often_when_a_fill_begins() -> None:
    training = FilledTraining()
    training.run(13)
    assert training.held_ticks / training.ticks > 0.1


def test_hold_outs_last_for_several_long_iterations() -> None:
    training = FilledTraining(busy_ms=2000, bubble_ms=1000, cost_ms=60, noise_ms=10)
    training.run(3600)
    assert training.held_ticks / training.ticks < 0.075  # more in the first minutes
    assert training.board.known
    assert training.found_cost == pytest.approx(training.true_cost, rel=0.35)


def test_all_nodes_of_a_job_hold_out_at_the_same_time() -> None:
    one, other = FilledTraining(seed=1), FilledTraining(seed=2)
    other.run(100)  # its fill began long before
    one.run(40)
    for ms in range(200_000, 260_000, 50):
        at = (ms * 1000, ms * 1_000_000, 1, 1e8)
        assert one.hold_outs.held(*at) == other.hold_outs.held(*at)


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_fill_that_costs_more_than_the_budget_goes_on_for_part_of_the_time(seed: int) -> None:
    """1.6 % while it fills, 1 % allowed: about 60 % of the time."""
    training = FilledTraining(cost_ms=1.68, noise_ms=0.2, slowdown=0.01, seed=seed)
    training.run(1800)
    assert training.true_cost <= 0.01
    assert 0.5 < training.filled / training.iterations < 0.65
    stops = [text for text in training.texts if "stops" in text]
    assert stops and all("measured slowdown" in text for text in stops)
    assert len(stops) < 1800 / 20
    # Shrinking what is in flight would not help.
    assert training.budget.in_flight_us == 200


def test_under_the_budget_filling_never_stops() -> None:
    training = FilledTraining(cost_ms=0.5, noise_ms=0.2, slowdown=0.01)
    training.run(600)
    assert not any(training.texts)


def test_another_fill_soon_counts_for_itself() -> None:
    training = FilledTraining(cost_ms=1.7, noise_ms=0.2)
    training.run(200)
    before = training.board.total_ns
    training.cost_ms = 0.0
    training.board.other_fills()
    training.run(200)
    assert training.board.total_ns - before < 0.002 * 200 * SECOND


def test_lost_records_break_no_stretch_together() -> None:
    training = FilledTraining(cost_ms=0.0)
    training.run(5)
    board = training.board.stretches
    waiting = len(board._waiting)
    end = training.now
    board.take([(end + SECOND, end + 2 * SECOND, 10**6)], lost=True)
    assert len(board._waiting) == waiting
