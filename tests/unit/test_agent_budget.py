"""Intrusion is kept under the host job's budget."""

from __future__ import annotations

from agent.budget import Budget
from agent.settings import AgentSettings

SECOND = 1_000_000_000


def settings() -> AgentSettings:
    return AgentSettings(node="n1", twin="f1")


def run(budget: Budget, begin_s: int, end_s: int, fraction: float) -> list[str]:
    """So much intrusion a second, controlled as often."""
    told = []
    for second in range(begin_s, end_s):
        now = second * SECOND
        if not budget.stopped:
            budget.charge(now, round(fraction * SECOND))
        told.append(budget.control(now))
    return [text for text in told if text]


def test_below_half_the_budget_nothing_changes() -> None:
    budget = Budget(0.01, settings(), 0)
    assert run(budget, 1, 120, 0.002) == []
    assert budget.in_flight_us == 200
    assert budget.min_bubble_us == 100


def test_above_half_in_flight_shrinks_then_bubbles_must_be_longer() -> None:
    budget = Budget(0.01, settings(), 0)
    budget.typical_bubble_us = 1000
    run(budget, 1, 8, 0.008)
    assert budget.in_flight_us < 200
    run(budget, 8, 30, 0.008)
    assert budget.in_flight_us == settings().in_flight_min_us
    assert budget.min_bubble_us == 500
    assert not budget.stopped


def test_bubbles_of_the_usual_length_are_never_given_up() -> None:
    budget = Budget(0.01, settings(), 0)
    budget.typical_bubble_us = 150
    run(budget, 1, 40, 0.009)
    assert budget.min_bubble_us == 100


def test_what_an_agent_before_has_counted_counts() -> None:
    budget = Budget(0.01, settings(), 0, spent_ns=2 * SECOND)
    assert run(budget, 100, 101, 0.0)
    assert budget.stopped


def test_filling_that_costs_a_little_too_much_goes_on_most_of_the_time() -> None:
    budget = Budget(0.01, settings(), 0)
    filled = 0
    for second in range(1, 1200):
        if not budget.stopped:
            filled += 1
            budget.charge(second * SECOND, round(0.013 * SECOND))
        budget.control(second * SECOND)
    assert filled / 1200 > 0.6
    assert budget.total_fraction(1200 * SECOND) <= 0.0105


def test_when_it_is_calm_again_both_come_back() -> None:
    budget = Budget(0.01, settings(), 0)
    run(budget, 1, 15, 0.008)
    run(budget, 15, 400, 0.0)
    assert (budget.in_flight_us, budget.min_bubble_us) == (200, 100)


def test_over_budget_filling_stops_and_goes_on_once_paid_off() -> None:
    budget = Budget(0.01, settings(), 0)
    told = run(budget, 1, 20, 0.03)
    assert budget.stopped
    assert "over the budget of 1.00%" in told[0]
    told = run(budget, 20, 300, 0.0)
    assert not budget.stopped
    assert "goes on" in told[-1]


def test_in_all_intrusion_never_exceeds_the_budget_by_much() -> None:
    budget = Budget(0.01, settings(), 0)
    run(budget, 1, 3600, 0.2)
    assert budget.total_fraction(3600 * SECOND) <= 0.0125


def test_budget_of_zero_stops_at_the_first_intrusion() -> None:
    budget = Budget(0.0, settings(), 0)
    assert run(budget, 1, 30, 0.0) == []
    assert run(budget, 30, 31, 0.001)
    assert budget.stopped


def test_bench_may_switch_control_off() -> None:
    free = settings().model_copy(update={"budget_control": False})
    budget = Budget(0.01, free, 0)
    assert run(budget, 1, 60, 0.5) == []
    assert budget.window_fraction(60 * SECOND) > 0.4
