"""Host jobs and fill jobs with their figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import ColumnElement, ScalarSelect, and_, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from db.models import FillJob, Gpu, HostJob, Node, Window
from db.queries.shares import ratio, sum_of

FOR_EVER_US = 2**62


@dataclass(frozen=True)
class JobFilter:
    """Which jobs; a job counts for a time range when it ran within it."""

    job_id: int | None = None
    user: str | None = None
    running: bool | None = None
    since_us: int | None = None
    until_us: int | None = None


@dataclass(frozen=True)
class HostJobRow:
    """A training allocation on one node."""

    node: str
    job_id: int
    user: str
    account: str
    mode: str
    mode_reason: str
    gpus: tuple[str, ...]
    lend_bytes: int | None
    slowdown_budget: float
    started_at_us: int
    ended_at_us: int | None
    wall_us: int  # so far
    bubble_us: int  # over its GPUs
    filled_us: int
    watched_us: int | None  # over its GPUs; 0: nobody watched it; None: not recorded
    intrusion_us: int
    calibrated_slowdown: float | None  # what fill cost by comparison; None: not known yet
    share_mode: str | None  # timeslice, mps; None: not recorded
    share_reason: str

    @property
    def covered_us(self) -> int:
        """GPU time that its bubbles and its intrusion are known for: of a job that runs the time
        watched in closed windows, else all of it."""
        if self.ended_at_us is None and self.watched_us is not None:
            return self.watched_us
        return self.wall_us * len(self.gpus)

    @property
    def bubble_share(self) -> float | None:
        """None too where nobody watched."""
        return bubble_share(self.bubble_us, self.covered_us, self.watched_us)

    @property
    def filled_share(self) -> float | None:
        """Filled part of its bubbles."""
        return ratio(self.filled_us, self.bubble_us)

    @property
    def intrusion_fraction(self) -> float | None:
        """Time that ready training work waited for fill, of the GPU time that is covered."""
        return ratio(self.intrusion_us, self.covered_us)


def bubble_share(bubble_us: int, covered_us: int, watched_us: int | None) -> float | None:
    """Bubble time of the GPU time covered; of a job that nobody watched no bubbles are known."""
    return None if watched_us == 0 else ratio(bubble_us, covered_us)


def watched(parts: Iterable[HostJobRow]) -> int | None:
    """Time in which the parts of a job were watched; None where one does not say."""
    found = [each.watched_us for each in parts]
    known = [each for each in found if each is not None]
    return sum(known) if len(known) == len(found) else None


def host_jobs(
    session: Session, which: JobFilter, *, now_us: int, limit: int = 100
) -> list[HostJobRow]:
    """Newest first."""
    query = select(HostJob, Node.name).join(Node, HostJob.node_id == Node.id)
    query = query.where(*_conditions(which, HostJob, HostJob.started_at_us))
    query = query.order_by(HostJob.started_at_us.desc(), HostJob.id.desc()).limit(limit)
    return [_host_row(job, node, now_us) for job, node in session.execute(query)]


def _host_row(job: HostJob, node: str, now_us: int) -> HostJobRow:
    end_us = now_us if job.ended_at_us is None else job.ended_at_us
    return HostJobRow(
        node=node,
        job_id=job.slurm_job_id,
        user=job.user,
        account=job.account,
        mode=job.mode,
        mode_reason=job.mode_reason,
        gpus=tuple(uuid for uuid in job.gpus.split(",") if uuid),
        lend_bytes=job.lend_bytes,
        slowdown_budget=job.slowdown_budget,
        started_at_us=job.started_at_us,
        ended_at_us=job.ended_at_us,
        wall_us=max(0, end_us - job.started_at_us),
        bubble_us=job.bubble_us,
        filled_us=job.filled_us,
        watched_us=job.watched_us,
        intrusion_us=job.intrusion_us,
        calibrated_slowdown=job.calibrated_slowdown,
        share_mode=job.share_mode,
        share_reason=job.share_reason or "",
    )


@dataclass(frozen=True)
class FillStart:
    """One start of a fill job (a requeue starts it again) and what it used.

    The figures come from the windows: at most ten seconds behind.
    """

    node: str
    gpu: str
    job_id: int
    restart_count: int
    user: str
    account: str
    host_job_id: int | None
    memory_bytes: int
    admitted_at_us: int
    ended_at_us: int | None
    windows_end_us: int  # when the last window closed for it or its training; 0: none has
    end_reason: str
    bubbles_used: int
    kernels: int
    gpu_time_us: float
    intrusion_us: float


def fill_jobs(session: Session, which: JobFilter, *, limit: int = 100) -> list[FillStart]:
    """Starts of fill jobs, newest first."""
    began_while_it_ran = and_(
        Window.gpu_id == FillJob.gpu_id,
        Window.fill_slurm_job_id == FillJob.slurm_job_id,
        Window.began_at_us + Window.window_us > FillJob.admitted_at_us,
        Window.began_at_us < func.coalesce(FillJob.ended_at_us, FOR_EVER_US),
    )
    wanted = select(FillJob.id).where(*_conditions(which, FillJob, FillJob.admitted_at_us))
    newest = (
        wanted.order_by(FillJob.admitted_at_us.desc(), FillJob.id.desc()).limit(limit).subquery()
    )
    figures = (
        select(
            FillJob.id,
            sum_of(Window.used_bubbles, own=False).label("bubbles"),
            sum_of(Window.kernels, own=False).label("kernels"),
            sum_of(Window.gpu_time_us, own=False).label("gpu_time_us"),
            sum_of(Window.intrusion_us, own=False).label("intrusion_us"),
        )
        .join(newest, newest.c.id == FillJob.id)
        .outerjoin(Window, began_while_it_ran)
        .group_by(FillJob.id)
        .subquery()
    )
    own_end, training_end = _last_window(FillJob.slurm_job_id), _last_window(0)
    query = (
        select(FillJob, Node.name, Gpu.uuid, own_end, training_end, figures)
        .join(figures, figures.c.id == FillJob.id)
        .join(Node, FillJob.node_id == Node.id)
        .join(Gpu, FillJob.gpu_id == Gpu.id)
        .order_by(FillJob.admitted_at_us.desc(), FillJob.id.desc())
    )
    return [
        FillStart(
            node=node,
            gpu=uuid,
            job_id=job.slurm_job_id,
            restart_count=job.restart_count,
            user=job.user,
            account=job.account,
            host_job_id=job.host_slurm_job_id,
            memory_bytes=job.memory_bytes,
            admitted_at_us=job.admitted_at_us,
            ended_at_us=job.ended_at_us,
            windows_end_us=max(int(own_end_us or 0), int(training_end_us or 0)),
            end_reason=job.end_reason,
            bubbles_used=int(bubbles),
            kernels=int(kernels),
            gpu_time_us=float(gpu_time_us),
            intrusion_us=float(intrusion_us),
        )
        for (
            job,
            node,
            uuid,
            own_end_us,
            training_end_us,
            _,
            bubbles,
            kernels,
            gpu_time_us,
            intrusion_us,
        ) in session.execute(query)
    ]


def _last_window(fill_slurm_job_id: InstrumentedAttribute[int] | int) -> ScalarSelect[int]:
    """When the last window of one side of a fill's GPU ended. Another fill that leaves has rows
    which end, and may begin, in the midst of those; one side's rows follow each other."""
    return (
        select(Window.began_at_us + Window.window_us)
        .where(Window.gpu_id == FillJob.gpu_id, Window.fill_slurm_job_id == fill_slurm_job_id)
        .order_by(Window.began_at_us.desc(), Window.window_us.desc())
        .limit(1)
        .correlate(FillJob)
        .scalar_subquery()
    )


def _conditions(
    which: JobFilter, table: type[HostJob] | type[FillJob], began_at_us: InstrumentedAttribute[int]
) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if which.job_id is not None:
        conditions.append(table.slurm_job_id == which.job_id)
    if which.user is not None:
        conditions.append(table.user == which.user)
    if which.running is not None:
        open_ = table.ended_at_us.is_(None)
        conditions.append(open_ if which.running else ~open_)
    if which.since_us is not None:
        conditions.append(or_(table.ended_at_us.is_(None), table.ended_at_us >= which.since_us))
    if which.until_us is not None:
        conditions.append(began_at_us < which.until_us)
    return conditions
