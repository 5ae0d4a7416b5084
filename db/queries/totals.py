"""What filling brought and what it cost, over a stretch of time."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db.models import Setting, Window
from db.queries.shares import COLUMNS, Shares, shares_of, sum_of

OFF_SETTING = "off"
_US_PER_HOUR = 3.6e9


@dataclass(frozen=True)
class Totals:
    """Sums over all GPUs."""

    shares: Shares
    bubbles: int
    bubbles_used: int
    kernels: int
    host_jobs: int
    fill_jobs: int

    @property
    def gpu_hours_gained(self) -> float:
        """GPU time that fill jobs had."""
        return self.shares.gpu_time_us / _US_PER_HOUR

    @property
    def host_gpu_hours(self) -> float:
        return self.shares.wall_us / _US_PER_HOUR

    @property
    def filled_share(self) -> float | None:
        return self.shares.filled_share

    @property
    def intrusion_fraction(self) -> float | None:
        return self.shares.intrusion_fraction


def totals(session: Session, *, since_us: int | None = None, until_us: int | None = None) -> Totals:
    """Over windows that began in the range; a bubble used by two fills counts for each."""
    query = select(
        *COLUMNS,
        sum_of(Window.bubbles, own=True),
        sum_of(Window.used_bubbles, own=False),
        sum_of(Window.kernels, own=False),
        func.count(Window.host_slurm_job_id.distinct()),
        func.count(func.nullif(Window.fill_slurm_job_id, 0).distinct()),
    )
    if since_us is not None:
        query = query.where(Window.began_at_us >= since_us)
    if until_us is not None:
        query = query.where(Window.began_at_us < until_us)
    values = session.execute(query).one()
    return Totals(shares_of(values[:4]), *(int(value) for value in values[4:]))


def filling_is_off(session: Session) -> bool:
    """Whether an operator switched filling off on the cluster."""
    setting = session.get(Setting, OFF_SETTING)
    return setting is not None and setting.value == "1"
