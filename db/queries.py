"""What the command line and the dashboard read: GPUs now, time lines, totals.

Times are UTC microseconds since the epoch. `wall_us`, `bubble_us`, `filled_us` and `intrusion_us`
are sums over GPUs; *filled* is GPU time that fills used inside bubbles. A GPU without training has
no wall time: its shares are None, which is not 0 %. Jobs: db/jobs.py; audit rows and events:
db/audit.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, case, func, or_, select
from sqlalchemy.orm import Session

from db.models import FillJob, Gpu, HostJob, Node, Setting, Window

OFF_SETTING = "off"
RECENT_US = 300_000_000


def fraction(part: float, whole: float) -> float | None:
    """Part of a whole; None when there is no whole."""
    return part / whole if whole > 0 else None


@dataclass
class Use:
    """Sums of windows: one GPU, one job or everything, over some period."""

    wall_us: float = 0.0
    bubble_us: float = 0.0
    filled_us: float = 0.0
    intrusion_us: float = 0.0
    bubbles: int = 0
    used_bubbles: int = 0
    kernels: int = 0

    @property
    def busy_us(self) -> float:
        """Time in which training computed."""
        return max(0.0, self.wall_us - self.bubble_us)

    @property
    def unfilled_us(self) -> float:
        """Bubble time that no fill used."""
        return max(0.0, self.bubble_us - self.filled_us)

    @property
    def bubble_share(self) -> float | None:
        """Bubble time over wall time."""
        return fraction(self.bubble_us, self.wall_us)

    @property
    def filled_share(self) -> float | None:
        """Fill time over bubble time."""
        return fraction(self.filled_us, self.bubble_us)

    @property
    def intrusion_fraction(self) -> float | None:
        """What fill cost training, over wall time."""
        return fraction(self.intrusion_us, self.wall_us)


@dataclass(frozen=True)
class FillNow:
    """A fill job that is admitted now."""

    job_id: int
    user: str
    memory_bytes: int
    admitted_at_us: int


@dataclass(frozen=True)
class GpuState:
    """One GPU now; `recent` sums the last minutes."""

    node: str
    twin: str
    node_off: bool
    last_report_at_us: int
    uuid: str
    minor: int
    name: str
    memory_bytes: int
    simulated: bool
    host_job: int | None
    host_user: str | None
    mode: str | None
    mode_reason: str
    lend_bytes: int | None
    fills: list[FillNow]
    recent: Use

    @property
    def lent_bytes(self) -> int:
        """Memory that admitted fills hold."""
        return sum(fill.memory_bytes for fill in self.fills)


@dataclass(frozen=True)
class Bucket:
    """One step of a time line of one GPU."""

    uuid: str
    began_at_us: int
    use: Use


@dataclass(frozen=True)
class Totals:
    """Headline figures of a period, and what runs now."""

    use: Use
    slowdown_budget: float | None  # the tightest of the lending jobs of the period
    gpus: int
    gpus_lending: int
    host_jobs_running: int
    fill_jobs_running: int


def cluster_off(session: Session) -> bool:
    """True while filling is switched off for the whole cluster."""
    value = session.scalar(select(Setting.value).where(Setting.name == OFF_SETTING))
    return (value or "").lower() in ("1", "true", "on", "yes")


def window_sums() -> list[ColumnElement[float]]:
    """Columns of `Use` in order: training's own side from fill 0, the rest from the fills."""
    own = Window.fill_slurm_job_id == 0
    first = (Window.window_us, Window.bubble_us)
    rest = (Window.gpu_time_us, Window.intrusion_us)
    return [
        *(func.coalesce(func.sum(case((own, column), else_=0)), 0) for column in first),
        *(func.coalesce(func.sum(case((own, 0), else_=column)), 0) for column in rest),
        func.coalesce(func.sum(case((own, Window.bubbles), else_=0)), 0),
        func.coalesce(func.sum(case((own, 0), else_=Window.used_bubbles)), 0),
        func.coalesce(func.sum(case((own, 0), else_=Window.kernels)), 0),
    ]


def use_of(values: Iterable[float]) -> Use:
    """The row that `window_sums` selects, as a `Use`."""
    wall, bubble, filled, intrusion, bubbles, used, kernels = values
    return Use(
        float(wall),
        float(bubble),
        float(filled),
        float(intrusion),
        int(bubbles),
        int(used),
        int(kernels),
    )


def gpu_states(session: Session, *, now_us: int, recent_us: int = RECENT_US) -> list[GpuState]:
    """Every known GPU, by node name and minor."""
    uses = {
        row[0]: use_of(row[1:])
        for row in session.execute(
            select(Window.gpu_id, *window_sums())
            .where(Window.began_at_us >= now_us - recent_us)
            .group_by(Window.gpu_id)
        )
    }
    hosts: dict[str, HostJob] = {}
    for host in session.scalars(
        select(HostJob).where(HostJob.ended_at_us.is_(None)).order_by(HostJob.started_at_us)
    ):
        hosts.update(dict.fromkeys(host.gpus.split(","), host))
    fills: dict[int, list[FillNow]] = defaultdict(list)
    for fill in session.scalars(
        select(FillJob).where(FillJob.ended_at_us.is_(None)).order_by(FillJob.slurm_job_id)
    ):
        fills[fill.gpu_id].append(
            FillNow(fill.slurm_job_id, fill.user, fill.memory_bytes, fill.admitted_at_us)
        )
    rows = session.execute(
        select(Gpu, Node).join(Node, Gpu.node_id == Node.id).order_by(Node.name, Gpu.minor)
    )
    states = []
    for gpu, node in rows:
        job = hosts.get(gpu.uuid)
        states.append(
            GpuState(
                node=node.name,
                twin=node.twin,
                node_off=bool(node.off),
                last_report_at_us=node.last_report_at_us,
                uuid=gpu.uuid,
                minor=gpu.minor,
                name=gpu.name,
                memory_bytes=gpu.memory_bytes,
                simulated=bool(gpu.simulated),
                host_job=job.slurm_job_id if job else None,
                host_user=job.user if job else None,
                mode=job.mode if job else None,
                mode_reason=job.mode_reason if job else "",
                lend_bytes=job.lend_bytes if job else None,
                fills=fills[gpu.id],
                recent=uses.get(gpu.id, Use()),
            )
        )
    return states


def timeline(
    session: Session,
    *,
    since_us: int,
    until_us: int,
    step_us: int,
    gpu: str | None = None,
    host_job: int | None = None,
    fill_job: int | None = None,
) -> list[Bucket]:
    """Windows summed in steps, by GPU and time. For a fill job, the GPUs that it ran on, with the
    training's own side of the same windows and only this fill's use."""
    began = (Window.began_at_us - Window.began_at_us % step_us).label("began")
    query = (
        select(Gpu.uuid, began, *window_sums())
        .join(Gpu, Window.gpu_id == Gpu.id)
        .where(Window.began_at_us >= since_us, Window.began_at_us < until_us)
        .group_by(Gpu.uuid, began)
        .order_by(Gpu.uuid, began)
    )
    if gpu is not None:
        query = query.where(Gpu.uuid == gpu)
    if host_job is not None:
        query = query.where(Window.host_slurm_job_id == host_job)
    if fill_job is not None:
        runs = session.execute(
            select(FillJob.gpu_id, FillJob.admitted_at_us, FillJob.ended_at_us).where(
                FillJob.slurm_job_id == fill_job
            )
        ).all()
        query = query.where(
            Window.fill_slurm_job_id.in_((0, fill_job)),
            or_(
                *(
                    and_(
                        Window.gpu_id == gpu_id,
                        Window.began_at_us + Window.window_us > start,
                        Window.began_at_us < (until_us if end is None else end),
                    )
                    for gpu_id, start, end in runs
                ),
            )
            if runs
            else Window.id.is_(None),
        )
    return [Bucket(row[0], int(row[1]), use_of(row[2:])) for row in session.execute(query)]


def totals(session: Session, *, since_us: int, until_us: int) -> Totals:
    """Headline figures from `since_us` to `until_us`."""
    row = session.execute(
        select(*window_sums()).where(Window.began_at_us >= since_us, Window.began_at_us < until_us)
    ).one()
    in_period = and_(
        HostJob.started_at_us < until_us,
        or_(HostJob.ended_at_us.is_(None), HostJob.ended_at_us >= since_us),
    )
    budget = session.scalar(
        select(func.min(HostJob.slowdown_budget)).where(HostJob.mode == "on", in_period)
    )
    running = select(HostJob).where(HostJob.ended_at_us.is_(None))
    hosts = session.scalars(running).all()
    fills = session.scalar(
        select(func.count(func.distinct(FillJob.slurm_job_id))).where(FillJob.ended_at_us.is_(None))
    )
    lending = {uuid for host in hosts if host.mode == "on" for uuid in host.gpus.split(",")}
    return Totals(
        use=use_of(row),
        slowdown_budget=budget,
        gpus=session.scalar(select(func.count(Gpu.id))) or 0,
        gpus_lending=len(lending),
        host_jobs_running=len({host.slurm_job_id for host in hosts}),
        fill_jobs_running=fills or 0,
    )
