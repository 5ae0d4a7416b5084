"""What a fill got done: batches inside the stretches in which it was allowed to run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Stretch = tuple[int, int]  # CLOCK_MONOTONIC in ns


class Progress:
    """A fill's report: `gpu UUID`, then lines of `MONOTONIC_NS BATCHES`."""

    def __init__(self, path: Path) -> None:
        self._at: list[int] = []
        self._count: list[int] = []
        self.gpu = ""  # UUID, where the report names one
        for line in path.read_text().splitlines():
            words = line.split()
            if words[:1] == ["gpu"]:
                self.gpu = words[1]
            elif len(words) == 2:  # the last line may be torn
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
    """Of one fill on one GPU; without bubbles there is only a rate."""

    rate: float  # batches a second while allowed
    rate_ratio: float | None  # that rate / (its rate alone x bubble share)
    efficiency: float | None  # GPU-busy time of its batches / bubble time


def rate(progress: Progress, stretches: Sequence[Stretch]) -> float:
    """Batches a second inside stretches; 0 when they are empty."""
    seconds = sum(end - begin for begin, end in stretches) / 1e9
    return progress.batches(stretches) / seconds if seconds > 0 else 0.0


def harvest(batches_per_s: float, alone: Mapping[str, Any], share: float | None) -> Harvest:
    """Compares a rate with the inference alone and the training's bubble share."""
    if not share:
        return Harvest(batches_per_s, None, None)
    whole = float(alone["batches_per_s"]) * share
    busy_s = float(alone["busy_us_per_batch"]) / 1e6
    return Harvest(batches_per_s, batches_per_s / whole, batches_per_s * busy_s / share)
