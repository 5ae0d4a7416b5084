"""The demo's figures by the simulated driver's own log, which the ledger must agree with."""

from __future__ import annotations

from pathlib import Path

from deploy.sandbox.simgpu.log_file import log_path, read_log
from deploy.sandbox.simgpu.truth import truth


def figures(
    sandbox: Path, host_job: int, fill_job: int, begin_ns: int, end_ns: int
) -> dict[str, float]:
    """Shares of one GPU between two moments of CLOCK_MONOTONIC, as fractions of wall time.

    `filled_share` is a fraction of bubble time; `waited_fraction`: ready training work waited
    because fill had the GPU.
    """
    log = read_log(log_path(sandbox / "gpu" / "state", 0))
    seen = truth(
        log,
        log.contexts_of(jobs=[host_job]),
        log.contexts_of(jobs=[fill_job]),
        begin_ns,
        end_ns,
    )
    fill = seen.fill.get(fill_job)
    return {
        "bubble_share": seen.bubble_share,
        "filled_share": seen.filled_share,
        "waited_fraction": seen.waited_fraction,
        "fill_gpu_time_s": fill.gpu_time_ns / 1e9 if fill else 0.0,
    }
