"""A training with fills in its bubbles, by arithmetic: what the calibration sees of one."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from agent.budget import Budget
from agent.calibration import BoardCalibration
from agent.hold_outs import HoldOuts
from agent.settings import AgentSettings
from agent.stretches import Bubble, GpuTimes

MS = 1_000_000
SECOND = 1_000_000_000
TICK_NS = 200 * MS


def settings(**given: object) -> AgentSettings:
    return AgentSettings(**{"node": "n1", "twin": "f1", **given})  # type: ignore[arg-type]


def constant(_: int) -> float:
    return 1.0


@dataclass
class FilledTraining:
    """Iterations of `busy_ms` and a bubble of `bubble_ms`; after fill they take `cost_ms` more.

    `rhythm` gives a factor on the length at a time, `launches` the launches of an iteration.
    """

    busy_ms: float = 43.9
    bubble_ms: float = 60.0
    cost_ms: float = 0.0
    noise_ms: float = 0.0
    rhythm: Callable[[int], float] = constant
    launches: Callable[[int], int] = lambda _: 200
    slowdown: float = 1.0  # budget; of 1.0 it is never spent
    given: dict[str, object] = field(default_factory=dict)
    seed: int = 1

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        given = settings(**self.given)
        self.board = BoardCalibration(round(given.budget_window_s * 1e9))
        self.times = GpuTimes()
        self.hold_outs = HoldOuts(17, given)
        self.budget = Budget(self.slowdown, given, 0)
        self.now = 0
        self.filled = self.iterations = self.held_ticks = self.ticks = 0
        self.cost_ns = 0
        self.texts: list[str] = []
        self._begins = SECOND // 2
        self._launched = 0
        self._open = True
        self._ring: list[Bubble] = []

    def run(self, seconds: float) -> None:
        """Goes on for so long."""
        end = self.now + round(seconds * SECOND)
        while self.now < end:
            while self._begins < self.now:
                self._iterate()
            self._tick()
            self.now += TICK_NS

    def _iterate(self) -> None:
        begin = self._begins
        bubble_end = begin + round(self.bubble_ms * MS)
        length = self.busy_ms * self.rhythm(begin) + self.random.gauss(0, self.noise_ms)
        self.iterations += 1
        if self._open:
            self.times.used([(begin + MS, bubble_end - MS)])
            length += self.cost_ms
            self.filled += 1
            self.cost_ns += round(self.cost_ms * MS)
        self._ring.append((begin, bubble_end, self._launched + 1))
        self._launched += self.launches(begin)
        self._begins = bubble_end + round(length * MS)

    def _tick(self) -> None:
        board, now = self.board, self.now
        board.stretches.take(self._ring)
        self._ring = []
        if now % SECOND < TICK_NS:
            self.times.forget_before(board.stretches.needed_since_ns, now)
            board.add(board.stretches.tell_apart(self.times, now))
            board.charge(now)
            self.budget.calibrated(board.charged_ns(now), board.total_ns)
        self.texts.append(self.budget.control(now))
        held = self.hold_outs.held(now // 1000, now, board.filled_since_ns, board.cycle_ns)
        self.ticks += 1
        self.held_ticks += held
        self._open = not held and not self.budget.stopped
        if self._open:
            self.times.may_open(now)
        else:
            self.times.shut(now)

    @property
    def true_cost(self) -> float:
        """Of wall time, in all."""
        return self.cost_ns / self.now

    @property
    def found_cost(self) -> float:
        """What the calibration says."""
        return self.board.total_ns / self.now
