"""The database as the controller sees it: possibly away, then tried again, never in the way."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillStoring

from sqlalchemy.exc import ProgrammingError, SQLAlchemyError

from db.engine import Database, DatabaseError
from db.ingest import Ingest
from db.ledger import add_event
from db.models import Setting
from db.queries import filling_is_off
from db.queries.totals import OFF_SETTING
from db.schema import upgrade
from db.wire.messages import Report
from slurm_plugin.controller.journal import first_line

log = logging.getLogger(__name__)

# After a failure nobody tries again for this long, so that threads do not all wait for it.
RETRY_AFTER_S = 1.0
# An agent learns of the operator's switch by the answer to its report, which a slow or locked
# database may not hold up: a batch that takes longer is acknowledged with a later report.
ANSWER_WITHIN_S = 0.3
_WRITERS = 8


class Store:
    """Ingest and the operator's switch. Safe to share between threads."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._ingest = Ingest(database)
        self._lock = threading.Lock()
        self._lock_of_storing = threading.Lock()
        self._upgraded = False
        self._retry_at_s = 0.0
        self._off: bool | None = None  # unknown until it was read
        self._stored_off = False  # what the database has said, or has taken
        self._writers = ThreadPoolExecutor(_WRITERS, "ingest")
        self._storing: dict[str, Future[int]] = {}  # the last report of each node

    @property
    def off(self) -> bool:
        """The operator's switch; off while the database could not yet be asked."""
        return self._off is not False

    @property
    def well(self) -> bool:
        """Whether the last try succeeded."""
        return self._upgraded and time.monotonic() >= self._retry_at_s

    def open(self) -> bool:
        """Make the tables and read the switch; False when the database is away."""
        with self._lock:
            if self._upgraded:
                return True
            if time.monotonic() < self._retry_at_s:
                return False
            try:
                upgrade(self.database)
                self._read_switch()
            except (SQLAlchemyError, DatabaseError) as error:
                if isinstance(error, DatabaseError) and self._off is None:
                    raise  # at the start: the operator has to act
                self._failed(error)
                return False
            self._upgraded = True
            return True

    def _read_switch(self) -> None:
        with self.database.reading() as session:
            found = filling_is_off(session)
        if self._stored_off and not found:
            text = "the database lost the operator's switch: it is off, and stored again"
            self._write_switch(off=True, text=text, user="")
        self._off = self._off or found
        self._stored_off = self._stored_off or found

    def _write_switch(self, *, off: bool, text: str, user: str) -> None:
        with self.database.writing() as session:
            session.merge(Setting(name=OFF_SETTING, value=str(int(off))))
            what = "off" if off else "on"
            now_us = time.time_ns() // 1000
            add_event(session, at_us=now_us, what=what, text=text, user=user or None)
        self._stored_off = off

    def ingest(self, report: Report) -> int:
        """Store a report if the database is there; the highest batch known to be stored by now."""
        with self._lock_of_storing:
            storing = self._storing.get(report.node)
            busy = storing is not None and not storing.done()
            if not busy:
                storing = self._writers.submit(self._store, report)
                self._storing[report.node] = storing
        if storing is not None and not busy:
            with contextlib.suppress(StillStoring):
                return storing.result(timeout=ANSWER_WITHIN_S)
        boot_id = report.batch.boot_id if report.batch else report.boot_id
        return self._ingest.accepted(report.node, boot_id)

    def close(self) -> None:
        """Waits for what is being stored, then closes the database."""
        self._writers.shutdown()
        self.database.close()

    def _store(self, report: Report) -> int:
        for _ in range(2):
            if not self.open() or time.monotonic() < self._retry_at_s:
                break
            try:
                return self._ingest.store(report, now_us=time.time_ns() // 1000)
            except SQLAlchemyError as error:
                if not self._failed(error):
                    break
        boot_id = report.batch.boot_id if report.batch else report.boot_id
        return self._ingest.accepted(report.node, boot_id)

    def _failed(self, error: SQLAlchemyError | DatabaseError) -> bool:
        """Notes a failure; True when the next try, at once, may well succeed."""
        if self._upgraded and _lacks_tables(error):
            log.warning("another database is there, its tables are made: %s", first_line(error))
            self._upgraded = False
            return True
        log.warning("the database is away, batches stay with their nodes: %s", first_line(error))
        self._retry_at_s = time.monotonic() + RETRY_AFTER_S
        return False

    def switch(self, *, off: bool, text: str, user: str) -> None:
        """Throw the operator's switch.

        Off holds at once, even if it cannot be stored; on holds once it is stored. Raises
        DatabaseError, in one sentence, when it could not be stored.
        """
        if off:
            self._off = True
        for again in (True, False):
            if not self.open():
                state = "off" if self.off else "on"
                raise DatabaseError(f"the database is away; filling is {state}")
            try:
                self._write_switch(off=off, text=text, user=user)
                break
            except SQLAlchemyError as error:
                if self._failed(error) and again:
                    continue
                more = "; filling is off until sfillctld restarts" if off else "; filling stays off"
                raise DatabaseError(
                    f"the switch was not stored: {first_line(error)}{more}"
                ) from error
        self._off = off


def _lacks_tables(error: Exception) -> bool:
    """Whether the database is there, but without (some of) our tables or their columns."""
    return isinstance(error, ProgrammingError) or "no such " in str(getattr(error, "orig", ""))
