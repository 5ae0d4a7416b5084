"""What a fill got done: batches inside the stretches in which it was allowed to run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Stretch = tuple[int, int]  # CLOCK_MONOTONIC in ns


class Progress:
    """A fill's report: lines of `MONOTONIC_NS BATCHES`."""

    def __init__(self, path: Path) -> None:
        self._at: list[int] = []
        self._count: list[int] = []
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) == 2:  # the last line may be torn
                self._at.append(int(words[0]))
                self._count.append(int(words[1]))

    def batches_at(self, at_ns: int) -> float:
        """Batches done by a moment, between the lines."""
        place = bisect_right(self._at, at_ns)
        if place == len(self._at):
            return float(self._count[-1]) if self._count else 0.0
        before_ns, before = (self._at[place - 1], self._count[place - 1]) if place else (0, 0)
        step = (at_ns - before_ns) / (self._at[place] - before_ns)
        return before + step * (self._count[place] - before)

    def batches(self, stretches: Sequence[Stretch]) -> float:
        """Batches done inside stretches."""
        return sum(self.batches_at(end) - self.batches_at(begin) for begin, end in stretches)


@dataclass(frozen=True)
class Harvest:
    """Of one fill on one GPU."""

    rate: float  # batches a second while allowed
    rate_ratio: float  # that rate / (its rate alone x bubble share)
    efficiency: float  # GPU-busy time of its batches / bubble time


def harvest(
    progress: Progress, stretches: Sequence[Stretch], alone: dict[str, Any], bubble_share: float
) -> Harvest:
    """Compares with the inference alone; ValueError when there was no time or no bubble."""
    seconds = sum(end - begin for begin, end in stretches) / 1e9
    if seconds <= 0 or bubble_share <= 0:
        raise ValueError(f"no harvest from {seconds:.1f} s with a bubble share of {bubble_share}")
    batches = progress.batches(stretches)
    return Harvest(
        rate=batches / seconds,
        rate_ratio=batches / seconds / (float(alone["batches_per_s"]) * bubble_share),
        efficiency=batches * float(alone["busy_us_per_batch"]) / 1e6 / (seconds * bubble_share),
    )
