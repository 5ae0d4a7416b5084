"""Figures of a job in its AdminComment when it has ended, so that `sacct` shows them."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable

from sqlalchemy.exc import SQLAlchemyError

from db import queries
from db.engine import Database
from db.wire.messages import FillJobRecord, HostJobRecord, Record
from slurm_plugin.cluster.interface import ClusterError, SlurmCluster

log = logging.getLogger(__name__)

# The last window of a job comes with or shortly after its end.
AFTER_S = 2.0
TRIES = 20


class Comments:
    """Ended jobs whose comment is still to be written. One thread steps it."""

    def __init__(self, cluster: SlurmCluster, database: Database) -> None:
        self._cluster = cluster
        self._database = database
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, int], tuple[float, int]] = {}
        self._accounting: bool | None = None
        self._stop = threading.Event()

    def note(self, records: Iterable[Record]) -> None:
        """Take the ends of jobs out of a batch that was stored."""
        due_s = time.monotonic() + AFTER_S
        with self._lock:
            for record in records:
                if isinstance(record, HostJobRecord | FillJobRecord) and record.ended_at_us:
                    self._waiting[record.kind, record.job_id] = (due_s, 0)

    def stop(self) -> None:
        self._stop.set()

    def run(self, *, pause_s: float = 1.0) -> None:
        while not self._stop.wait(pause_s):
            self.step()

    def step(self) -> None:
        """Write the comments that are due; what fails is tried again some times."""
        now_s = time.monotonic()
        with self._lock:
            due = {key: tries for key, (due_s, tries) in self._waiting.items() if due_s <= now_s}
        if not due:
            return
        try:
            if self._accounting is None:
                self._accounting = self._cluster.has_accounting()
        except ClusterError as error:
            log.debug("whether there is accounting is not known: %s", error)
            return
        for key, tries in due.items():
            done = not self._accounting or self._write(*key) or tries + 1 >= TRIES
            with self._lock:
                if done:
                    self._waiting.pop(key, None)
                else:
                    self._waiting[key] = (now_s + AFTER_S * (tries + 1), tries + 1)

    def _write(self, kind: str, job_id: int) -> bool:
        try:
            text = self._text(kind, job_id)
            if text:
                self._cluster.set_admin_comment(job_id, text)
        except (ClusterError, SQLAlchemyError) as error:
            log.info("job %d has no comment yet: %s", job_id, error)
            return False
        return True

    def _text(self, kind: str, job_id: int) -> str:
        which = queries.JobFilter(job_id=job_id)
        with self._database.reading() as session:
            if kind == "host_job":
                rows = queries.host_jobs(session, which, now_us=time.time_ns() // 1000, limit=1000)
                return host_comment(rows)
            return fill_comment(queries.fill_jobs(session, which, limit=1000))


def host_comment(rows: list[queries.HostJobRow]) -> str:
    """What a training lent, over all its nodes; empty for a job that is not known."""
    gpu_us = sum(row.wall_us * len(row.gpus) for row in rows)
    bubble_us = sum(row.bubble_us for row in rows)
    if not rows:
        return ""
    slowdown = queries.largest_slowdown(rows)
    figures = {
        "role": "host",
        "mode": rows[0].mode,
        # Of a job that nobody watched no bubbles are known.
        "bubble_share": None if queries.watched(rows) == 0 else _ratio(bubble_us, gpu_us),
        "filled_share": _ratio(sum(row.filled_us for row in rows), bubble_us),
        "intrusion": _ratio(sum(row.intrusion_us for row in rows), gpu_us, digits=6),
        "slowdown": None if slowdown is None else round(slowdown, 6),
    }
    return json.dumps({"sfill": figures}, separators=(",", ":"))


def fill_comment(starts: list[queries.FillStart]) -> str:
    """What a fill job had, over all its starts; empty for a job that is not known."""
    if not starts:
        return ""
    figures = {
        "role": "fill",
        "starts": queries.starts_of(starts),
        "bubbles": sum(start.bubbles_used for start in starts),
        "gpu_s": round(sum(start.gpu_time_us for start in starts) / 1e6, 3),
        "hosts": sorted({start.host_job_id for start in starts if start.host_job_id})[:8],
    }
    return json.dumps({"sfill": figures}, separators=(",", ":"))


def _ratio(part: float, whole: float, digits: int = 4) -> float | None:
    return round(part / whole, digits) if whole > 0 else None
