"""Host jobs and fill jobs with their figures, as the command line and the dashboard list them.

A host job is summed over its nodes and restarts, a fill job over its starts. Times are UTC
microseconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db.models import FillJob, Gpu, HostJob, Node, Window
from db.queries import Use, use_of, window_sums


@dataclass
class HostSummary:
    """A host job over all its nodes."""

    job_id: int
    user: str
    account: str
    mode: str
    mode_reason: str
    nodes: list[str] = field(default_factory=list)
    gpus: list[str] = field(default_factory=list)
    lend_bytes: int | None = None
    slowdown_budget: float = 0.0
    started_at_us: int = 0
    ended_at_us: int | None = None
    use: Use = field(default_factory=Use)


@dataclass
class FillSummary:
    """A fill job over all its starts; `use` has no wall time of its own but that of its runs."""

    job_id: int
    user: str
    account: str
    memory_bytes: int
    admitted_at_us: int
    ended_at_us: int | None
    end_reason: str
    starts: int = 0
    run_us: int = 0
    nodes: list[str] = field(default_factory=list)
    gpus: list[str] = field(default_factory=list)
    host_jobs: list[int] = field(default_factory=list)
    use: Use = field(default_factory=Use)


def host_jobs(
    session: Session, *, now_us: int, job_id: int | None = None, limit: int | None = None
) -> list[HostSummary]:
    """Host jobs, newest first; the figures are the job's own (its records, not the windows)."""
    query = select(HostJob, Node.name).join(Node, HostJob.node_id == Node.id)
    if job_id is not None:
        query = query.where(HostJob.slurm_job_id == job_id)
    elif limit is not None:
        newest = (
            select(HostJob.slurm_job_id)
            .group_by(HostJob.slurm_job_id)
            .order_by(func.max(HostJob.started_at_us).desc())
            .limit(limit)
        ).subquery()
        query = query.join(newest, newest.c.slurm_job_id == HostJob.slurm_job_id)
    jobs: dict[int, HostSummary] = {}
    for row, node in session.execute(query.order_by(HostJob.started_at_us.desc(), Node.name)):
        job = jobs.setdefault(
            row.slurm_job_id,
            HostSummary(
                job_id=row.slurm_job_id,
                user=row.user,
                account=row.account,
                mode=row.mode,
                mode_reason=row.mode_reason,
                lend_bytes=row.lend_bytes,
                slowdown_budget=row.slowdown_budget,
                started_at_us=row.started_at_us,
                ended_at_us=row.ended_at_us,
            ),
        )
        gpus = row.gpus.split(",") if row.gpus else []
        end = now_us if row.ended_at_us is None else row.ended_at_us
        job.nodes += [] if node in job.nodes else [node]
        job.gpus += [uuid for uuid in gpus if uuid not in job.gpus]
        job.started_at_us = min(job.started_at_us, row.started_at_us)
        job.ended_at_us = _later_end(job.ended_at_us, row.ended_at_us)
        job.use.wall_us += max(0, end - row.started_at_us) * len(gpus)
        job.use.bubble_us += row.bubble_us
        job.use.filled_us += row.filled_us
        job.use.intrusion_us += row.intrusion_us
    return list(jobs.values())


def fill_jobs(
    session: Session, *, now_us: int, job_id: int | None = None, limit: int | None = None
) -> list[FillSummary]:
    """Fill jobs, newest start first, with what their windows sum up to."""
    query = (
        select(FillJob, Node.name, Gpu.uuid)
        .join(Node, FillJob.node_id == Node.id)
        .join(Gpu, FillJob.gpu_id == Gpu.id)
    )
    if job_id is not None:
        query = query.where(FillJob.slurm_job_id == job_id)
    elif limit is not None:
        newest = (
            select(FillJob.slurm_job_id)
            .group_by(FillJob.slurm_job_id)
            .order_by(func.max(FillJob.admitted_at_us).desc())
            .limit(limit)
        ).subquery()
        query = query.join(newest, newest.c.slurm_job_id == FillJob.slurm_job_id)
    jobs: dict[int, FillSummary] = {}
    for row, node, uuid in session.execute(query.order_by(FillJob.admitted_at_us.desc())):
        job = jobs.setdefault(
            row.slurm_job_id,
            FillSummary(
                job_id=row.slurm_job_id,
                user=row.user,
                account=row.account,
                memory_bytes=row.memory_bytes,
                admitted_at_us=row.admitted_at_us,
                ended_at_us=row.ended_at_us,
                end_reason=row.end_reason,
            ),
        )
        end = now_us if row.ended_at_us is None else row.ended_at_us
        job.starts += 1
        job.run_us += max(0, end - row.admitted_at_us)
        job.admitted_at_us = min(job.admitted_at_us, row.admitted_at_us)
        job.nodes += [] if node in job.nodes else [node]
        job.gpus += [] if uuid in job.gpus else [uuid]
        host = row.host_slurm_job_id
        job.host_jobs += [] if host is None or host in job.host_jobs else [host]
    sums = session.execute(
        select(Window.fill_slurm_job_id, *window_sums())
        .where(Window.fill_slurm_job_id.in_(list(jobs)))
        .group_by(Window.fill_slurm_job_id)
    )
    for used in sums:
        jobs[used[0]].use = use_of(used[1:])
    return list(jobs.values())


def _later_end(first: int | None, second: int | None) -> int | None:
    """End of a job that ended twice (on two nodes): None while one of them runs."""
    return None if first is None or second is None else max(first, second)
