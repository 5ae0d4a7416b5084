"""Notices that the main loop stood still: the agent was stopped, starved, or its machine suspended.

What is found then happened at some moment between the loop's last turn and now, and the time in
between is nobody's fault: it is not waited for, and no deadline runs in it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from agent.clock import now_ns
from agent.policy import MAIN_LOOP_STALE_NS

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Standstill:
    """From the loop's last turn to its next; `suspended_ns` more in which no clock of ours ran."""

    since_ns: int
    until_ns: int
    suspended_ns: int

    @property
    def seconds(self) -> float:
        return (self.until_ns - self.since_ns + self.suspended_ns) / 1e9


class MainLoop:
    """The main loop's turns. Main thread only."""

    def __init__(self) -> None:
        self.woke_ns = 0  # when it last went on after a standstill; 0: never yet
        # Told of each standstill before anything else is done about what happened in it.
        self.on_stood: Callable[[Standstill], None] = lambda stood: None
        self._turned_ns = 0
        self._stood_ns = 0
        self._suspended_ns = _suspended_ns()

    def look(self) -> None:
        """A turn: to be called at every tick, and before anything that has come in is dealt with.

        Timers may come before what stands in sockets and pidfds, and the other way round.
        """
        now, since = now_ns(), self._turned_ns
        self._turned_ns = now
        suspended_ns = _suspended_ns() - self._suspended_ns
        stood_ns = now - since if since else 0
        if max(stood_ns, suspended_ns) <= MAIN_LOOP_STALE_NS:
            return
        self._suspended_ns += suspended_ns
        self._stood_ns += stood_ns
        self.woke_ns = now
        try:
            self.on_stood(Standstill(now - stood_ns, now, max(0, suspended_ns)))
        except Exception:  # whoever looked has work of his own
            log.exception("an unforeseen error after a standstill")

    def awake_ns(self) -> int:
        """Monotonic time without standstills, to measure how long something has been waited for."""
        self.look()
        return now_ns() - self._stood_ns


def _suspended_ns() -> int:
    """How long the machine has been suspended since it booted."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
