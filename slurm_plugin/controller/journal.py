"""The controller's own lines of the audit log, kept until the database has taken them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from db.engine import Database, DatabaseError
from db.ledger import add_event
from db.models import Node

log = logging.getLogger(__name__)

MOST_KEPT = 20_000


@dataclass(frozen=True)
class Line:
    """One event before it is stored."""

    at_us: int
    what: str
    text: str
    node: str | None = None
    job_id: int | None = None
    user: str | None = None


class Journal:
    """A queue of events; `note` never blocks and never fails."""

    def __init__(self, database: Database, clock_us: Callable[[], int] | None = None) -> None:
        self._database = database
        self._clock_us = clock_us or (lambda: time.time_ns() // 1000)
        self._lock = threading.Lock()
        self._lines: deque[Line] = deque()
        self._dropped = 0

    def note(
        self,
        what: str,
        text: str,
        *,
        node: str | None = None,
        job_id: int | None = None,
        user: str | None = None,
    ) -> None:
        """Add a line; the oldest go when more than MOST_KEPT wait for the database."""
        log.info("%s: %s", what, text)
        line = Line(self._clock_us(), what, text, node, job_id, user)
        with self._lock:
            if len(self._lines) >= MOST_KEPT:
                self._lines.popleft()
                self._dropped += 1
            self._lines.append(line)

    @property
    def waiting(self) -> int:
        return len(self._lines)

    def store(self) -> bool:
        """Write what waits; False when the database did not take it (it is kept)."""
        with self._lock:
            lines = list(self._lines)
            dropped = self._dropped
        if not lines:
            return True
        try:
            with self._database.writing() as session:
                nodes = {row.name: row.id for row in session.execute(select(Node.name, Node.id))}
                for line in lines:
                    add_event(
                        session,
                        at_us=line.at_us,
                        what=line.what,
                        text=line.text,
                        node_id=nodes.get(line.node or ""),
                        job_id=line.job_id,
                        user=line.user,
                    )
                if dropped:
                    text = f"{dropped} events were dropped while the database was away"
                    add_event(session, at_us=self._clock_us(), what="dropped", text=text)
        except (SQLAlchemyError, DatabaseError) as error:
            log.warning("%d events wait for the database: %s", len(lines), first_line(error))
            return False
        with self._lock:
            stored = set(map(id, lines))
            while self._lines and id(self._lines[0]) in stored:
                self._lines.popleft()
            self._dropped -= dropped
        return True


def first_line(error: Exception) -> str:
    """The cause of a database error in one line."""
    return str(getattr(error, "orig", None) or error).strip().splitlines()[0]
