"""The bench's arithmetic: a wrong slowdown figure would be worse than none."""

from __future__ import annotations

import random

import pytest

from tests.bench.statistics import quantile, slowdown


def test_quantile_interpolates_between_neighbours() -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == pytest.approx(2.5)
    assert quantile([10.0, 20.0], 0.95) == pytest.approx(19.5)


def test_quantile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing"):
        quantile([], 0.5)


def test_a_true_slowdown_of_two_percent_lies_within_the_interval() -> None:
    source = random.Random(3)
    shut = [[100 + source.gauss(0, 0.5) for _ in range(20)] for _ in range(20)]
    filled = [[102 + source.gauss(0, 0.5) for _ in range(20)] for _ in range(20)]
    cost = slowdown(filled, shut)
    assert cost.lower95 < 0.02 < cost.upper95
    assert cost.upper95 - cost.lower95 < 0.003
    assert cost.p95 == pytest.approx(0.02, abs=0.004)


def test_drift_over_rounds_does_not_become_slowdown() -> None:
    shut = [[100.0 + r] * 20 for r in range(20)]
    filled = [[100.0 + r] * 20 for r in range(20)]
    cost = slowdown(filled, shut)
    assert cost.median == 0.0
    assert cost.lower95 == 0.0 == cost.upper95


def test_unequal_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="as many"):
        slowdown([[1.0]], [[1.0], [1.0]])
