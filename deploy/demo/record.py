"""What our own ledger says of the demo's fill."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import Session

from db.models import BubbleUse, Window


@dataclass(frozen=True)
class Record:
    """Sums over the uses of one fill job in a stretch of time."""

    uses: int
    bubbles: int
    gpu_time_us: float
    intrusion_us: float
    bubble_share: float | None  # of the host job; None before its first window ends


def read_record(
    url: str, host_job: int, fill_job: int, since_us: int, begin_us: int, end_us: int
) -> Record:
    """Reads the database at `url`; times are UTC microseconds.

    Uses are those from begin_us to end_us; the bubble share rests on the windows since since_us,
    when the host job was at work already.
    """
    where = (
        (BubbleUse.host_slurm_job_id == host_job)
        & (BubbleUse.fill_slurm_job_id == fill_job)
        & (BubbleUse.first_release_at_us >= begin_us)
        & (BubbleUse.first_release_at_us < end_us)
    )
    with Session(create_engine(url)) as session:
        uses, bubbles, gpu_time_us, intrusion_us = session.execute(
            select(
                func.count(),
                func.count(BubbleUse.bubble_seq.distinct()),
                func.coalesce(func.sum(BubbleUse.gpu_time_us), 0.0),
                func.coalesce(func.sum(BubbleUse.intrusion_us), 0.0),
            ).where(where)
        ).one()
        bubble_us, wall_us = session.execute(
            select(func.sum(Window.bubble_us), func.sum(Window.window_us)).where(
                (Window.host_slurm_job_id == host_job)
                & (Window.fill_slurm_job_id == 0)
                & (Window.began_at_us >= since_us)
            )
        ).one()
    share = float(bubble_us) / float(wall_us) if wall_us else None
    return Record(uses, bubbles, float(gpu_time_us), float(intrusion_us), share)


def count_uses(url: str, fill_job: int) -> int:
    """Rows of the audit for one fill job so far."""
    with Session(create_engine(url)) as session:
        statement = select(func.count()).where(BubbleUse.fill_slurm_job_id == fill_job)
        return int(session.execute(statement).scalar_one())
