"""A training with a stopwatch: a job of the bench, not a test. Under torchrun one rank of several.

Stages, each written to the report file as it ends:
  profile   fill shut out, torch's profiler on: bubble share of the training alone
  wait      lends until the bench says that fill runs (a file appears; with --switch page: at once)
  harvest   lends without a break, for the rates of fill (--harvest-s 0: none)
  blocks    rounds of {filled, shut, shut control} in random order, `--block` iterations each

With --plain only a row of iterations is timed; with --turns blocks of iterations are run when the
bench's page says so, so that several trainings can take turns on one GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.bench import workloads
from tests.bench.page import Page, Word
from tests.bench.simulated import SimulatedWorkload
from tests.bench.stopwatch import (
    Switch,
    Workload,
    bubble_share,
    iteration_ms,
    run_blocks,
    run_until,
    timed_block,
)
from tests.bench.switches import make_switch, page_of_rank

WARM_UP = 10
ALONE_ITERATIONS = 30
READY_S = 90.0
TURN_S = 60.0


class Report:
    """A JSON file that is replaced whole, so that a reader finds it complete."""

    def __init__(self, path: Path, rank: int) -> None:
        self._path = path if rank == 0 else path.with_name(f"{path.name}.{rank}")
        self.values: dict[str, Any] = {"torch": torch.__version__, "rank": rank}

    def save(self) -> None:
        partial = self._path.with_name(f"{self._path.name}.part")
        partial.write_text(json.dumps(self.values))
        partial.replace(self._path)


def timer(seconds: float) -> Callable[[], bool]:
    """Is over after so long, on all ranks at once."""
    limit = time.monotonic() + seconds
    return lambda: workloads.agreed(time.monotonic() >= limit)


def wait_for(workload: Workload, go: Path) -> None:
    """Trains on until the file is there; at most two minutes."""
    late = time.monotonic() + 120
    run_until(workload, lambda: workloads.agreed(go.exists() or time.monotonic() > late))
    if not go.exists():
        raise SystemExit("no fill came within two minutes")


def wait_for_warm_fill(page: Page) -> None:
    """Until the fill has warmed up and pauses: a training's own warm-up must not meet it."""
    limit = time.monotonic() + READY_S
    while not page[Word.FREE_RATE] or page[Word.OBEYED] != page[Word.COMMAND]:
        if page[Word.STOP] or time.monotonic() > limit:
            raise SystemExit("the fill did not get ready")
        time.sleep(0.01)


def measure(
    workload: Workload, switch: Switch, report: Report, options: argparse.Namespace
) -> None:
    """The stages, once the training is warm."""
    values = report.values
    switch.set(False)
    switch.steady(True)
    values["alone_ms"] = [iteration_ms(workload) for _ in range(options.alone)]
    switch.steady(False)
    values.update(bubble_share(workload, options.profile, torch.cuda.is_available()))
    report.save()
    switch.set(True)
    if options.go:
        wait_for(workload, options.go)
    switch.steady(True)
    run_until(workload, timer(options.settle_s))
    if options.harvest_s:
        values["harvest_began_ns"] = time.monotonic_ns()
        values["harvest_ms"] = run_until(workload, timer(options.harvest_s))
        values["harvest_ended_ns"] = time.monotonic_ns()
        values["harvest_median_ms"] = statistics.median(values["harvest_ms"])
        report.save()
    switch.steady(False)
    blocks = run_blocks(workload, switch, options.rounds, options.block)
    switch.set(True)
    values["blocks"] = blocks.times_ms
    values["filled_ns"] = blocks.filled_ns
    values["done"] = True
    report.save()


def take_turns(workload: Workload, page: Page, report: Report, block: int) -> None:
    """Runs a block whenever the page's command turns odd; ends when it says stop."""
    blocks: list[list[float]] = []
    report.values["turns"] = blocks
    page[Word.FREE_RATE] = 1  # ready
    limit = time.monotonic() + TURN_S
    while not page[Word.STOP]:
        command = page[Word.COMMAND]
        if command == page[Word.OBEYED]:
            time.sleep(0.0005)
            if time.monotonic() > limit:
                raise SystemExit("the bench gave no turn for a minute")
            continue
        if command % 2 == 1:
            blocks.append(timed_block(workload, block))
        page.obey(command)
        limit = time.monotonic() + TURN_S
    report.values["done"] = True
    report.save()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--workload", choices=sorted(workloads.BUILDERS), default="stall")
    parser.add_argument("--tiny", action="store_true", help="sizes for a dry run on a CPU")
    parser.add_argument("--simulated", type=Path, help="dry run: a simulated libcuda.so.1")
    parser.add_argument("--switch", choices=("lend", "page", "none"), default="lend")
    parser.add_argument("--pages", type=Path, help="the page of rank N is PAGES.N")
    parser.add_argument("--turns", action="store_true", help="blocks when the page says so")
    parser.add_argument("--go", type=Path, help="file whose appearance says that fill runs")
    parser.add_argument("--stall-ms", type=float, default=workloads.STALL_MS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--block", type=int, default=20)
    parser.add_argument("--alone", type=int, default=ALONE_ITERATIONS, help="iterations at first")
    parser.add_argument("--profile", type=int, default=20, help="iterations under the profiler")
    # A fill's first seconds have more hold-outs than the rest (calibration).
    parser.add_argument("--settle-s", type=float, default=12.0)
    parser.add_argument("--harvest-s", type=float, default=20.0)
    parser.add_argument("--plain", type=int, default=0, help="only time so many iterations")
    parser.add_argument("--batch", type=int, default=0, help="of the stall workload")
    options = parser.parse_args()
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    report = Report(options.report, rank)
    page = Page(page_of_rank(options.pages, rank)) if options.pages else None
    if options.pages:  # for the bench's library, which looks at the first CUDA call
        os.environ["SFILL_BENCH_PAGE"] = str(page_of_rank(options.pages, rank))
    if options.workload == "stall":
        workload: Workload = workloads.stall(options.tiny, options.stall_ms, options.batch)
    else:
        workload = workloads.BUILDERS[options.workload](options.tiny)
    if options.simulated:
        workload = SimulatedWorkload(workload, options.simulated, rank)
    if torch.cuda.is_available():
        report.values["gpu"] = torch.cuda.get_device_name(rank)
        report.values["gpu_uuid"] = str(torch.cuda.get_device_properties(rank).uuid)
    try:
        if page and options.switch == "page" and not options.turns:
            wait_for_warm_fill(page)
        for _ in range(WARM_UP):
            workload.step()
        if options.turns:
            if page is None:
                raise SystemExit("--turns needs --pages")
            take_turns(workload, page, report, options.block)
        elif options.plain:
            if options.go:
                wait_for(workload, options.go)
            report.values["plain_ms"] = [iteration_ms(workload) for _ in range(options.plain)]
            report.save()
        else:
            measure(workload, make_switch(options.switch, options.pages), report, options)
            time.sleep(2 if options.switch == "lend" else 0)  # the agent books the last bubbles
    finally:
        workloads.remove_files()


if __name__ == "__main__":
    main()
