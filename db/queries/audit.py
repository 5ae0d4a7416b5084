"""The audit: every bubble that was used, by whom, and the log of events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from db.models import BubbleUse, Event, FillJob, Gpu, HostJob, Node

Row = TypeVar("Row")
Key = tuple[int, int]  # time and row number of the last row of a page


@dataclass(frozen=True)
class Page(Generic[Row]):
    """Some rows, newest first, and where the next page begins (None: this was the last)."""

    rows: list[Row]
    next_key: Key | None


@dataclass(frozen=True)
class AuditFilter:
    """Which uses of bubbles. Every condition given must hold."""

    job_id: int | None = None  # as host or as fill
    host_job_id: int | None = None
    fill_job_id: int | None = None
    gpu: str | None = None  # UUID
    node: str | None = None
    cause: str | None = None
    user: str | None = None  # owner of the host job or of the fill job
    since_us: int | None = None
    until_us: int | None = None


@dataclass(frozen=True)
class AuditRow:
    """One use of one bubble by one fill job: a row of `bubble_uses` under the table's names, then
    its node, GPU and users by name."""

    id: int
    gpu_id: int
    host_slurm_job_id: int
    host_step: str
    fill_slurm_job_id: int
    bubble_seq: int
    bubble_began_at_us: int
    bubble_us: float
    cause: str
    first_release_at_us: int
    used_us: float
    kernels: int
    copies: int
    gpu_time_us: float
    intrusion_us: float
    node: str
    gpu_uuid: str
    host_user: str | None
    fill_user: str | None


@dataclass(frozen=True)
class AuditSums:
    """Sums over all rows of a filter."""

    rows: int
    bubble_us: float
    gpu_time_us: float
    intrusion_us: float
    kernels: int


_USE_COLUMNS = tuple(column.key for column in BubbleUse.__table__.columns)


def audit(
    session: Session, which: AuditFilter, *, limit: int = 100, after: Key | None = None
) -> Page[AuditRow]:
    """Uses of bubbles, newest first; `after` is the `next_key` of the page before."""
    _check(limit)
    query = (
        select(BubbleUse, Gpu.uuid, Node.name)
        .join(Gpu, BubbleUse.gpu_id == Gpu.id)
        .join(Node, Gpu.node_id == Node.id)
    )
    at_us, row_id = BubbleUse.first_release_at_us, BubbleUse.id
    query = query.where(*_audit_conditions(which), *_behind(at_us, row_id, after))
    # One row more than asked tells whether there is a next page.
    query = query.order_by(at_us.desc(), row_id.desc()).limit(limit + 1)
    found = session.execute(query).all()
    hosts = _owners(session, HostJob, (use.host_slurm_job_id for use, _, _ in found))
    fills = _owners(session, FillJob, (use.fill_slurm_job_id for use, _, _ in found))
    rows = [
        AuditRow(
            **{name: getattr(use, name) for name in _USE_COLUMNS},
            node=node,
            gpu_uuid=uuid,
            host_user=hosts.get(use.host_slurm_job_id),
            fill_user=fills.get(use.fill_slurm_job_id),
        )
        for use, uuid, node in found[:limit]
    ]
    more = len(found) > limit
    return Page(rows, (rows[-1].first_release_at_us, rows[-1].id) if more else None)


def audit_sums(session: Session, which: AuditFilter) -> AuditSums:
    """Count and sums of all rows that the filter leaves."""
    sums = (BubbleUse.bubble_us, BubbleUse.gpu_time_us, BubbleUse.intrusion_us, BubbleUse.kernels)
    row = session.execute(
        select(func.count(BubbleUse.id), *(func.coalesce(func.sum(column), 0) for column in sums))
        .join(Gpu, BubbleUse.gpu_id == Gpu.id)
        .join(Node, Gpu.node_id == Node.id)
        .where(*_audit_conditions(which))
    ).one()
    return AuditSums(row[0], float(row[1]), float(row[2]), float(row[3]), int(row[4]))


def _audit_conditions(which: AuditFilter) -> list[ColumnElement[bool]]:
    host, fill = BubbleUse.host_slurm_job_id, BubbleUse.fill_slurm_job_id
    conditions: list[ColumnElement[bool]] = []
    if which.job_id is not None:
        conditions.append(or_(host == which.job_id, fill == which.job_id))
    if which.host_job_id is not None:
        conditions.append(host == which.host_job_id)
    if which.fill_job_id is not None:
        conditions.append(fill == which.fill_job_id)
    if which.cause is not None:
        conditions.append(BubbleUse.cause == which.cause)
    if which.gpu is not None:
        conditions.append(Gpu.uuid == which.gpu)
    if which.node is not None:
        conditions.append(Node.name == which.node)
    if which.user is not None:
        conditions.append(
            or_(
                host.in_(select(HostJob.slurm_job_id).where(HostJob.user == which.user)),
                fill.in_(select(FillJob.slurm_job_id).where(FillJob.user == which.user)),
            )
        )
    return conditions + _within(BubbleUse.first_release_at_us, which.since_us, which.until_us)


def _owners(
    session: Session, table: type[HostJob] | type[FillJob], job_ids: Iterable[int]
) -> dict[int, str]:
    wanted = set(job_ids)
    if not wanted:
        return {}
    query = select(table.slurm_job_id, table.user).where(table.slurm_job_id.in_(wanted)).distinct()
    return {row.slurm_job_id: row.user for row in session.execute(query)}


@dataclass(frozen=True)
class EventFilter:
    """Which events. Every condition given must hold."""

    what: str | None = None
    job_id: int | None = None
    gpu: str | None = None  # UUID
    node: str | None = None
    user: str | None = None
    since_us: int | None = None
    until_us: int | None = None


@dataclass(frozen=True)
class EventRow:
    """A line of the audit log under the table's names; node and GPU by name."""

    id: int
    at_us: int
    what: str
    text: str
    node: str | None
    gpu_uuid: str | None
    slurm_job_id: int | None
    user: str | None


def events(
    session: Session, which: EventFilter, *, limit: int = 100, after: Key | None = None
) -> Page[EventRow]:
    """Events, newest first; `after` is the `next_key` of the page before."""
    _check(limit)
    query = (
        select(Event, Node.name, Gpu.uuid)
        .outerjoin(Node, Event.node_id == Node.id)
        .outerjoin(Gpu, Event.gpu_id == Gpu.id)
    )
    equal = (
        (Event.what, which.what),
        (Event.slurm_job_id, which.job_id),
        (Gpu.uuid, which.gpu),
        (Node.name, which.node),
        (Event.user, which.user),
    )
    for column, value in equal:
        if value is not None:
            query = query.where(column == value)
    query = query.where(
        *_within(Event.at_us, which.since_us, which.until_us),
        *_behind(Event.at_us, Event.id, after),
    )
    query = query.order_by(Event.at_us.desc(), Event.id.desc()).limit(limit + 1)
    found = session.execute(query).all()
    rows = [
        EventRow(
            id=event.id,
            at_us=event.at_us,
            what=event.what,
            text=event.text,
            node=node,
            gpu_uuid=uuid,
            slurm_job_id=event.slurm_job_id,
            user=event.user,
        )
        for event, node, uuid in found[:limit]
    ]
    return Page(rows, (rows[-1].at_us, rows[-1].id) if len(found) > limit else None)


def event_kinds(session: Session) -> list[str]:
    """Every word in use for `what`, in alphabetical order."""
    return list(session.scalars(select(Event.what).distinct().order_by(Event.what)))


def _within(
    column: InstrumentedAttribute[int], since_us: int | None, until_us: int | None
) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if since_us is not None:
        conditions.append(column >= since_us)
    if until_us is not None:
        conditions.append(column < until_us)
    return conditions


def _behind(
    at_us: InstrumentedAttribute[int], row_id: InstrumentedAttribute[int], after: Key | None
) -> list[ColumnElement[bool]]:
    """Rows that follow `after` when the newest comes first."""
    if after is None:
        return []
    last_at_us, last_id = after
    return [or_(at_us < last_at_us, and_(at_us == last_at_us, row_id < last_id))]


def _check(limit: int) -> None:
    if limit < 1:
        raise ValueError("limit must be at least 1")
