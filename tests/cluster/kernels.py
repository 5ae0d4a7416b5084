"""What a job's kernels did on which simulated GPU, by the driver's own log: proof that does not
rest on anything our product says."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.sandbox.simgpu.log_file import GpuLog, Kind, log_path, read_log
from tests.cluster.cluster import Cluster


@dataclass(frozen=True)
class Kernels:
    """Kernels of one job on one GPU; times are CLOCK_MONOTONIC, in ns."""

    count: int
    first_ns: int
    last_ns: int


def kernels(cluster: Cluster, job_id: int) -> dict[int, Kernels]:
    """By minor number; a GPU on which the job ran none is left out."""
    found = {}
    for gpus in cluster.sandbox.gpus:
        for gpu in gpus:
            path = log_path(cluster.sandbox.folder / "gpu/state", gpu.minor)
            if path.exists() and (seen := _of_job(read_log(path), job_id)):
                found[gpu.minor] = seen
    return found


def _of_job(log: GpuLog, job_id: int) -> Kernels | None:
    contexts = log.contexts_of(jobs=[job_id])
    spans = [
        (op.start_ns, op.end_ns)
        for op in log.operations
        if op.kind == Kind.KERNEL and op.context in contexts
    ]
    if not spans:
        return None
    return Kernels(len(spans), min(first for first, _ in spans), max(last for _, last in spans))
