"""Bubble time of a GPU over a window, from the bubbles of every training process on it.

With one process on the GPU its bubbles are the GPU's. With several, the GPU is in a bubble only
while all of them are, so their intervals are intersected; before a process attached and after it
ended it is out of the account. A bubble that crosses the edge of a window counts in both, each with
its part; its number counts where it ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

LEAST_BUBBLE_NS = 100_000

Interval = tuple[int, int]


@dataclass(frozen=True)
class BubbleTime:
    """Bubbles of a GPU in a window: how many ended in it, and how long they lasted in it."""

    count: int
    length_ns: int
    typical_ns: float = 0.0  # length, weighted by length


@dataclass
class BubblesOfBoard:
    """Bubbles that one board has told of and that no closed window has used up."""

    ended: list[Interval] = field(default_factory=list)
    open_since_ns: int = 0  # 0: none is open
    attached_ns: int = 0
    gone_ns: int = 0  # 0: the process lives

    def life(self, begin_ns: int, end_ns: int) -> list[Interval]:
        """The part of a window in which the process was attached."""
        begin, end = max(begin_ns, self.attached_ns), min(end_ns, self.gone_ns or end_ns)
        return [(begin, end)] if begin < end else []

    def clipped(self, begin_ns: int, end_ns: int) -> list[Interval]:
        """Bubbles of at least 100 us, in order, cut to the window."""
        found = [
            (max(begin, begin_ns), min(end, end_ns))
            for begin, end in self.ended
            if end - begin >= LEAST_BUBBLE_NS and end > begin_ns and begin < end_ns
        ]
        if self.open_since_ns and end_ns - self.open_since_ns >= LEAST_BUBBLE_NS:
            found.append((max(self.open_since_ns, begin_ns), end_ns))
        return found

    def forget_before(self, at_ns: int) -> None:
        """Drops what ended before a window's end."""
        self.ended = [each for each in self.ended if each[1] > at_ns]


def bubble_time(boards: list[BubblesOfBoard], begin_ns: int, end_ns: int) -> BubbleTime:
    """Bubble time of the GPU that these boards stand on."""
    if not boards:
        return BubbleTime(0, 0)
    lives = [board.life(begin_ns, end_ns) for board in boards]
    common = _disjoint([interval for life in lives for interval in life])
    for board, life in zip(boards, lives, strict=True):
        idle = board.clipped(begin_ns, end_ns) + _outside(life, begin_ns, end_ns)
        common = _intersection(common, _disjoint(idle))
    kept = [each for each in common if _counts(each, begin_ns, end_ns)]
    lengths = [end - begin for begin, end in kept]
    total = sum(lengths)
    return BubbleTime(
        count=sum(1 for _, end in kept if end < end_ns),
        length_ns=total,
        typical_ns=sum(each * each for each in lengths) / total if total else 0.0,
    )


def watched_time(boards: list[BubblesOfBoard], begin_ns: int, end_ns: int) -> int:
    """How long of a window at least one of these boards was attached, in nanoseconds."""
    lives = [interval for board in boards for interval in board.life(begin_ns, end_ns)]
    return sum(end - begin for begin, end in _disjoint(lives))


def _counts(interval: Interval, begin_ns: int, end_ns: int) -> bool:
    """Whether what is left is long enough; a piece at the window's edge goes on beyond it."""
    begin, end = interval
    return end - begin >= LEAST_BUBBLE_NS or begin == begin_ns or end == end_ns


def _outside(life: list[Interval], begin_ns: int, end_ns: int) -> list[Interval]:
    if not life:
        return [(begin_ns, end_ns)]
    [(begin, end)] = life
    return [each for each in ((begin_ns, begin), (end, end_ns)) if each[0] < each[1]]


def _disjoint(intervals: list[Interval]) -> list[Interval]:
    """Sorted, overlaps cut: a user's process may write anything into its ring."""
    ordered = sorted(each for each in intervals if each[0] < each[1])
    if all(before[1] <= after[0] for before, after in pairwise(ordered)):
        return ordered
    found: list[Interval] = []
    for begin, end in ordered:
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def _intersection(one: list[Interval], other: list[Interval]) -> list[Interval]:
    found: list[Interval] = []
    i = j = 0
    while i < len(one) and j < len(other):
        begin, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if begin < end:
            found.append((begin, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found
