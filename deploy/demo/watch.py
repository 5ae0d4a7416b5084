"""Reads the progress of the demo's programs from what they print and write."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mark:
    """A moment: UTC in us, monotonic in s, and how far both programs were."""

    at_us: int
    at_s: float
    iterations: int
    items: int


def iterations_ms(log: Path) -> list[float]:
    """Iteration times that a training has printed (`iteration N MS ...`)."""
    if not log.exists():
        return []
    times: list[float] = []
    for line in log.read_text(errors="replace").splitlines():
        words = line.split()
        if len(words) >= 3 and words[0] == "iteration":
            times.append(float(words[2]))
    return times


def items_done(output: Path) -> int:
    """Whole lines in an inference's output."""
    return output.read_bytes().count(b"\n") if output.exists() else 0


def mark(log: Path, output: Path) -> Mark:
    """Where training and inference stand now."""
    return Mark(
        at_us=time.time_ns() // 1000,
        at_s=time.monotonic(),
        iterations=len(iterations_ms(log)),
        items=items_done(output),
    )


def rate(begin: Mark, end: Mark) -> float:
    """Items a second between two marks."""
    return (end.items - begin.items) / (end.at_s - begin.at_s)
