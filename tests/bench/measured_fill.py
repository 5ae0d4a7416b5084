"""A saturating inference with a stopwatch: a job of the bench, the same one under every policy.

Two batches are in flight. Writes `MONOTONIC_NS BATCHES` to the report after every batch. With a
page it first warms up, says how fast it launches, and pauses; then it runs and pauses as the page
says. With --profile it runs alone for a while and reports its rate and the GPU-busy time of a batch
(by torch's profiler).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from deploy.examples.loop import first_device
from tests.bench import inferences
from tests.bench.inferences import TwoInFlight
from tests.bench.page import Page, Word
from tests.bench.simulated import launching
from tests.bench.stopwatch import is_annotation, on_host

WARM_UP = 10
FREE_RATE_S = 0.5
PAUSE_S = 0.0005


def busy_us_per_batch(running: TwoInFlight, batches: int = 20) -> float:
    """Union of kernel and copy intervals over `batches`, per batch, in microseconds."""
    on_gpu = torch.cuda.is_available()
    running.drain()
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        for _ in range(batches):
            running.batch()
        running.drain()
    busy = reached = 0.0
    events = [e for e in seen.events() if on_host(e) != on_gpu and not is_annotation(e)]
    for event in sorted(events, key=lambda e: e.time_range.start):
        start, end = event.time_range.start, event.time_range.end
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy / batches


def alone(running: TwoInFlight, seconds: float) -> dict[str, float]:
    """Rate and GPU-busy time of a batch with nothing beside it."""
    busy_us = busy_us_per_batch(running)
    running.batch()
    began, batches = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        running.batch()
        batches += 1
    rate = batches / (time.monotonic() - began)
    return {"batches_per_s": rate, "busy_us_per_batch": busy_us}


def note_free_rate(running: TwoInFlight, page: Page) -> None:
    """Launches a second while nothing holds them; at least 1, which also says: ready."""
    before, began = page[Word.FILL_LAUNCHES], time.monotonic()
    while time.monotonic() - began < FREE_RATE_S:
        running.batch()
    running.drain()
    launches = page[Word.FILL_LAUNCHES] - before
    page[Word.FREE_RATE] = max(1, round(launches / (time.monotonic() - began)))


def obey(running: TwoInFlight, page: Page) -> bool:
    """Does what the page says; returns when it says run (True) or stop (False)."""
    while not page[Word.STOP]:
        command = page[Word.COMMAND]
        if command % 2 == 1:
            page.obey(command)
            return True
        if page[Word.OBEYED] != command:
            running.drain()
            page.obey(command)
        time.sleep(PAUSE_S)
    return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--inference", choices=inferences.NAMES, default="transformer")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tiny", action="store_true", help="sizes for a dry run on a CPU")
    parser.add_argument("--simulated", type=Path, help="dry run: a simulated libcuda.so.1")
    parser.add_argument("--page", type=Path, help="what says when to run; without: always")
    parser.add_argument("--profile", action="store_true", help="run alone for --seconds, then end")
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    page = Page(options.page) if options.page else None
    with torch.inference_mode():
        launch = inferences.build(options.inference, first_device(), options.tiny, options.batch)
        if options.simulated:
            launch = launching(launch, options.simulated)
        running = TwoInFlight(launch)
        for _ in range(WARM_UP):
            running.batch()
        if options.profile:
            options.report.write_text(json.dumps(alone(running, options.seconds)))
            return
        if page:
            note_free_rate(running, page)
        batches = 0
        with options.report.open("a", buffering=1) as sink:
            if torch.cuda.is_available():
                sink.write(f"gpu {torch.cuda.get_device_properties(0).uuid}\n")
            while page is None or (page.runs and not page[Word.STOP]) or obey(running, page):
                running.batch()
                batches += 1
                sink.write(f"{time.monotonic_ns()} {batches}\n")
        running.drain()


if __name__ == "__main__":
    main()
