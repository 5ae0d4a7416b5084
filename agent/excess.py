"""By how much stretches of a training are longer with fill than without: robust statistics.

A training repeats itself, so stretches with the same number of launches are alike. Those of one
hold-out are compared with their neighbours in time, as many before as after: what drifts slowly
(clocks, sequence lengths) drops out. The median of these differences is the excess.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import groupby
from math import comb, sqrt
from statistics import median, stdev

LEAST = 8  # of each kind, before anything is said
_LEAST_HOLD_OUTS = 2
_NEIGHBOURS = 8
_LEAST_NEIGHBOURS = 3
_REMEMBERED = 200
_MOST_OF_ONE_HOLD_OUT = 16
_KEPT_OF_OTHER_FILLS = LEAST
_FAR_NS = 15_000_000_000
_FAR_CYCLES = 30
_LEAST_ERROR_NS = 500.0
_SIGMA_OF_MAD = 1.4826  # of a normal distribution
_ERROR_OF_MEDIAN = 1.2533  # times that of a mean
_SURE = 3.0  # standard errors: it is asked again every second, so chance has many tries
_UNSURE = 0.0027  # how often more than that is chance, of a normal distribution
_MANY = 10
# Student's t of _UNSURE by the number of values, where there are not many.
_T = {2: 235.8, 3: 19.21, 4: 9.22, 5: 6.62, 6: 5.51, 7: 4.90, 8: 4.53, 9: 4.28}


@dataclass(frozen=True)
class Excess:
    """Nanoseconds that fill adds to a stretch, and their standard error."""

    ns: float
    error_ns: float

    @property
    def clear(self) -> bool:
        """Whether it is more than chance would give."""
        return self.ns > _SURE * self.error_ns


@dataclass
class _HoldOut:
    """Unfilled stretches in a row, and the filled ones around: (time, length) in ns."""

    before: list[tuple[int, int]]
    unfilled: list[tuple[int, int]] = field(default_factory=list)
    after: list[tuple[int, int]] = field(default_factory=list)

    def differences(self, cycle_ns: float) -> list[float]:
        """Filled less unfilled; nothing when there is too little to compare with."""
        count = min(len(self.before), len(self.after))
        if count < _LEAST_NEIGHBOURS:
            return []
        if self.after[0][0] - self.before[-1][0] > max(_FAR_NS, _FAR_CYCLES * cycle_ns):
            return []
        before = median(length for _, length in self.before[-count:])
        after = median(length for _, length in self.after[:count])
        return [(before + after) / 2 - length for _, length in self.unfilled]


class AlikeStretches:
    """Stretches of one kind, by number of launches."""

    def __init__(self) -> None:
        self.filled = 0.0  # how many, in all
        self.filled_ns = 0.0  # with the bubbles before them
        self.uncharged: deque[tuple[int, float]] = deque()  # filled ones: (time, how many)
        self._before: deque[tuple[int, int]] = deque(maxlen=_NEIGHBOURS)
        self._hold_out: _HoldOut | None = None
        self._hold_outs = 0
        self._cycle_ns = 0.0
        self._differences: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED)
        self._excess: Excess | None = None

    def add(self, at_ns: int, busy_ns: int, cycle_ns: int, weight: float, filled: bool) -> None:
        """Adds a stretch; they come in order of time."""
        self._cycle_ns += (cycle_ns - self._cycle_ns) * (0.1 if self._cycle_ns else 1.0)
        if filled:
            self._add_filled((at_ns, busy_ns))
            self.filled += weight
            self.filled_ns += weight * cycle_ns
            if self.uncharged and at_ns - self.uncharged[-1][0] < 1_000_000_000:
                self.uncharged[-1] = (self.uncharged[-1][0], self.uncharged[-1][1] + weight)
            else:
                self.uncharged.append((at_ns, weight))
        else:
            self._add_unfilled((at_ns, busy_ns))

    def _add_filled(self, stretch: tuple[int, int]) -> None:
        self._before.append(stretch)
        if self._hold_out is not None:
            self._hold_out.after.append(stretch)
            if len(self._hold_out.after) >= _NEIGHBOURS:
                self._end_hold_out()

    def _add_unfilled(self, stretch: tuple[int, int]) -> None:
        if self._hold_out is not None and len(self._hold_out.after) >= _LEAST_NEIGHBOURS:
            self._end_hold_out()
        if self._hold_out is None:
            self._hold_out = _HoldOut(list(self._before))
        if len(self._hold_out.unfilled) < _MOST_OF_ONE_HOLD_OUT:
            self._hold_out.unfilled.append(stretch)

    def _end_hold_out(self) -> None:
        if self._hold_out is None:
            return
        differences = self._hold_out.differences(self._cycle_ns)
        self._hold_out = None
        if differences:
            self._hold_outs += 1
            self._differences += ((self._hold_outs, each) for each in differences)
            self._excess = self._estimate()

    def other_fills(self) -> None:
        """Other fills run from now on: what those before cost must not count for long."""
        kept = list(self._differences)[-_KEPT_OF_OTHER_FILLS:]
        self._differences = deque(kept, maxlen=_REMEMBERED)
        self._excess = self._estimate()

    @property
    def excess(self) -> Excess | None:
        """None while there are too few of either kind."""
        return self._excess if self.filled >= LEAST else None

    def _estimate(self) -> Excess | None:
        values = [each for _, each in self._differences]
        of_hold_outs = [
            median(each for _, each in group)
            for _, group in groupby(self._differences, key=lambda each: each[0])
        ]
        if len(values) < LEAST or len(of_hold_outs) < _LEAST_HOLD_OUTS:
            return None
        # Stretches of one hold-out share their neighbours, and whatever else was special then.
        alone = _spread(values) * sqrt(1 / len(values) + 1 / (_NEIGHBOURS * len(of_hold_outs)))
        shared = _error_of_hold_outs(of_hold_outs)
        error = max(_LEAST_ERROR_NS, _ERROR_OF_MEDIAN * alone, shared)
        return Excess(median(values), error)


def _error_of_hold_outs(values: list[float]) -> float:
    """Standard error by what hold-outs differ among themselves, however they are distributed.

    Of many, a third of half the interval between those of them that hold the median 99.7 times in a
    hundred (order statistics): two processes that take turns on a GPU give two heaps of values,
    of which deviations from the larger one tell nothing. Of few, by Student's t.
    """
    count = len(values)
    if count < _MANY:
        return stdev(values) / sqrt(count) * _T[count] / _SURE
    ordered, outside, chance = sorted(values), 0, 2 / 2**count
    while chance <= _UNSURE and outside < count // 2:
        outside += 1
        chance += 2 * comb(count, outside) / 2**count
    edge = max(0, outside - 1)
    return (ordered[-1 - edge] - ordered[edge]) / 2 / _SURE


def _spread(values: list[float]) -> float:
    """Standard deviation by the median absolute deviation: outliers don't matter."""
    middle = median(values)
    return _SIGMA_OF_MAD * median(abs(each - middle) for each in values)
