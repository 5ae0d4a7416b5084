"""Collects records on the main thread until the spooler takes them.

Uses of bubbles come thousands a second, so they travel as JSON text from the start; the rest are
the wire's own models.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from agent.clock import UtcClock
from db.wire.messages import (
    BubbleUseRecord,
    EventRecord,
    FillJobRecord,
    HostJobRecord,
    WindowRecord,
)

log = logging.getLogger(__name__)

Record = HostJobRecord | FillJobRecord | BubbleUseRecord | WindowRecord | EventRecord
MAX_WAITING = 200_000


class Ledger:
    """Records in order. `add` and `add_text` on any thread; `take` is the spooler's."""

    def __init__(self, clock: UtcClock) -> None:
        self.clock = clock
        self.dropped = 0
        self._waiting: deque[str] = deque()
        self._lock = threading.Lock()

    def add(self, record: Record) -> None:
        self.add_text(record.model_dump_json())

    def add_text(self, text: str) -> None:
        """Adds a record that is JSON already. With the spool full for long, records are dropped."""
        self.add_texts([text])

    def add_texts(self, texts: list[str]) -> None:
        """Adds many at once."""
        with self._lock:
            room = MAX_WAITING - len(self._waiting)
            self._waiting.extend(texts[:room])
            self.dropped += max(0, len(texts) - room)

    def event(
        self,
        what: str,
        text: str,
        *,
        job_id: int | None = None,
        gpu: str | None = None,
        user: str | None = None,
    ) -> None:
        """A line of the audit log, and of ours.

        `text` may hold what a user's process said: nothing that upsets a terminal or a database.
        """
        text = printable(text)
        log.info("%s: %s", what, text)
        self.add(
            EventRecord(
                at_us=self.clock.now_us(), what=what, text=text, job_id=job_id, gpu=gpu, user=user
            )
        )

    def take(self, most: int) -> list[str]:
        """The oldest records, at most so many, removed."""
        with self._lock:
            return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    def put_back(self, records: list[str]) -> None:
        """Returns what could not be spooled to the front."""
        with self._lock:
            self._waiting.extendleft(reversed(records))


def printable(text: str) -> str:
    """The text with a question mark for each character that no terminal should be sent."""
    return "".join(char if char.isprintable() else "?" for char in text)
