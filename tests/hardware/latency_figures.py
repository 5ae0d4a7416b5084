"""What latency.py makes of the times that it has: of bubbles, of a fill's kernels, of launches."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.statistics import quantile


@dataclass(frozen=True)
class ClockPair:
    """The GPU's clock and the host's at the same time, to half of the window."""

    gpu_ns: int
    host_ns: int
    window_ns: int


@dataclass(frozen=True)
class Clock:
    """The GPU's times on the host's clock, from a comparison before and one afterwards."""

    begin: ClockPair
    end: ClockPair

    def host_ns(self, gpu_ns: int) -> int:
        first = self.begin.gpu_ns - self.begin.host_ns
        drift = self.end.gpu_ns - self.end.host_ns - first
        span = max(1, self.end.gpu_ns - self.begin.gpu_ns)
        return gpu_ns - first - round(drift * (gpu_ns - self.begin.gpu_ns) / span)


@dataclass(frozen=True)
class Iteration:
    """The call that lets it begin, its first kernel's begin, its last one's end."""

    launch_ns: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class Kernel:
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class Block:
    """A time in which the fill was allowed, or shut out, all through."""

    begin_ns: int
    end_ns: int
    filled: bool


@dataclass(frozen=True)
class Bubble:
    """Times in ns. opening: its begin until the fill's first kernel's; closing: training's launch
    until the end of the fill's last one, 0 if that was earlier; start: that launch until the begin
    of its kernel. None without a kernel of the fill."""

    length_ns: int
    start_ns: int
    filled: bool
    opening_ns: int | None
    closing_ns: int | None
    fill_ns: int


def bubbles_of(
    iterations: Sequence[Iteration], kernels: Sequence[Kernel], blocks: Sequence[Block]
) -> list[Bubble]:
    """Bubbles between iterations that lie in one block. Kernels in the order of their begin."""
    found: list[Bubble] = []
    begins = [kernel.begin_ns for kernel in kernels]
    for before, after in itertools.pairwise(iterations):
        block = next(
            (b for b in blocks if b.begin_ns <= before.end_ns and after.begin_ns <= b.end_ns), None
        )
        if block is None or after.begin_ns <= before.end_ns:
            continue
        first = bisect.bisect_right(begins, before.end_ns)
        inside = kernels[first : bisect.bisect_left(begins, after.begin_ns)]
        last_end = inside[-1].end_ns if inside else 0
        found.append(
            Bubble(
                length_ns=after.begin_ns - before.end_ns,
                start_ns=after.begin_ns - after.launch_ns,
                filled=block.filled,
                opening_ns=inside[0].begin_ns - before.end_ns if inside else None,
                closing_ns=max(0, last_end - after.launch_ns) if inside else None,
                fill_ns=sum(kernel.end_ns - kernel.begin_ns for kernel in inside),
            )
        )
    return found


def spread_us(values: Sequence[int]) -> dict[str, float | int | None]:
    """In microseconds."""
    if not values:
        return {"count": 0, "p50_us": None, "p99_us": None, "most_us": None}
    return {
        "count": len(values),
        "p50_us": round(quantile(values, 0.5) / 1000, 1),
        "p99_us": round(quantile(values, 0.99) / 1000, 1),
        "most_us": round(max(values) / 1000, 1),
    }


def figures(bubbles: Sequence[Bubble]) -> dict[str, Any]:
    """Of one kind of bubble."""
    filled = [bubble for bubble in bubbles if bubble.filled]
    shut = [bubble for bubble in bubbles if not bubble.filled]
    used = [bubble for bubble in filled if bubble.opening_ns is not None]
    whole_ns = sum(bubble.length_ns for bubble in filled)
    return {
        "bubbles": len(bubbles),
        "length": spread_us([bubble.length_ns for bubble in bubbles]),
        "used_share": round(len(used) / len(filled), 3) if filled else None,
        "filled_share": (
            round(sum(bubble.fill_ns for bubble in filled) / whole_ns, 3) if whole_ns else None
        ),
        "opening": spread_us([b.opening_ns for b in used if b.opening_ns is not None]),
        "closing": spread_us([b.closing_ns for b in used if b.closing_ns is not None]),
        "start_filled": spread_us([bubble.start_ns for bubble in filled]),
        "start_shut": spread_us([bubble.start_ns for bubble in shut]),
        "used_while_shut": sum(bubble.opening_ns is not None for bubble in shut),
    }
