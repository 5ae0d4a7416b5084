"""A TGS-style rate control: what the peer policy `rate-control` does.

TGS (NSDI'23) watches how fast the productive job launches kernels and adapts how fast the other may
launch its own: a little faster while the productive job keeps the rate it has alone, much slower
when it falls behind. This is our own implementation of that published loop; the constants are ours.

Rates are launches per second. The training's rate alone is learned in the stretches in which the
fill pauses. A window closes at its length or, so that an iteration is not cut in two, up to a
quarter later, when launches begin again after a rest.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from tests.bench.page import Page, Word

LATEST_CLOSE = 1.25  # of a window's length
SAMPLE_S = 0.004


@dataclass(frozen=True)
class Constants:
    """What the loop is tuned by; fractions."""

    window_s: float = 1.0
    tolerance: float = (
        0.05  # the training is slow when it is below (1 - tolerance) x its rate alone
    )
    increase: float = 1 / 16  # of the fill's free rate, a window
    decrease: float = 0.5
    floor: float = 1 / 256  # of the fill's free rate: never less, or a fill would never be heard of


class Windows:
    """Turns samples of a counter into rates over windows."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._last: tuple[float, int] | None = None
        self._seconds = 0.0
        self._launches = 0
        self._rests = False

    def sample(self, at_s: float, launches: int) -> float | None:
        """Takes one sample; the rate of a window that closes with it."""
        rate = None
        if self._last is not None:
            step = launches - self._last[1]
            begins = step > 0 and self._rests
            closes = self._seconds >= self._window_s * LATEST_CLOSE
            if closes or (begins and self._seconds >= self._window_s):
                rate = self._launches / self._seconds
                self._seconds, self._launches = 0.0, 0
            self._seconds += at_s - self._last[0]
            self._launches += step
            self._rests = step == 0
        self._last = (at_s, launches)
        return rate

    def interrupt(self) -> None:
        """What comes next does not continue what came before; the window goes on after it."""
        self._last = None


class RateControl:
    """Additive increase, multiplicative decrease."""

    def __init__(self, constants: Constants, free_rate: float) -> None:
        self._constants = constants
        self._free_rate = free_rate
        self.rate = free_rate * constants.increase

    def window(self, training_rate: float, alone: float) -> float:
        """The fill's rate after a window in which the training had this rate."""
        constants = self._constants
        if training_rate < (1 - constants.tolerance) * alone:
            self.rate *= constants.decrease
        else:
            self.rate += constants.increase * self._free_rate
        least = constants.floor * self._free_rate
        self.rate = min(max(self.rate, least), self._free_rate)
        return self.rate


class Loop:
    """Feeds the control from a page; step() is called every few milliseconds."""

    def __init__(self, page: Page, constants: Constants) -> None:
        self._page = page
        self._constants = constants
        self._control: RateControl | None = None
        self._running = Windows(constants.window_s)
        self._alone: tuple[float, int] = (0.0, 0)  # seconds and launches with the fill paused
        self._last: tuple[float, int] | None = None
        self.history: list[tuple[float, float, float]] = []  # seconds, training's rate, fill's rate

    def step(self, now_s: float) -> None:
        """Looks once."""
        page = self._page
        obeyed = page[Word.OBEYED] == page[Word.COMMAND]
        if not page[Word.STEADY] or not obeyed:
            self._last = None
            self._running.interrupt()
            return
        launches = page[Word.TRAINING_LAUNCHES]
        if page.runs:
            self._last = None
            self._run(now_s, launches)
            return
        self._running.interrupt()
        if self._last is not None:
            seconds, count = self._alone
            self._alone = (seconds + now_s - self._last[0], count + launches - self._last[1])
        self._last = (now_s, launches)

    def _run(self, now_s: float, launches: int) -> None:
        if self._control is None:
            self._control = RateControl(self._constants, float(self._page[Word.FREE_RATE]))
            self._page[Word.RATE] = max(1, round(self._control.rate))
        rate = self._running.sample(now_s, launches)
        seconds, count = self._alone
        if rate is None or not seconds:
            return
        self._page[Word.RATE] = max(1, round(self._control.window(rate, count / seconds)))
        self.history.append((now_s, rate, self._control.rate))


class LoopThread:
    """Runs a loop beside the measured programs until stopped."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.loop.step(time.monotonic())

    def __enter__(self) -> LoopThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
