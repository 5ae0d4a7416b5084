"""Whole jobs: a host job over its nodes and restarts, a fill job over its starts.

Built on the rows of db/queries/jobs.py; times are UTC microseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from db.models import FillJob, Gpu, Window
from db.queries.jobs import (
    FOR_EVER_US,
    FillStart,
    HostJobRow,
    JobFilter,
    bubble_share,
    fill_jobs,
    watched,
)
from db.queries.overview import Bucket
from db.queries.shares import COLUMNS, ratio, shares_of

Item = TypeVar("Item")


@dataclass(frozen=True)
class HostJobWhole:
    """A host job; lengths are sums over its GPUs."""

    job_id: int
    user: str
    account: str
    mode: str
    mode_reason: str
    nodes: tuple[str, ...]
    gpus: tuple[str, ...]
    lend_bytes: int | None
    slowdown_budget: float
    started_at_us: int
    ended_at_us: int | None
    gpu_wall_us: int
    covered_us: int  # of it, what the figures below are of: less while the job runs
    bubble_us: int
    filled_us: int
    watched_us: int | None  # 0: nobody watched it; None: not recorded
    intrusion_us: int
    calibrated_slowdown: float | None  # the most on any of its nodes; None: not known yet
    share_mode: str | None  # timeslice, mps, mixed (nodes differ); None: not recorded
    share_reason: str

    @property
    def bubble_share(self) -> float | None:
        """Bubble time of the GPU time covered; None where nobody watched."""
        return bubble_share(self.bubble_us, self.covered_us, self.watched_us)

    @property
    def filled_share(self) -> float | None:
        """Filled part of its bubbles."""
        return ratio(self.filled_us, self.bubble_us)

    @property
    def intrusion_fraction(self) -> float | None:
        """Time that ready training work waited for fill, of the GPU time covered."""
        return ratio(self.intrusion_us, self.covered_us)


@dataclass(frozen=True)
class FillJobWhole:
    """A fill job; `run_us` is the time for which it was admitted."""

    job_id: int
    user: str
    account: str
    memory_bytes: int
    starts: int
    nodes: tuple[str, ...]
    gpus: tuple[str, ...]
    host_job_ids: tuple[int, ...]
    admitted_at_us: int
    ended_at_us: int | None
    end_reason: str
    run_us: int
    covered_us: int  # of it, what the figures below are of: less while the job runs
    bubbles_used: int
    kernels: int
    gpu_time_us: float
    intrusion_us: float

    @property
    def gpu_share(self) -> float | None:
        """GPU time that it had, of the time that its figures cover."""
        return ratio(self.gpu_time_us, self.covered_us)


def whole_host_jobs(rows: Iterable[HostJobRow]) -> list[HostJobWhole]:
    """One entry a job, in the order in which jobs first come up (rows: newest first)."""
    groups: dict[int, list[HostJobRow]] = {}
    for row in rows:
        groups.setdefault(row.job_id, []).append(row)
    return [
        HostJobWhole(
            job_id=job_id,
            user=parts[0].user,
            account=parts[0].account,
            mode=parts[0].mode,
            mode_reason=parts[0].mode_reason,
            nodes=_each_once(sorted(part.node for part in parts)),
            gpus=_each_once(uuid for part in parts for uuid in part.gpus),
            lend_bytes=parts[0].lend_bytes,
            slowdown_budget=min(part.slowdown_budget for part in parts),
            started_at_us=min(part.started_at_us for part in parts),
            ended_at_us=_end(part.ended_at_us for part in parts),
            gpu_wall_us=sum(part.wall_us * len(part.gpus) for part in parts),
            covered_us=sum(part.covered_us for part in parts),
            bubble_us=sum(part.bubble_us for part in parts),
            filled_us=sum(part.filled_us for part in parts),
            watched_us=watched(parts),
            intrusion_us=sum(part.intrusion_us for part in parts),
            calibrated_slowdown=largest_slowdown(parts),
            share_mode=_one_mode(parts),
            share_reason="; ".join(_each_once(part.share_reason for part in parts)),
        )
        for job_id, parts in groups.items()
    ]


def _one_mode(parts: Iterable[HostJobRow]) -> str | None:
    modes = _each_once(part.share_mode for part in parts)
    return modes[0] if len(modes) == 1 else "mixed"


def largest_slowdown(parts: Iterable[HostJobRow]) -> float | None:
    """Of a job with parts on several nodes, which wait for each other; None: not known yet."""
    known = [each.calibrated_slowdown for each in parts if each.calibrated_slowdown is not None]
    return max(known, default=None)


def whole_fill_jobs(rows: Iterable[FillStart], *, now_us: int) -> list[FillJobWhole]:
    """One entry a job, in the order in which jobs first come up (rows: newest start first)."""
    groups: dict[int, list[FillStart]] = {}
    for row in rows:
        groups.setdefault(row.job_id, []).append(row)
    return [
        FillJobWhole(
            job_id=job_id,
            user=parts[0].user,
            account=parts[0].account,
            memory_bytes=parts[0].memory_bytes,
            starts=starts_of(parts),
            nodes=_each_once(part.node for part in parts),
            gpus=_each_once(part.gpu for part in parts),
            host_job_ids=_each_once(
                part.host_job_id for part in parts if part.host_job_id is not None
            ),
            admitted_at_us=min(part.admitted_at_us for part in parts),
            ended_at_us=_end(part.ended_at_us for part in parts),
            end_reason=parts[0].end_reason,
            run_us=sum(_run_us(part, now_us) for part in parts),
            covered_us=sum(_run_us(part, min(now_us, part.windows_end_us)) for part in parts),
            bubbles_used=sum(part.bubbles_used for part in parts),
            kernels=sum(part.kernels for part in parts),
            gpu_time_us=sum(part.gpu_time_us for part in parts),
            intrusion_us=sum(part.intrusion_us for part in parts),
        )
        for job_id, parts in groups.items()
    ]


def starts_of(parts: Iterable[FillStart]) -> int:
    """How often a fill job was started: a start on several nodes has a part on each."""
    return len({part.restart_count for part in parts})


def fill_jobs_beside(session: Session, host_job_id: int, *, now_us: int) -> list[FillJobWhole]:
    """Fill jobs that ran beside one host job; starts beside other hosts are left out."""
    found = session.scalars(
        select(FillJob.slurm_job_id).where(FillJob.host_slurm_job_id == host_job_id).distinct()
    )
    starts = [
        start
        for job_id in found
        for start in fill_jobs(session, JobFilter(job_id=job_id), limit=1000)
        if start.host_job_id == host_job_id
    ]
    return sorted(whole_fill_jobs(starts, now_us=now_us), key=lambda job: -job.gpu_time_us)


def job_timeline(
    session: Session,
    *,
    since_us: int,
    until_us: int,
    resolution_us: int,
    host_job_id: int | None = None,
    fill_job_id: int | None = None,
) -> dict[str, list[Bucket]]:
    """As `overview.timeline`, but of one job.

    For a host job its own windows; for a fill job the training's side on its GPUs while it was
    there, and only this fill's use.
    """
    number = ((Window.began_at_us - since_us) // resolution_us).label("number")
    query = (
        select(Gpu.uuid, number, *COLUMNS)
        .join(Gpu, Window.gpu_id == Gpu.id)
        .where(Window.began_at_us >= since_us, Window.began_at_us < until_us)
        .group_by(Gpu.uuid, number)
        .order_by(Gpu.uuid, number)
    )
    if host_job_id is not None:
        query = query.where(Window.host_slurm_job_id == host_job_id)
    if fill_job_id is not None:
        there = select(FillJob.id).where(
            FillJob.slurm_job_id == fill_job_id,
            FillJob.gpu_id == Window.gpu_id,
            Window.began_at_us + Window.window_us > FillJob.admitted_at_us,
            Window.began_at_us < func.coalesce(FillJob.ended_at_us, FOR_EVER_US),
        )
        own = and_(Window.fill_slurm_job_id == 0, there.exists())
        query = query.where(or_(Window.fill_slurm_job_id == fill_job_id, own))
    found: dict[str, list[Bucket]] = {}
    for uuid, index, *values in session.execute(query):
        began_at_us = since_us + int(index) * resolution_us
        length_us = min(resolution_us, until_us - began_at_us)
        found.setdefault(uuid, []).append(Bucket(began_at_us, length_us, shares_of(values)))
    return found


def _each_once(values: Iterable[Item]) -> tuple[Item, ...]:
    return tuple(dict.fromkeys(values))


def _end(ends: Iterable[int | None]) -> int | None:
    """End of a job with several parts: None while one of them runs."""
    found = list(ends)
    return max(end for end in found if end is not None) if None not in found else None


def _run_us(start: FillStart, now_us: int) -> int:
    end = now_us if start.ended_at_us is None else start.ended_at_us
    return max(0, end - start.admitted_at_us)
