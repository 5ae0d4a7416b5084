"""The database as the controller sees it: possibly away, then tried again, never in the way."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillStoring

from sqlalchemy.exc import SQLAlchemyError

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
                with self.database.reading() as session:
                    self._off = self._off or filling_is_off(session)
            except SQLAlchemyError as error:
                self._failed(error)
                return False
            self._upgraded = True
            return True

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
        boot_id = report.batch.boot_id if report.batch else report.boot_id
        if not self.open() or time.monotonic() < self._retry_at_s:
            return self._ingest.accepted(report.node, boot_id)
        try:
            return self._ingest.store(report, now_us=time.time_ns() // 1000)
        except SQLAlchemyError as error:
            self._failed(error)
            return self._ingest.accepted(report.node, boot_id)

    def _failed(self, error: SQLAlchemyError) -> None:
        log.warning("the database is away, batches stay with their nodes: %s", first_line(error))
        self._retry_at_s = time.monotonic() + RETRY_AFTER_S

    def switch(self, *, off: bool, text: str, user: str) -> None:
        """Throw the operator's switch.

        Off holds at once, even if it cannot be stored; on holds once it is stored. Raises
        DatabaseError, in one sentence, when it could not be stored.
        """
        if off:
            self._off = True
        if not self.open():
            raise DatabaseError(f"the database is away; filling is {'off' if self.off else 'on'}")
        try:
            with self.database.writing() as session:
                session.merge(Setting(name=OFF_SETTING, value=str(int(off))))
                what = "off" if off else "on"
                add_event(session, at_us=time.time_ns() // 1000, what=what, text=text, user=user)
        except SQLAlchemyError as error:
            self._failed(error)
            more = "; filling is off until sfillctld restarts" if off else "; filling stays off"
            raise DatabaseError(f"the switch was not stored: {first_line(error)}{more}") from error
        self._off = off
