"""What really happened on a simulated GPU, by its own log: training's bubbles, how much of them
was filled, and how long training work that was ready had to wait for fill.

Tests compare the ledger with this. Times are CLOCK_MONOTONIC in nanoseconds.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from deploy.sandbox.simgpu.intervals import (
    Interval,
    gaps,
    intersect,
    measure,
    subtract,
    union,
)
from deploy.sandbox.simgpu.log_file import GpuLog, Kind, LogError, Operation, log_path, read_log

BUBBLE_NS = 100_000
"""Shorter gaps are no bubbles (DESIGN.md)."""


@dataclass(frozen=True, slots=True)
class JobUse:
    """What one job did on the GPU. first_ns and last_ns: start of its first and end of its last
    kernel."""

    kernels: int
    gpu_time_ns: int
    first_ns: int
    last_ns: int


@dataclass(frozen=True, slots=True)
class Truth:
    """One GPU, one training, any number of fills, from begin_ns to end_ns.

    bubbles: gaps of at least BUBBLE_NS in which no training work was ready or running.
    filled_ns: bubble time in which a fill kernel ran.
    waited_ns: time in which training work was ready and none ran, because a fill had the GPU or
        it was being switched from or to a fill.
    waited_any_ns: the same whoever had the GPU.
    slowed_ns: what training's kernels took longer because other processes ran beside them (MPS);
        kernels that ran at the same time each count.
    """

    begin_ns: int
    end_ns: int
    bubbles: list[Interval]
    filled_ns: int
    waited_ns: int
    waited_any_ns: int
    slowed_ns: int
    fill: dict[int, JobUse]
    training: dict[int, JobUse]

    @property
    def wall_ns(self) -> int:
        """Length of the range."""
        return self.end_ns - self.begin_ns

    @property
    def bubble_ns(self) -> int:
        """Bubble time in all."""
        return measure(self.bubbles)

    @property
    def bubble_share(self) -> float:
        """Bubble time / wall time."""
        return self.bubble_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def filled_share(self) -> float:
        """Share of bubble time in which a fill kernel ran."""
        return self.filled_ns / self.bubble_ns if self.bubble_ns else 0.0

    @property
    def waited_fraction(self) -> float:
        """Time that training waited for fill / wall time."""
        return self.waited_ns / self.wall_ns if self.wall_ns else 0.0

    def as_json(self) -> dict[str, object]:
        """For a report: totals, not the single bubbles."""
        return {
            "wall_s": self.wall_ns / 1e9,
            "bubbles": len(self.bubbles),
            "bubble_share": self.bubble_share,
            "filled_share": self.filled_share,
            "waited_s": self.waited_ns / 1e9,
            "waited_fraction": self.waited_fraction,
            "slowed_s": self.slowed_ns / 1e9,
            "fill_kernels": {str(job): use.kernels for job, use in self.fill.items()},
            "fill_gpu_time_s": {str(job): use.gpu_time_ns / 1e9 for job, use in self.fill.items()},
        }


def _work(log: GpuLog, contexts: Collection[int]) -> list[Operation]:
    """Kernels, copies and sets; markers are the interposer's, not the program's work."""
    return [op for op in log.operations if op.context in contexts and op.kind <= Kind.SET]


def held_by(log: GpuLog, contexts: Collection[int], end_ns: int) -> list[Interval]:
    """When one of the contexts had the GPU, or it was being switched from or to one of them."""
    held: list[Interval] = []
    first = min((op.start_ns for op in log.operations), default=end_ns)
    begin, holder = first, _first_holder(log)
    for switch in log.switches:
        if holder in contexts:
            held.append((begin, switch.begin_ns))
        if switch.source in contexts or switch.target in contexts:
            held.append((switch.begin_ns, switch.end_ns))
        begin, holder = switch.end_ns, switch.target
    if holder in contexts:
        held.append((begin, end_ns))
    return union(held)


def _first_holder(log: GpuLog) -> int:
    """The GPU's first context gets it without a switch."""
    if log.switches:
        return log.switches[0].source
    return log.operations[0].context if log.operations else 0


def _apart(log: GpuLog, these: Collection[int], those: Collection[int]) -> set[int]:
    """Those of these contexts that have the GPU at other times; clients of one MPS server share
    it."""
    servers = {log.contexts[number].server for number in those if number in log.contexts} - {0}
    return {number for number in these if log.contexts[number].server not in servers}


def _running(log: GpuLog, work: list[Operation], end_ns: int) -> list[Interval]:
    """When work was on the GPU: a kernel that waits for a peer may have been stopped meanwhile."""
    stopped = [op for op in work if op.spins and op.ran_ns < op.end_ns - op.start_ns]
    whole = [(op.start_ns, op.end_ns) for op in work if op not in stopped]
    if not stopped:
        return whole
    own = {op.context for op in stopped}
    away = held_by(log, _apart(log, log.contexts.keys() - own, own), end_ns)
    return whole + subtract(union((op.start_ns, op.end_ns) for op in stopped), away)


def job_uses(log: GpuLog, contexts: Collection[int], span: Interval) -> dict[int, JobUse]:
    """Kernels that these contexts ran within the span, by job."""
    by_job: dict[int, list[Operation]] = defaultdict(list)
    for op in _work(log, contexts):
        if op.kind == Kind.KERNEL and op.start_ns < span[1] and op.end_ns > span[0]:
            by_job[log.contexts[op.context].job].append(op)
    return {
        job: JobUse(
            kernels=len(ops),
            gpu_time_ns=sum(min(op.end_ns, span[1]) - max(op.start_ns, span[0]) for op in ops),
            first_ns=min(op.start_ns for op in ops),
            last_ns=max(op.end_ns for op in ops),
        )
        for job, ops in by_job.items()
    }


def _clip(intervals: Iterable[Interval], span: Interval) -> list[Interval]:
    return intersect(union(intervals), [span])


def truth(
    log: GpuLog,
    training: Collection[int],
    fill: Collection[int],
    begin_ns: int | None = None,
    end_ns: int | None = None,
    *,
    communication_is_bubble: bool = False,
) -> Truth:
    """Computes the truth for these contexts (GpuLog.contexts_of).

    Without a range it goes from when the first training work was ready to the end of the last.
    communication_is_bubble: training's communication is no work (as may be under MPS).

    Raises:
        ValueError: the training did nothing on this GPU, or the range is empty.
    """
    work = [op for op in _work(log, training) if not (communication_is_bubble and op.communication)]
    if not work:
        raise ValueError(f"GPU {log.gpu}: none of the training contexts did any work")
    begin = min(op.ready_ns for op in work) if begin_ns is None else begin_ns
    end = max(op.end_ns for op in work) if end_ns is None else end_ns
    if end <= begin:
        raise ValueError(f"GPU {log.gpu}: the range ends before it begins")
    span = (begin, end)
    wanted = _clip(((op.ready_ns, op.end_ns) for op in work), span)
    running = _clip(_running(log, work, end), span)
    bubbles = [gap for gap in gaps(wanted, begin, end) if gap[1] - gap[0] >= BUBBLE_NS]
    fill_kernels = _clip(
        ((op.start_ns, op.end_ns) for op in _work(log, fill) if op.kind == Kind.KERNEL), span
    )
    waited = subtract(wanted, running)
    return Truth(
        begin_ns=begin,
        end_ns=end,
        bubbles=bubbles,
        filled_ns=measure(intersect(bubbles, fill_kernels)),
        waited_ns=measure(intersect(waited, held_by(log, _apart(log, fill, training), end))),
        waited_any_ns=measure(waited),
        slowed_ns=sum(op.lost_ns for op in work if begin < op.end_ns <= end),
        fill=job_uses(log, fill, span),
        training=job_uses(log, training, span),
    )


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def _chosen(log: GpuLog, jobs: list[int], command: str) -> frozenset[int]:
    return log.contexts_of(jobs=jobs) if jobs else log.contexts_of(commands=[command])


def main(arguments: list[str] | None = None) -> int:
    """Prints the truth of one GPU as JSON; 2 on bad input."""
    parser = argparse.ArgumentParser(prog="truth", description=main.__doc__)
    parser.add_argument("--state", type=Path, required=True, help="state directory of the GPUs")
    parser.add_argument("--gpu", type=int, default=0, help="minor number")
    parser.add_argument(
        "--training-jobs",
        type=_numbers,
        default=[],
        help="Slurm ids, by commas (default: simtrain)",
    )
    parser.add_argument(
        "--fill-jobs", type=_numbers, default=[], help="Slurm ids, by commas (default: siminfer)"
    )
    parser.add_argument(
        "--communication-is-bubble",
        action="store_true",
        help="training's communication is no work (MPS)",
    )
    parser.add_argument("--begin-ns", type=int)
    parser.add_argument("--end-ns", type=int)
    options = parser.parse_args(arguments)
    try:
        log = read_log(log_path(options.state, options.gpu))
        training = _chosen(log, options.training_jobs, "simtrain")
        fill = _chosen(log, options.fill_jobs, "siminfer")
        result = truth(
            *(log, training, fill, options.begin_ns, options.end_ns),
            communication_is_bubble=options.communication_is_bubble,
        )
    except (LogError, OSError, ValueError) as error:
        print(f"truth: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result.as_json()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
