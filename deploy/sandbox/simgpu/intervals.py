"""Sets of time as sorted, disjoint half-open intervals of nanoseconds."""

from collections.abc import Iterable

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time as sorted intervals that neither overlap nor touch; empty ones vanish."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if end <= begin:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def intersect(left: list[Interval], right: list[Interval]) -> list[Interval]:
    """Time in both; each argument must come from a function of this module."""
    common: list[Interval] = []
    i = j = 0
    while i < len(left) and j < len(right):
        begin = max(left[i][0], right[j][0])
        end = min(left[i][1], right[j][1])
        if begin < end:
            common.append((begin, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return common


def gaps(intervals: list[Interval], begin: int, end: int) -> list[Interval]:
    """Time from begin to end that is in none of the intervals."""
    free: list[Interval] = []
    at = begin
    for first, last in intervals:
        if first > at:
            free.append((at, min(first, end)))
        at = max(at, last)
        if at >= end:
            break
    if at < end:
        free.append((at, end))
    return union(free)


def subtract(left: list[Interval], right: list[Interval]) -> list[Interval]:
    """Time in left and not in right."""
    if not left:
        return []
    return intersect(left, gaps(right, left[0][0], left[-1][1]))


def measure(intervals: list[Interval]) -> int:
    """Length in all, in nanoseconds."""
    return sum(end - begin for begin, end in intervals)
