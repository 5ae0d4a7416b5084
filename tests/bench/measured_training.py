"""The host-stall training with a stopwatch: a job of the bench, not a test.

Stages, each written to the report file as it ends:
  profile   fill shut out, torch's profiler on: bubble share of the training alone
  wait      lends until the bench says that fill runs (a file appears)
  blocks    rounds of {filled, shut, shut control} in random order, `--block` iterations each
  harvest   lends without a break, for the rates of fill

Without the interposer (`--plain`) only a row of iterations is timed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from deploy.examples.train_host_stall import Shape, Training

BUBBLE_US = 100.0
BLOCK_KINDS = ("filled", "shut", "control")
SETTLE_ITERATIONS = 1  # the first iteration after a switch belongs to neither block


def lend_switch() -> Callable[[bool], None]:
    """The interposer's own switch, from this process (specinf_lend)."""
    library = ctypes.CDLL(None)
    try:
        function = library.specinf_lend
    except AttributeError as error:
        raise SystemExit("the interposer is not loaded: submit with --fill-host=on") from error

    def lend(on: bool) -> None:
        function(int(on))

    return lend


class Stopwatch:
    """Times iterations of one training, stall included."""

    def __init__(self, stall_ms: float, shape: Shape) -> None:
        self.training = Training(shape)
        self.stall_s = stall_ms / 1000

    def iteration_ms(self) -> float:
        start = time.perf_counter()
        self.training.step()
        time.sleep(self.stall_s)
        return (time.perf_counter() - start) * 1000


def bubble_share(watch: Stopwatch, iterations: int) -> dict[str, float]:
    """Bubble time / wall time by the profiler's kernel and copy intervals (gaps >= 100 us)."""
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as recorded:
        for _ in range(iterations):
            watch.iteration_ms()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in recorded.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    if not spans:
        raise SystemExit("the profiler saw no work on the GPU: is CUPTI usable here?")
    bubbles_us = 0.0
    count = 0
    reached = spans[0][0]
    for start, end in spans:
        if start - reached >= BUBBLE_US:
            bubbles_us += start - reached
            count += 1
        reached = max(reached, end)
    wall_us = reached - spans[0][0] + watch.stall_s * 1e6  # the last stall follows the last kernel
    bubbles_us += watch.stall_s * 1e6
    return {"bubble_share": bubbles_us / wall_us, "bubbles_per_iteration": (count + 1) / iterations}


def run_blocks(
    watch: Stopwatch, lend: Callable[[bool], None], rounds: int, block: int
) -> dict[str, list[list[float]]]:
    """Iteration times in ms by kind and round."""
    order = random.Random(5)
    times: dict[str, list[list[float]]] = {kind: [] for kind in BLOCK_KINDS}
    for _ in range(rounds):
        kinds = list(BLOCK_KINDS)
        order.shuffle(kinds)
        for kind in kinds:
            lend(kind == "filled")
            for _ in range(SETTLE_ITERATIONS):
                watch.iteration_ms()
            times[kind].append([watch.iteration_ms() for _ in range(block)])
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--go", type=Path, help="file whose appearance says that fill runs")
    parser.add_argument("--stall-ms", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--block", type=int, default=20)
    # A fill's first seconds have more hold-outs than the rest (calibration).
    parser.add_argument("--settle-s", type=float, default=12.0)
    parser.add_argument("--harvest-s", type=float, default=20.0)
    parser.add_argument("--plain", type=int, default=0, help="only time so many iterations")
    parser.add_argument("--batch", type=int, default=Shape.batch)
    options = parser.parse_args()
    watch = Stopwatch(options.stall_ms, Shape(batch=options.batch))
    for _ in range(10):
        watch.iteration_ms()
    report: dict[str, Any] = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(0)}

    def save() -> None:
        partial = options.report.with_suffix(".part")
        partial.write_text(json.dumps(report))
        partial.replace(options.report)

    if options.plain:
        if options.go:
            wait_for(watch, options.go)
        report["plain_ms"] = [watch.iteration_ms() for _ in range(options.plain)]
        save()
        return
    lend = lend_switch()
    lend(False)
    report["alone_ms"] = [watch.iteration_ms() for _ in range(30)]
    report.update(bubble_share(watch, 20))
    save()
    lend(True)
    wait_for(watch, options.go)
    settled = time.monotonic() + options.settle_s
    while time.monotonic() < settled:
        watch.iteration_ms()
    report["harvest_began_ns"] = time.monotonic_ns()
    began = time.monotonic()
    harvest: list[float] = []
    while time.monotonic() - began < options.harvest_s:
        harvest.append(watch.iteration_ms())
    report["harvest_ended_ns"] = time.monotonic_ns()
    report["harvest_ms"] = harvest
    report["harvest_median_ms"] = statistics.median(harvest)
    save()
    report["blocks"] = run_blocks(watch, lend, options.rounds, options.block)
    lend(True)
    report["done"] = True
    save()
    time.sleep(2)


def wait_for(watch: Stopwatch, go: Path) -> None:
    """Trains on until the file is there; at most two minutes."""
    limit = time.monotonic() + 120
    while not go.exists():
        watch.iteration_ms()
        if time.monotonic() > limit:
            raise SystemExit("no fill came within two minutes")


if __name__ == "__main__":
    main()
