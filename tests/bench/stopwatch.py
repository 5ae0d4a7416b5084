"""Times the iterations of a training, and says how much of them its GPU idles."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

BUBBLE_US = 100.0
BLOCK_KINDS = ("filled", "shut", "control")
SETTLE_ITERATIONS = 1  # the first iteration after a switch belongs to neither block
COMMUNICATION = ("nccl", "gloo")


class Workload(Protocol):
    """A training as the bench sees it."""

    def step(self) -> object:
        """One iteration, waits of the host included; returns when its GPU work is done."""

    def restart(self) -> None:
        """Begins anew whatever differs from iteration to iteration, so that blocks are alike."""


class Switch(Protocol):
    """Lets fill run beside the training, or shuts it out."""

    def set(self, on: bool) -> None:
        """Returns when it holds."""

    def steady(self, on: bool) -> None:
        """Iterations are being timed from now on, or no longer."""


@dataclass
class Blocks:
    """What the alternating blocks gave."""

    times_ms: dict[str, list[list[float]]] = field(default_factory=dict)
    filled_ns: list[tuple[int, int]] = field(default_factory=list)  # begin and end of each


def iteration_ms(workload: Workload) -> float:
    """One iteration, in milliseconds."""
    start = time.perf_counter()
    workload.step()
    return (time.perf_counter() - start) * 1000


def timed_block(workload: Workload, iterations: int) -> list[float]:
    """Iterations of one block, after those that settle it."""
    workload.restart()
    for _ in range(SETTLE_ITERATIONS):
        workload.step()
    return [iteration_ms(workload) for _ in range(iterations)]


def run_blocks(workload: Workload, switch: Switch, rounds: int, block: int) -> Blocks:
    """Rounds of {filled, shut, control} in random order; the order is the same on all ranks."""
    order = random.Random(5)
    blocks = Blocks({kind: [] for kind in BLOCK_KINDS})
    for _ in range(rounds):
        kinds = list(BLOCK_KINDS)
        order.shuffle(kinds)
        for kind in kinds:
            switch.set(kind == "filled")
            workload.restart()
            for _ in range(SETTLE_ITERATIONS):
                workload.step()
            switch.steady(True)
            began_ns = time.monotonic_ns()
            blocks.times_ms[kind].append([iteration_ms(workload) for _ in range(block)])
            if kind == "filled":
                blocks.filled_ns.append((began_ns, time.monotonic_ns()))
            switch.steady(False)
    return blocks


def run_until(workload: Workload, over: Callable[[], bool]) -> list[float]:
    """Iterations until it is over; their times in ms. All ranks must be told the same."""
    times = []
    while not over():
        times.append(iteration_ms(workload))
    return times


Span = tuple[float, float]


def gaps(spans: Iterable[Span], begin: float, end: float) -> list[float]:
    """Lengths of the stretches of [begin, end] that no span covers; any one unit of time."""
    found = []
    reached = begin
    for start, stop in sorted(spans):
        if start > reached:
            found.append(min(start, end) - reached)
        reached = max(reached, stop)
        if reached >= end:
            return found
    return [*found, end - reached]


def bubble_share(workload: Workload, iterations: int, on_gpu: bool) -> dict[str, float]:
    """Bubble time / wall time by torch's profiler: gaps of at least 100 us between GPU work.

    bubble_share counts communication as busy (time slicing), bubble_share_compute as bubble (MPS).
    Without a GPU the host's operators stand for GPU work: for dry runs.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    workload.restart()
    workload.step()
    with profile(activities=kinds) as recorded, record_function("bench_window"):
        for _ in range(iterations):
            workload.step()
    events: Sequence[Any] = list(recorded.events())
    window = next(e.time_range for e in events if e.name == "bench_window" and on_host(e))
    work = [e for e in events if on_host(e) != on_gpu and not is_annotation(e)]
    inside = [e for e in work if e.time_range.end > window.start]
    if not inside:  # CUPTI can't be used: the bench knows the share from another cell, or fails
        return {}

    def share(counts: Callable[[str], bool]) -> list[float]:
        spans = [(e.time_range.start, e.time_range.end) for e in inside if counts(e.name)]
        lengths = gaps(spans, window.start, window.end)
        return [length for length in lengths if length >= BUBBLE_US]

    everything = share(lambda name: True)
    compute = share(lambda name: not any(word in name.lower() for word in COMMUNICATION))
    wall_us = window.end - window.start
    return {
        "bubble_share": sum(everything) / wall_us,
        "bubble_share_compute": sum(compute) / wall_us,
        "bubbles_per_iteration": len(everything) / iterations,
    }


def on_host(event: Any) -> bool:
    """Whether a profiler's event happened on the host."""
    return str(event.device_type).endswith("CPU")


def is_annotation(event: Any) -> bool:
    """Ranges that programs name (optimizers and DDP do) are no work, on the GPU's row either."""
    name = event.name
    ranges = ("bench_window", "Optimizer.", "DistributedDataParallel", "ProfilerStep", "FSDP::")
    return bool(getattr(event, "is_user_annotation", False)) or name.startswith(ranges)
