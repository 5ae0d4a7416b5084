"""From the boards' monotonic clock to UTC."""

from __future__ import annotations

import time

_SAMPLE_AGAIN_NS = 10_000_000_000


def now_ns() -> int:
    """CLOCK_MONOTONIC, the clock of every board, in nanoseconds."""
    return time.monotonic_ns()


class UtcClock:
    """Turns monotonic nanoseconds into UTC microseconds; follows NTP by sampling anew at times."""

    def __init__(self) -> None:
        self._offset_ns = 0
        self._sampled_ns = 0
        self.sample()

    def sample(self) -> None:
        """Compares the clocks anew."""
        self._sampled_ns = time.monotonic_ns()
        self._offset_ns = time.time_ns() - self._sampled_ns

    def utc_us(self, monotonic_ns: int) -> int:
        """UTC microseconds since the epoch of a monotonic time."""
        if time.monotonic_ns() - self._sampled_ns > _SAMPLE_AGAIN_NS:
            self.sample()
        return (monotonic_ns + self._offset_ns) // 1000

    def now_us(self) -> int:
        """UTC now, microseconds since the epoch."""
        return time.time_ns() // 1000
