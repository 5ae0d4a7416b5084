"""Slowdown from alternating blocks: medians, a bootstrap bound, tails.

Definition (DESIGN.md): in one training process, blocks of 20 iterations with fill allowed alternate
with blocks with fill shut out, and a second kind of shut blocks serves as control (A/A). Slowdown
is the ratio of medians minus 1; the bound is the upper end of a two-sided 95 % bootstrap interval
that resamples whole rounds, so that drift within a block is not taken for precision.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 4000


@dataclass(frozen=True)
class Slowdown:
    """Ratios minus 1, as fractions."""

    median: float
    lower95: float
    upper95: float
    p95: float
    rounds: int


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile (0..1) by linear interpolation; ValueError when there are no values."""
    if not values:
        raise ValueError("a quantile of nothing")
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def slowdown(
    filled: Sequence[Sequence[float]], shut: Sequence[Sequence[float]], seed: int = 1
) -> Slowdown:
    """Compares rounds of iteration times in ms: filled[i] and shut[i] are blocks of one round."""
    if len(filled) != len(shut) or not filled:
        raise ValueError(f"need as many filled blocks as shut ones, got {len(filled)}, {len(shut)}")

    def ratio(rounds: Sequence[int]) -> float:
        a = statistics.median([x for r in rounds for x in filled[r]])
        b = statistics.median([x for r in rounds for x in shut[r]])
        return a / b - 1

    everything = range(len(filled))
    source = random.Random(seed)
    resampled = sorted(
        ratio([source.choice(everything) for _ in everything]) for _ in range(RESAMPLES)
    )
    all_filled = [x for block in filled for x in block]
    all_shut = [x for block in shut for x in block]
    return Slowdown(
        median=ratio(everything),
        lower95=quantile(resampled, 0.025),
        upper95=quantile(resampled, 0.975),
        p95=quantile(all_filled, 0.95) / quantile(all_shut, 0.95) - 1,
        rounds=len(filled),
    )
