"""How windows add up: the one place that knows what a window's rows mean.

A row with fill job 0 is the training's own side: its `window_us` is wall time with a host job on
the GPU and its `bubble_us` all bubbles. A row of a fill job carries what that fill used:
`gpu_time_us`, `intrusion_us`, `kernels` and `used_bubbles`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, case, func

from db.models import Window

_own = Window.fill_slurm_job_id == 0


def sum_of(column: Any, *, own: bool) -> ColumnElement[float]:
    """Sum of a column over the training's own rows, or over the fill jobs' rows."""
    which = _own if own else ~_own
    return func.coalesce(func.sum(case((which, column), else_=0)), 0)


@dataclass(frozen=True)
class Shares:
    """GPU time of host jobs, split: `wall_us` = `busy_us` + `filled_us` + `unfilled_us`."""

    wall_us: float
    bubble_us: float
    gpu_time_us: float  # of fill work, as the agents measured it
    intrusion_us: float

    @property
    def busy_us(self) -> float:
        """Time in which training computed."""
        return max(0.0, self.wall_us - self.bubble_us)

    @property
    def filled_us(self) -> float:
        """Bubble time in which fill work ran."""
        return min(self.gpu_time_us, self.bubble_us)

    @property
    def unfilled_us(self) -> float:
        return self.bubble_us - self.filled_us

    @property
    def bubble_share(self) -> float | None:
        return ratio(self.bubble_us, self.wall_us)

    @property
    def filled_share(self) -> float | None:
        """Filled part of the bubbles."""
        return ratio(self.filled_us, self.bubble_us)

    @property
    def intrusion_fraction(self) -> float | None:
        """Time that ready training work waited for fill, of wall time."""
        return ratio(self.intrusion_us, self.wall_us)


COLUMNS = (
    sum_of(Window.window_us, own=True),
    sum_of(Window.bubble_us, own=True),
    sum_of(Window.gpu_time_us, own=False),
    sum_of(Window.intrusion_us, own=False),
)


def shares_of(values: Any) -> Shares:
    """From the values that a query for COLUMNS gave."""
    wall, bubble, gpu_time, intrusion = (float(value) for value in values)
    return Shares(wall, bubble, gpu_time, intrusion)


def ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
