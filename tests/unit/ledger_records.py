"""Records as an agent makes them, with values of no importance where a test names none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from db.wire.messages import (
    Batch,
    BubbleUseRecord,
    FillJobRecord,
    Gpu,
    HostJobRecord,
    Record,
    Report,
    WindowRecord,
)

NOW_US = 1_900_000_000_000_000
GIB = 1 << 30


def gpu(uuid: str = "GPU-a", **values: Any) -> Gpu:
    given = {"uuid": uuid, "minor": 0, "name": "Simulated", "memory_bytes": 24 * GIB}
    return Gpu.model_validate(given | values)


def report(
    sequence: int | None = None,
    records: Sequence[Record] = (),
    *,
    node: str = "n1",
    boot_id: str = "first",
    batch_boot_id: str | None = None,
    gpus: list[Gpu] | None = None,
    **values: Any,
) -> Report:
    """A report of a node with one GPU, with a batch when a sequence is given."""
    given = {
        "node": node,
        "twin": node.replace("n", "f"),
        "boot_id": boot_id,
        "version": "0.1.0",
        "slot_bytes": GIB,
        "gpus": [gpu("GPU-a" if node == "n1" else "GPU-b")] if gpus is None else gpus,
        "fill_jobs": [],
        "off": False,
    }
    if sequence is not None:
        given["batch"] = Batch(
            boot_id=batch_boot_id or boot_id, sequence=sequence, records=list(records)
        )
    return Report.model_validate(given | values)


def host_job(**values: Any) -> HostJobRecord:
    return HostJobRecord.model_validate(
        {
            "job_id": 10,
            "user": "sfilluser1",
            "mode": "on",
            "gpus": ["GPU-a"],
            "slowdown_budget": 0.01,
            "started_at_us": NOW_US - 100_000_000,
        }
        | values
    )


def fill_job(**values: Any) -> FillJobRecord:
    return FillJobRecord.model_validate(
        {
            "job_id": 20,
            "user": "sfilluser2",
            "gpu": "GPU-a",
            "host_job_id": 10,
            "memory_bytes": 4 * GIB,
            "admitted_at_us": NOW_US - 50_000_000,
        }
        | values
    )


def bubble_use(bubble_seq: int, **values: Any) -> BubbleUseRecord:
    began_at_us = NOW_US - 1_000_000 + bubble_seq * 1000
    return BubbleUseRecord.model_validate(
        {
            "gpu": "GPU-a",
            "host_job_id": 10,
            "fill_job_id": 20,
            "bubble_seq": bubble_seq,
            "bubble_began_at_us": began_at_us,
            "bubble_us": 800.0,
            "cause": "host",
            "first_release_at_us": began_at_us + 20,
            "used_us": 700.0,
            "kernels": 7,
            "gpu_time_us": 650.0,
            "intrusion_us": 3.0,
        }
        | values
    )


def window(**values: Any) -> WindowRecord:
    return WindowRecord.model_validate(
        {
            "gpu": "GPU-a",
            "host_job_id": 10,
            "began_at_us": NOW_US - 20_000_000,
            "window_us": 10_000_000,
            "bubbles": 1000,
            "bubble_us": 4_000_000.0,
        }
        | values
    )
