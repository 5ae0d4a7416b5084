"""Collects records on the main thread until the spooler takes them.

Uses of bubbles come thousands a second, so they travel as JSON text from the start; the rest are
the wire's own models.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime

from agent.clock import UtcClock
from db.wire.messages import (
    AnewRecord,
    BubbleUseRecord,
    EventRecord,
    FillJobRecord,
    HostJobRecord,
    WindowRecord,
)

log = logging.getLogger(__name__)

Record = HostJobRecord | FillJobRecord | BubbleUseRecord | WindowRecord | EventRecord | AnewRecord
MAX_WAITING = 200_000


@dataclass(frozen=True)
class Position:
    """How far a board's ring is on record once certain texts are stored."""

    board_id: int
    drained: int  # records of the ring
    begin: int  # the texts that came of it, counted from the ledger's begin
    end: int


@dataclass(frozen=True)
class Taken:
    """Records for one batch, and how far boards are on record with them."""

    records: list[str] = field(default_factory=list)
    reached: list[Position] = field(default_factory=list)

    @property
    def positions(self) -> dict[int, int]:
        """Records of the ring that are stored with these, by board."""
        return {each.board_id: each.drained for each in self.reached}


class Ledger:
    """Records in order. `add` and `add_text` on any thread; `take` is the spooler's."""

    def __init__(self, clock: UtcClock) -> None:
        self.clock = clock
        self.dropped = 0  # records that found no room, and that no event tells of yet
        self.stored: dict[int, int] = {}  # positions that an earlier life has stored, by board
        self._waiting: deque[str] = deque()
        self._positions: deque[Position] = deque()
        self._dropped_since_us = 0
        self._taken = 0
        self._lock = threading.Lock()

    def add(self, record: Record) -> None:
        self.add_text(record.model_dump_json())

    def add_text(self, text: str) -> None:
        """Adds a record that is JSON already. With the spool full for long, records are dropped,
        and told of as soon as there is room."""
        self.add_texts([text])

    def add_texts(self, texts: list[str], position: tuple[int, int] | None = None) -> None:
        """Adds many at once. `position`: a board's id, and how far its ring is read with them."""
        with self._lock:
            room = max(0, MAX_WAITING - len(self._waiting))  # more than fits may be put back
            begin = self._taken + len(self._waiting)
            self._waiting.extend(texts[:room])
            if len(texts) > room:
                self._dropped_since_us = self._dropped_since_us or self.clock.now_us()
                self.dropped += len(texts) - room
            if position is not None:
                end = self._taken + len(self._waiting)
                self._positions.append(Position(*position, begin, end))

    def tell_dropped(self) -> None:
        """Records have been stored, so there is room: those that were dropped are told of."""
        with self._lock:
            lost, since_us = self.dropped, self._dropped_since_us
            self.dropped = self._dropped_since_us = 0
            if not lost:
                return
            since = datetime.fromtimestamp(since_us // 1_000_000, UTC)
            text = (
                f"{lost} record(s) were lost since {since:%Y-%m-%d %H:%M:%S} UTC: "
                "the spool was full, and so was the agent's memory for them"
            )
            event = EventRecord(at_us=self.clock.now_us(), what="lost", text=text)
            self._waiting.append(event.model_dump_json())
        log.error("%s", text)

    @property
    def waiting(self) -> int:
        """Records that are not stored."""
        return len(self._waiting)

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

    def take(self, most: int) -> Taken:
        """The oldest records, removed: about so many at most, as what has a position is one."""
        with self._lock:
            until = self._taken + min(most, len(self._waiting))
            reached: list[Position] = []
            while self._positions and self._positions[0].end <= until:
                reached.append(self._positions.popleft())
            if self._positions and self._positions[0].begin < until:
                until = self._positions[0].begin
                if until == self._taken:
                    until = self._positions[0].end
                    reached.append(self._positions.popleft())
            records = [self._waiting.popleft() for _ in range(until - self._taken)]
            self._taken = until
            return Taken(records, reached)

    def put_back(self, taken: Taken) -> None:
        """Returns what could not be spooled to the front."""
        with self._lock:
            self._waiting.extendleft(reversed(taken.records))
            self._positions.extendleft(reversed(taken.reached))
            self._taken -= len(taken.records)


def printable(text: str) -> str:
    """The text with a question mark for each character that no terminal should be sent."""
    return "".join(char if char.isprintable() else "?" for char in text)
