"""What the simulated GPUs' own log says of jobs: the tests' witness beside Slurm and the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deploy.sandbox.simgpu.log_file import GpuLog, Kind, LogReader, Operation, log_path
from deploy.sandbox.simgpu.truth import Truth, truth
from tests.cluster.cluster import Cluster


@dataclass(frozen=True)
class Kernel:
    """One kernel that ran; times are CLOCK_MONOTONIC in nanoseconds, as time.monotonic_ns()."""

    node: str
    gpu: int  # minor
    start_ns: int
    end_ns: int


# The logs grow over the whole test run: each is read only once.
_readers: dict[Path, LogReader] = {}


def gpu_log(cluster: Cluster, minor: int) -> GpuLog | None:
    """The log of one GPU; None when nothing has used it yet."""
    path = log_path(cluster.sandbox.folder / "gpu/state", minor)
    if not path.exists():
        return None
    return _readers.setdefault(path, LogReader(path)).read()


def kernels_of(cluster: Cluster, job_id: int) -> list[Kernel]:
    """All kernels that a job has run, on any GPU, in order of their starts."""
    found: list[Kernel] = []
    for node, gpus in zip(cluster.sandbox.nodes, cluster.sandbox.gpus, strict=True):
        for gpu in gpus:
            log = gpu_log(cluster, gpu.minor)
            if log is not None:
                ours = log.contexts_of(jobs=[job_id])
                found += [Kernel(node, gpu.minor, *times(op)) for op in kernels(log, ours)]
    return sorted(found, key=lambda kernel: kernel.start_ns)


def kernels_launched(cluster: Cluster, job_id: int) -> int:
    """How many kernels a job has launched: those that ran and those that its end left queued."""
    dropped = 0
    for gpu in (gpu for gpus in cluster.sandbox.gpus for gpu in gpus):
        log = gpu_log(cluster, gpu.minor)
        if log is not None:
            dropped += sum(log.dropped.get(each, 0) for each in log.contexts_of(jobs=[job_id]))
    return len(kernels_of(cluster, job_id)) + dropped


def kernels(log: GpuLog, contexts: frozenset[int]) -> list[Operation]:
    """The kernels of these contexts."""
    return [op for op in log.operations if op.context in contexts and op.kind == Kind.KERNEL]


def times(operation: Operation) -> tuple[int, int]:
    return operation.start_ns, operation.end_ns


def truth_of(cluster: Cluster, minor: int, host: int, *fills: int) -> Truth:
    """Bubbles of a host job on one GPU, how they were filled, and what training waited."""
    log = gpu_log(cluster, minor)
    assert log is not None, f"nothing has used GPU {minor}"
    return truth(log, log.contexts_of(jobs=[host]), log.contexts_of(jobs=fills))
