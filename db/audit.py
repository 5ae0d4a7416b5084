"""The audit's rows (one use of one bubble by one fill job) and the audit log's events.

Rows come newest first and are paged by key, never by offset: `after` is the key of the last row
seen. Names and values are those of the tables; what their keys stand for is joined in beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from db.models import BubbleUse, Event, FillJob, Gpu, HostJob, Node

Key = tuple[int, int]  # (time in us, id)


@dataclass(frozen=True)
class AuditFilter:
    """Which uses; times bound `first_release_at_us` (since included, until not)."""

    fill_job: int | None = None
    host_job: int | None = None
    gpu: str | None = None  # UUID
    node: str | None = None
    user: str | None = None  # owner of the fill job or of the host job
    cause: str | None = None
    since_us: int | None = None
    until_us: int | None = None


@dataclass(frozen=True)
class AuditRow:
    """One row of `bubble_uses`, and its GPU, node and users by name."""

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

    @property
    def key(self) -> Key:
        """Where this row stands in the paging order."""
        return (self.first_release_at_us, self.id)


@dataclass(frozen=True)
class AuditSums:
    """Sums over all rows of a filter."""

    rows: int
    bubble_us: float
    gpu_time_us: float
    intrusion_us: float
    kernels: int


@dataclass(frozen=True)
class EventFilter:
    """Which lines of the audit log (since included, until not)."""

    what: str | None = None
    job: int | None = None
    node: str | None = None
    gpu: str | None = None  # UUID
    user: str | None = None
    since_us: int | None = None
    until_us: int | None = None


@dataclass(frozen=True)
class EventRow:
    """One line of the audit log; names are None where an event has none."""

    id: int
    at_us: int
    what: str
    text: str
    slurm_job_id: int | None
    user: str | None
    node: str | None
    gpu_uuid: str | None

    @property
    def key(self) -> Key:
        """Where this row stands in the paging order."""
        return (self.at_us, self.id)


def _older(
    time: InstrumentedAttribute[int], row_id: InstrumentedAttribute[int], after: Key | None
) -> list[ColumnElement[bool]]:
    if after is None:
        return []
    return [or_(time < after[0], and_(time == after[0], row_id < after[1]))]


def _span(
    time: InstrumentedAttribute[int], since_us: int | None, until_us: int | None
) -> list[ColumnElement[bool]]:
    bounds: list[ColumnElement[bool]] = []
    if since_us is not None:
        bounds.append(time >= since_us)
    if until_us is not None:
        bounds.append(time < until_us)
    return bounds


def _audit_conditions(wanted: AuditFilter) -> list[ColumnElement[bool]]:
    """Conditions on `bubble_uses`; names become keys by subquery, so that indexes serve."""
    found = _span(BubbleUse.first_release_at_us, wanted.since_us, wanted.until_us)
    if wanted.fill_job is not None:
        found.append(BubbleUse.fill_slurm_job_id == wanted.fill_job)
    if wanted.host_job is not None:
        found.append(BubbleUse.host_slurm_job_id == wanted.host_job)
    if wanted.cause is not None:
        found.append(BubbleUse.cause == wanted.cause)
    if wanted.gpu is not None:
        found.append(BubbleUse.gpu_id.in_(select(Gpu.id).where(Gpu.uuid == wanted.gpu)))
    if wanted.node is not None:
        on_node = select(Gpu.id).join(Node, Gpu.node_id == Node.id).where(Node.name == wanted.node)
        found.append(BubbleUse.gpu_id.in_(on_node))
    if wanted.user is not None:
        fills = select(FillJob.slurm_job_id).where(FillJob.user == wanted.user)
        hosts = select(HostJob.slurm_job_id).where(HostJob.user == wanted.user)
        found.append(
            or_(BubbleUse.fill_slurm_job_id.in_(fills), BubbleUse.host_slurm_job_id.in_(hosts))
        )
    return found


def audit_rows(
    session: Session, wanted: AuditFilter, *, limit: int, after: Key | None = None
) -> list[AuditRow]:
    """At most `limit` uses, newest first, older than `after`."""
    query = (
        select(BubbleUse, Gpu.uuid, Node.name)
        .join(Gpu, BubbleUse.gpu_id == Gpu.id)
        .join(Node, Gpu.node_id == Node.id)
        .where(*_audit_conditions(wanted))
        .where(*_older(BubbleUse.first_release_at_us, BubbleUse.id, after))
        .order_by(BubbleUse.first_release_at_us.desc(), BubbleUse.id.desc())
        .limit(limit)
    )
    rows = session.execute(query).all()
    hosts = _owners(session, HostJob, {use.host_slurm_job_id for use, _, _ in rows})
    fills = _owners(session, FillJob, {use.fill_slurm_job_id for use, _, _ in rows})
    columns = [column.key for column in BubbleUse.__table__.columns]
    return [
        AuditRow(
            **{name: getattr(use, name) for name in columns},
            node=node,
            gpu_uuid=uuid,
            host_user=hosts.get(use.host_slurm_job_id),
            fill_user=fills.get(use.fill_slurm_job_id),
        )
        for use, uuid, node in rows
    ]


def audit_sums(session: Session, wanted: AuditFilter) -> AuditSums:
    """Count and sums of all rows that the filter leaves."""
    row = session.execute(
        select(
            func.count(BubbleUse.id),
            func.coalesce(func.sum(BubbleUse.bubble_us), 0),
            func.coalesce(func.sum(BubbleUse.gpu_time_us), 0),
            func.coalesce(func.sum(BubbleUse.intrusion_us), 0),
            func.coalesce(func.sum(BubbleUse.kernels), 0),
        ).where(*_audit_conditions(wanted))
    ).one()
    return AuditSums(row[0], float(row[1]), float(row[2]), float(row[3]), int(row[4]))


def _owners(
    session: Session, table: type[HostJob] | type[FillJob], jobs: set[int]
) -> dict[int, str]:
    """User of each job, by Slurm job id."""
    query = select(table.slurm_job_id, func.max(table.user)).where(table.slurm_job_id.in_(jobs))
    found = session.execute(query.group_by(table.slurm_job_id))
    return {row[0]: row[1] for row in found}


def event_rows(
    session: Session, wanted: EventFilter, *, limit: int, after: Key | None = None
) -> list[EventRow]:
    """At most `limit` events, newest first, older than `after`."""
    query = (
        select(Event, Node.name, Gpu.uuid)
        .outerjoin(Node, Event.node_id == Node.id)
        .outerjoin(Gpu, Event.gpu_id == Gpu.id)
        .where(*_span(Event.at_us, wanted.since_us, wanted.until_us))
        .where(*_older(Event.at_us, Event.id, after))
        .order_by(Event.at_us.desc(), Event.id.desc())
        .limit(limit)
    )
    exact = (
        (Event.what, wanted.what),
        (Event.slurm_job_id, wanted.job),
        (Event.user, wanted.user),
        (Node.name, wanted.node),
        (Gpu.uuid, wanted.gpu),
    )
    for column, value in exact:
        if value is not None:
            query = query.where(column == value)
    return [
        EventRow(
            id=event.id,
            at_us=event.at_us,
            what=event.what,
            text=event.text,
            slurm_job_id=event.slurm_job_id,
            user=event.user,
            node=node,
            gpu_uuid=uuid,
        )
        for event, node, uuid in session.execute(query)
    ]


def event_kinds(session: Session) -> list[str]:
    """Every word in use for `what`, in alphabetical order."""
    return list(session.scalars(select(Event.what).distinct().order_by(Event.what)))
