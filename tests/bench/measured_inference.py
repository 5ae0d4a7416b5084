"""A saturating inference with a stopwatch: batches of a 12-layer transformer, endlessly.

Two batches are in flight: the result of one is fetched while the next already stands in the queue,
so that alone the program keeps the GPU busy without a gap. Writes `MONOTONIC_NS BATCHES` to the
report after every batch. With --profile it runs alone for a while and reports its rate and the
GPU-busy time of a batch (by torch's profiler).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from deploy.examples.infer_jsonl import build_model


class TwoInFlight:
    """Runs batches, each waited for only when the next has been launched."""

    def __init__(self, model: torch.nn.Module, inputs: torch.Tensor) -> None:
        self._model, self._inputs = model, inputs
        self._turn = 0
        self._rows = [torch.empty(len(inputs), pin_memory=True) for _ in range(2)]
        self._ended: list[torch.cuda.Event] = []

    def batch(self) -> None:
        """Launches one batch and waits for the one before it."""
        scores = self._model(self._inputs)[:, 0, 0].float()
        self._rows[self._turn].copy_(scores, non_blocking=True)
        event = torch.cuda.Event(blocking=False)
        event.record()
        self._ended.append(event)
        self._turn = 1 - self._turn
        if len(self._ended) == 2:
            self._ended.pop(0).synchronize()


def busy_us_per_batch(running: TwoInFlight, batches: int = 20) -> float:
    """Union of kernel and copy intervals over `batches`, per batch, in microseconds."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(batches):
            running.batch()
        torch.cuda.synchronize()
    busy = reached = 0.0
    for event in sorted(
        (e for e in recorded.events() if e.device_type == torch.autograd.DeviceType.CUDA),
        key=lambda e: e.time_range.start,
    ):
        start, end = event.time_range.start, event.time_range.end
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy / batches


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--profile", action="store_true", help="run alone for --seconds, then end")
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    device = torch.device("cuda", 0)
    with torch.inference_mode():
        model = build_model(device)
        inputs = torch.randint(0, 256, (options.batch, options.tokens), device=device)
        running = TwoInFlight(model, inputs)
        for _ in range(5):
            running.batch()
        if options.profile:
            busy_us = busy_us_per_batch(running)
            began, batches = time.monotonic(), 0
            while time.monotonic() - began < options.seconds:
                running.batch()
                batches += 1
            rate = batches / (time.monotonic() - began)
            report = {"batches_per_s": rate, "busy_us_per_batch": busy_us}
            options.report.write_text(json.dumps(report))
            return
        batches = 0
        with options.report.open("a", buffering=1) as sink:
            while True:
                running.batch()
                batches += 1
                sink.write(f"{time.monotonic_ns()} {batches}\n")


if __name__ == "__main__":
    main()
