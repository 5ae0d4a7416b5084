"""Writing an agent's records into the tables, within a transaction of the caller.

Jobs and windows are written again as they grow, and the last word counts; uses of bubbles and
events are only ever added.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from db.lost_jobs import close_lost_jobs
from db.models import BubbleUse, Event, FillJob, Gpu, HostJob, Window
from db.wire.messages import (
    AnewRecord,
    BubbleUseRecord,
    EventRecord,
    FillJobRecord,
    HostJobRecord,
    Record,
    WindowRecord,
)

NAME_CHARACTERS = 255
WORD_CHARACTERS = 32


class ForeignGpuError(Exception):
    """A record names a GPU of another node; a node may report only for itself."""


class NodeLedger:
    """Writes records of one node in one transaction."""

    def __init__(self, session: Session, node_id: int) -> None:
        self._session = session
        self._node_id = node_id
        self._gpu_ids: dict[str, int] = {}

    def write(self, records: Sequence[Record]) -> None:
        """All records, in order. Raises ForeignGpuError and what SQLAlchemy raises."""
        uses: list[BubbleUseRecord] = []
        windows: list[WindowRecord] = []
        for record in records:
            if isinstance(record, BubbleUseRecord):
                uses.append(record)
            elif isinstance(record, WindowRecord):
                windows.append(record)
            elif isinstance(record, HostJobRecord):
                self._host_job(record)
            elif isinstance(record, FillJobRecord):
                self._fill_job(record)
            elif isinstance(record, AnewRecord):
                self._anew(record)
            else:
                self._event(record)
        self._uses(uses)
        self._windows(windows)
        self._session.flush()

    def gpu_id(self, uuid: str) -> int:
        """The row of a GPU of this node; one that no report listed yet gets a row."""
        known = self._gpu_ids.get(uuid)
        if known is not None:
            return known
        gpu = self._session.scalars(select(Gpu).where(Gpu.uuid == uuid)).one_or_none()
        if gpu is None:
            gpu = Gpu(node_id=self._node_id, uuid=uuid, minor=-1, name="unknown", memory_bytes=0)
            self._session.add(gpu)
            self._session.flush()
        if gpu.node_id != self._node_id:
            raise ForeignGpuError(f"{uuid} belongs to another node")
        self._gpu_ids[uuid] = gpu.id
        return gpu.id

    def _host_job(self, record: HostJobRecord) -> None:
        for uuid in record.gpus:
            self.gpu_id(uuid)
        key = {
            "node_id": self._node_id,
            "slurm_job_id": record.job_id,
            "started_at_us": record.started_at_us,
        }
        values = {
            "user": _name(record.user),
            "account": _name(record.account),
            "mode": record.mode.value,
            "mode_reason": _name(record.mode_reason),
            "gpus": ",".join(record.gpus),
            "lend_bytes": record.lend_bytes,
            "slowdown_budget": record.slowdown_budget,
            "ended_at_us": record.ended_at_us,
            "intrusion_us": record.intrusion_us,
            "bubble_us": record.bubble_us,
            "filled_us": record.filled_us,
            "watched_us": record.watched_us,
            "calibrated_slowdown": record.calibrated_slowdown,
            "share_mode": None if record.share_mode is None else record.share_mode.value,
            "share_reason": _name(record.share_reason),
        }
        self._upsert(HostJob, key, values)

    def _fill_job(self, record: FillJobRecord) -> None:
        key = {
            "node_id": self._node_id,
            "slurm_job_id": record.job_id,
            "admitted_at_us": record.admitted_at_us,
        }
        values = {
            "gpu_id": self.gpu_id(record.gpu),
            "restart_count": record.restart_count,
            "user": _name(record.user),
            "account": _name(record.account),
            "host_slurm_job_id": record.host_job_id,
            "memory_bytes": record.memory_bytes,
            "ended_at_us": record.ended_at_us,
            "end_reason": _name(record.end_reason),
        }
        self._upsert(FillJob, key, values)

    def _anew(self, record: AnewRecord) -> None:
        for what, job_id, user, text in close_lost_jobs(self._session, self._node_id, record.at_us):
            add_event(
                self._session,
                at_us=record.at_us,
                what=what,
                text=text,
                node_id=self._node_id,
                job_id=job_id,
                user=user,
            )

    def _upsert(
        self, table: type[HostJob] | type[FillJob], key: dict[str, Any], values: dict[str, Any]
    ) -> None:
        row = self._session.scalars(select(table).filter_by(**key)).one_or_none()
        if row is None:
            self._session.add(table(**key, **values))
            self._session.flush()
            return
        for name, value in values.items():
            setattr(row, name, value)

    def _uses(self, records: Iterable[BubbleUseRecord]) -> None:
        rows = [
            {
                "gpu_id": self.gpu_id(record.gpu),
                "host_slurm_job_id": record.host_job_id,
                "host_step": record.host_step[:WORD_CHARACTERS],
                "fill_slurm_job_id": record.fill_job_id,
                "bubble_seq": record.bubble_seq,
                "bubble_began_at_us": record.bubble_began_at_us,
                "bubble_us": record.bubble_us,
                "cause": record.cause.value,
                "first_release_at_us": record.first_release_at_us,
                "used_us": record.used_us,
                "kernels": record.kernels,
                "copies": record.copies,
                "gpu_time_us": record.gpu_time_us,
                "intrusion_us": record.intrusion_us,
            }
            for record in records
        ]
        if rows:
            self._session.execute(insert(BubbleUse), rows)

    def _windows(self, records: Sequence[WindowRecord]) -> None:
        if not records:
            return
        known = self._known_windows(records)
        for record in records:
            key = self._window_key(record)
            row = known.get(key)
            if row is None:
                gpu_id, began_at_us, host_job_id, fill_job_id = key
                row = Window(
                    gpu_id=gpu_id,
                    began_at_us=began_at_us,
                    host_slurm_job_id=host_job_id,
                    fill_slurm_job_id=fill_job_id,
                )
                known[key] = row
                self._session.add(row)
            row.window_us = record.window_us
            row.bubbles = record.bubbles
            row.bubble_us = record.bubble_us
            row.used_bubbles = record.used_bubbles
            row.gpu_time_us = record.gpu_time_us
            row.intrusion_us = record.intrusion_us
            row.kernels = record.kernels

    def _window_key(self, record: WindowRecord) -> tuple[int, int, int, int]:
        return (
            self.gpu_id(record.gpu),
            record.began_at_us,
            record.host_job_id,
            record.fill_job_id or 0,
        )

    def _known_windows(
        self, records: Sequence[WindowRecord]
    ) -> dict[tuple[int, int, int, int], Window]:
        query = select(Window).where(
            Window.gpu_id.in_({self.gpu_id(record.gpu) for record in records}),
            Window.began_at_us.in_({record.began_at_us for record in records}),
        )
        return {
            (row.gpu_id, row.began_at_us, row.host_slurm_job_id, row.fill_slurm_job_id): row
            for row in self._session.scalars(query)
        }

    def _event(self, record: EventRecord) -> None:
        gpu_id = self.gpu_id(record.gpu) if record.gpu else None
        add_event(
            self._session,
            at_us=record.at_us,
            what=record.what,
            text=record.text,
            node_id=self._node_id,
            gpu_id=gpu_id,
            job_id=record.job_id,
            user=record.user,
        )


def add_event(
    session: Session,
    *,
    at_us: int,
    what: str,
    text: str,
    node_id: int | None = None,
    gpu_id: int | None = None,
    job_id: int | None = None,
    user: str | None = None,
) -> None:
    """A line of the audit log."""
    session.add(
        Event(
            at_us=at_us,
            node_id=node_id,
            gpu_id=gpu_id,
            what=what[:WORD_CHARACTERS],
            text=text,
            slurm_job_id=job_id,
            user=None if user is None else _name(user),
        )
    )


def _name(text: str) -> str:
    return text[:NAME_CHARACTERS]
