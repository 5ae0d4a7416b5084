"""A saturating inference with a stopwatch: batches of a 12-layer transformer, endlessly.

Writes `MONOTONIC_NS BATCHES` to the report every few batches. With --profile it runs alone for a
while and reports its rate and the GPU-busy time of a batch (by torch's profiler).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from deploy.examples.infer_jsonl import build_model


def busy_us_per_batch(model: torch.nn.Module, inputs: torch.Tensor, batches: int = 20) -> float:
    """Union of kernel and copy intervals over `batches`, per batch, in microseconds."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(batches):
            model(inputs)
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
        for _ in range(5):
            model(inputs)[:, 0, 0].cpu()
        if options.profile:
            busy_us = busy_us_per_batch(model, inputs)
            began, batches = time.monotonic(), 0
            while time.monotonic() - began < options.seconds:
                model(inputs)[:, 0, 0].cpu()
                batches += 1
            rate = batches / (time.monotonic() - began)
            report = {"batches_per_s": rate, "busy_us_per_batch": busy_us}
            options.report.write_text(json.dumps(report))
            return
        batches = 0
        with options.report.open("a", buffering=1) as sink:
            while True:
                model(inputs)[:, 0, 0].cpu()
                batches += 1
                sink.write(f"{time.monotonic_ns()} {batches}\n")


if __name__ == "__main__":
    main()
