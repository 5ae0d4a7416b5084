"""Stretches of a training: what it computes between two bubbles, with fill before it or without.

Stretches are told apart afterwards, when every record of a use of the bubble has come in. One is
*filled* when fill ran in the bubble before it (or in itself), *unfilled* when none ran and none
could: no gate on the GPU was allowed to open all that time. Any other says nothing: a bubble that
fill had left alone may well be of a special kind.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

# Of what a board's ring brings at once, so many stretches are looked at; they stand for all.
_MOST_AT_ONCE = 50
# A use is on record so long after it ended: gates write it, then the agent reads it.
_ON_RECORD_NS = 1_500_000_000
# After gates were shut, work in flight ends and the GPU's clock recovers.
_SHUT_MARGIN_NS = 50_000_000
# No bubble is looked back at for longer: what a training without bubbles leaves must not pile up.
_LONGEST_NS = 600_000_000_000
_FOR_EVER_NS = 1 << 63

Bubble = tuple[int, int, int]  # begin and end in ns, launches at its end
Interval = tuple[int, int]


class Stretch(NamedTuple):
    """`cycle_ns` is its own length and that of the bubble before; `weight` how many it speaks
    for."""

    began_ns: int
    busy_ns: int
    launches: int
    cycle_ns: int
    weight: float

    @property
    def bubble_began_ns(self) -> int:
        return self.ended_ns - self.cycle_ns

    @property
    def ended_ns(self) -> int:
        return self.began_ns + self.busy_ns


@dataclass
class GpuTimes:
    """When fill ran on a GPU, and when none could. Monotonic nanoseconds."""

    _uses: list[Interval] = field(default_factory=list)
    _shut: deque[list[int]] = field(default_factory=deque)

    def used(self, uses: Sequence[Interval]) -> None:
        """Adds uses: first release to last operation done."""
        self._uses += uses

    def shut(self, now_ns: int) -> None:
        """No gate may open from now on."""
        if not self._shut or self._shut[-1][1] != _FOR_EVER_NS:
            self._shut.append([now_ns, _FOR_EVER_NS])

    def may_open(self, now_ns: int) -> None:
        """From now on a gate may open."""
        if self._shut and self._shut[-1][1] == _FOR_EVER_NS:
            self._shut[-1][1] = now_ns

    def forget_before(self, at_ns: int, now_ns: int) -> None:
        """Drops what can't matter any more, and puts uses in order."""
        at_ns = min(now_ns, max(at_ns, now_ns - _LONGEST_NS))
        merged: list[Interval] = []
        for first, last in sorted(each for each in self._uses if each[1] >= at_ns):
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            else:
                merged.append((first, last))
        self._uses = merged
        while self._shut and self._shut[0][1] < at_ns:
            self._shut.popleft()

    def was_used(self, begin_ns: int, end_ns: int) -> bool:
        """Whether fill ran between two times; only after `forget_before`."""
        before = bisect_right(self._uses, (end_ns, 0)) - 1
        return before >= 0 and self._uses[before][1] >= begin_ns

    def was_shut(self, begin_ns: int, end_ns: int) -> bool:
        """Whether no gate could open all the time between."""
        return any(
            first + _SHUT_MARGIN_NS <= begin_ns and end_ns <= last for first, last in self._shut
        )


@dataclass
class StretchesOfBoard:
    """The stretches of one training process on one GPU, in order, until they can be told apart."""

    _last: Bubble | None = None
    _waiting: deque[Stretch] = field(default_factory=deque)

    def take(self, bubbles: Sequence[Bubble], *, lost: bool = False) -> None:
        """Adds bubbles as they stand in the ring; `lost`: some before them were overwritten."""
        if lost:
            self._last = None
        looked_at = min(len(bubbles), _MOST_AT_ONCE)
        weight = len(bubbles) / looked_at if looked_at else 1.0
        for bubble in bubbles[:looked_at]:
            last, self._last = self._last, bubble
            if last is None or not (last[1] < bubble[0] and last[2] < bubble[2]):
                continue  # the first, or a user's process writes nonsense
            self._waiting.append(
                Stretch(
                    began_ns=last[1],
                    busy_ns=bubble[0] - last[1],
                    launches=bubble[2] - last[2],
                    cycle_ns=bubble[0] - last[0],
                    weight=weight,
                )
            )
        if looked_at < len(bubbles):
            self._last = bubbles[-1]

    def begin_anew(self) -> None:
        """Nobody looks at this board for a while."""
        self._last = None
        self._waiting.clear()

    @property
    def needed_since_ns(self) -> int:
        """From when on uses matter: the oldest bubble whose stretch can't be told apart yet."""
        if self._waiting:
            return self._waiting[0].bubble_began_ns
        return self._last[0] if self._last else _FOR_EVER_NS

    def tell_apart(self, times: GpuTimes, now_ns: int) -> list[tuple[Stretch, bool]]:
        """Those whose uses are all on record, with whether they were filled."""
        found = []
        while self._waiting and self._waiting[0].ended_ns < now_ns - _ON_RECORD_NS:
            stretch = self._waiting.popleft()
            begin, end = stretch.bubble_began_ns, stretch.ended_ns
            if times.was_used(begin, end):
                found.append((stretch, True))
            elif times.was_shut(begin, end):
                found.append((stretch, False))
        return found
