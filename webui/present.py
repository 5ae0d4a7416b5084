"""From the database's answers to the JSON that pages draw. Lengths stay in us, shares fractions;
None (no training, nothing to divide by) stays null and is shown in words, never as 0."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from db.queries import Bucket, FillJobWhole, GpuNow, HostJobWhole, Totals
from db.queries.shares import Shares

Json = dict[str, Any]
WINDOW_US = 10_000_000
MAX_STEPS = 120  # points of a chart: more than a small chart has pixels to tell apart
_STEPS = (1, 2, 3, 6, 12, 18, 30, 60, 90, 180, 360, 720, 2160, 4320, 8640)  # windows


def step_us(period_us: int) -> int:
    """Step of a chart: whole windows, at most MAX_STEPS of them."""
    windows = -(-period_us // (WINDOW_US * MAX_STEPS))
    return next((step for step in _STEPS if step >= windows), windows) * WINDOW_US


def shares(found: Shares) -> Json:
    """Sums and the shares that follow from them."""
    return {
        **asdict(found),
        "busy_us": found.busy_us,
        "filled_us": found.filled_us,
        "unfilled_us": found.unfilled_us,
        "bubble_share": found.bubble_share,
        "filled_share": found.filled_share,
        "intrusion_fraction": found.intrusion_fraction,
    }


def series(buckets: Iterable[Bucket]) -> Json:
    """Columns for a stacked chart, summed over GPUs where several share a step."""
    steps: dict[int, list[float]] = {}
    for bucket in buckets:
        mine = bucket.shares
        sums = steps.setdefault(bucket.began_at_us, [0.0, 0.0, 0.0, 0.0])
        parts = (mine.busy_us, mine.filled_us, mine.unfilled_us, mine.intrusion_us)
        for index, part in enumerate(parts):
            sums[index] += part
    times = sorted(steps)
    names = ("busy_us", "filled_us", "unfilled_us", "intrusion_us")
    columns = {name: [steps[at][index] for at in times] for index, name in enumerate(names)}
    return {"began_at_us": times, **columns}


def charts(found: dict[str, list[Bucket]]) -> dict[str, Json]:
    """One set of columns a GPU."""
    return {uuid: series(buckets) for uuid, buckets in found.items()}


def gpu(found: GpuNow) -> Json:
    """One GPU now."""
    lent = sum(fill.memory_bytes for fill in found.fills)
    return {**asdict(found), "recent": shares(found.recent), "lent_bytes": lent}


def totals(found: Totals) -> Json:
    """Sums of the period."""
    return {**asdict(found), "shares": shares(found.shares)}


def now(gpus: list[GpuNow]) -> Json:
    """What runs at this moment, counted over all GPUs."""
    return {
        "gpus": len(gpus),
        "gpus_training": sum(gpu.host_job_id is not None for gpu in gpus),
        "gpus_lending": sum(gpu.host_mode == "on" and not gpu.node_off for gpu in gpus),
        "host_jobs": len({gpu.host_job_id for gpu in gpus} - {None}),
        "fill_jobs": len({fill.job_id for gpu in gpus for fill in gpu.fills}),
    }


def host(job: HostJobWhole) -> Json:
    """A host job."""
    return {
        **asdict(job),
        "bubble_share": job.bubble_share,
        "filled_share": job.filled_share,
        "intrusion_fraction": job.intrusion_fraction,
    }


def fill(job: FillJobWhole) -> Json:
    """A fill job."""
    return {**asdict(job), "gpu_share": job.gpu_share}
