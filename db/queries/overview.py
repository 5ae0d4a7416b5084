"""GPUs as they stand now, and how their time was spent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db.models import FillJob, Gpu, HostJob, Node, Window
from db.queries.shares import COLUMNS, Shares, shares_of

RECENT_US = 60_000_000


@dataclass(frozen=True)
class FillNow:
    """A fill job that is admitted now."""

    job_id: int
    user: str
    memory_bytes: int
    admitted_at_us: int


@dataclass(frozen=True)
class GpuNow:
    """One GPU: whose training holds it, who fills it, and its last minute."""

    node: str
    twin: str
    uuid: str
    minor: int
    name: str
    memory_bytes: int
    simulated: bool
    last_report_at_us: int  # of its agent; written about every ten seconds
    node_off: bool  # filling is off on this node
    host_job_id: int | None
    host_user: str | None
    host_mode: str | None  # off, observe, on
    host_mode_reason: str
    host_share_mode: str | None  # timeslice, mps
    host_share_reason: str
    host_lend_bytes: int | None  # the most that it lends; None: what the site allows
    host_slowdown: float | None  # what fill has cost it by comparison; None: not known yet
    fills: tuple[FillNow, ...]
    recent: Shares  # of the last whole windows


def ledger_begins_at_us(session: Session) -> int | None:
    """When the earliest window began; None while there is none."""
    return session.scalar(select(func.min(Window.began_at_us)))


def gpus_now(session: Session, *, now_us: int, recent_us: int = RECENT_US) -> list[GpuNow]:
    """All GPUs, by node and minor; `recent` covers the `recent_us` before `now_us`."""
    hosts = _open_host_jobs(session)
    fills = _open_fill_jobs(session)
    recent = _recent(session, now_us - recent_us)
    nothing = Shares(0.0, 0.0, 0.0, 0.0)
    found = []
    query = select(Gpu, Node).join(Node, Gpu.node_id == Node.id).order_by(Node.name, Gpu.minor)
    for gpu, node in session.execute(query):
        host = hosts.get((node.id, gpu.uuid))
        found.append(
            GpuNow(
                node=node.name,
                twin=node.twin,
                uuid=gpu.uuid,
                minor=gpu.minor,
                name=gpu.name,
                memory_bytes=gpu.memory_bytes,
                simulated=bool(gpu.simulated),
                last_report_at_us=node.last_report_at_us,
                node_off=bool(node.off),
                host_job_id=host.slurm_job_id if host else None,
                host_user=host.user if host else None,
                host_mode=host.mode if host else None,
                host_mode_reason=host.mode_reason if host else "",
                host_share_mode=host.share_mode if host else None,
                host_share_reason=(host.share_reason or "") if host else "",
                host_lend_bytes=host.lend_bytes if host else None,
                host_slowdown=host.calibrated_slowdown if host else None,
                fills=tuple(fills.get(gpu.id, ())),
                recent=recent.get(gpu.id, nothing),
            )
        )
    return found


def _open_host_jobs(session: Session) -> dict[tuple[int, str], HostJob]:
    """By node and GPU; the latest where several are open (an agent that died in between)."""
    query = select(HostJob).where(HostJob.ended_at_us.is_(None)).order_by(HostJob.started_at_us)
    return {
        (job.node_id, uuid): job for job in session.scalars(query) for uuid in job.gpus.split(",")
    }


def _open_fill_jobs(session: Session) -> dict[int, list[FillNow]]:
    """By GPU; one entry a job, its latest start."""
    query = select(FillJob).where(FillJob.ended_at_us.is_(None)).order_by(FillJob.admitted_at_us)
    found: dict[int, dict[int, FillNow]] = defaultdict(dict)
    for job in session.scalars(query):
        found[job.gpu_id][job.slurm_job_id] = FillNow(
            job.slurm_job_id, job.user, job.memory_bytes, job.admitted_at_us
        )
    return {gpu_id: [jobs[job_id] for job_id in sorted(jobs)] for gpu_id, jobs in found.items()}


def _recent(session: Session, since_us: int) -> dict[int, Shares]:
    query = (
        select(Window.gpu_id, *COLUMNS)
        .where(Window.began_at_us >= since_us)
        .group_by(Window.gpu_id)
    )
    return {row[0]: shares_of(row[1:]) for row in session.execute(query)}


@dataclass(frozen=True)
class Bucket:
    """A stretch of one GPU's time. What `shares` leaves of `length_us` had no host job."""

    began_at_us: int
    length_us: int
    shares: Shares

    @property
    def idle_us(self) -> float:
        """Time without a host job (or with an agent that could not watch it)."""
        return max(0.0, self.length_us - self.shares.wall_us)


def timeline(
    session: Session,
    *,
    since_us: int,
    until_us: int,
    resolution_us: int = 10_000_000,
    gpus: Collection[str] | None = None,
) -> dict[str, list[Bucket]]:
    """How each GPU's time was spent, by UUID, in buckets of `resolution_us` from `since_us` on.

    Windows are ten seconds long, and one counts where it began, so a finer resolution shows no
    more. Buckets without any window are left out. Raises ValueError for an empty range.
    """
    if until_us <= since_us or resolution_us <= 0:
        raise ValueError("timeline: until_us must be after since_us, resolution_us above 0")
    number = ((Window.began_at_us - since_us) // resolution_us).label("number")
    query = (
        select(Gpu.uuid, number, *COLUMNS)
        .join(Gpu, Window.gpu_id == Gpu.id)
        .where(Window.began_at_us >= since_us, Window.began_at_us < until_us)
        .group_by(Gpu.uuid, number)
        .order_by(Gpu.uuid, number)
    )
    if gpus is not None:
        query = query.where(Gpu.uuid.in_(gpus))
    found: dict[str, list[Bucket]] = defaultdict(list)
    for uuid, index, *values in session.execute(query):
        began_at_us = since_us + int(index) * resolution_us
        length_us = min(resolution_us, until_us - began_at_us)
        found[uuid].append(Bucket(began_at_us, length_us, shares_of(values)))
    return dict(found)
