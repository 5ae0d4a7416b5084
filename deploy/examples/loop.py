"""What the training examples share: the loop around their steps, and how ranks find each other."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Rank:
    """One process of a distributed training, as torchrun numbers them."""

    number: int
    world: int
    device: torch.device


def join() -> Rank:
    """Joins the process group that torchrun describes: NCCL on GPUs, gloo where there is none."""
    local = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    return Rank(dist.get_rank(), dist.get_world_size(), device)


def first_device() -> torch.device:
    """The GPU of a program that needs only one; the CPU where there is none."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def add_length_options(parser: argparse.ArgumentParser) -> None:
    """--iterations and --seconds."""
    parser.add_argument("--iterations", type=int, default=0, help="0: no limit")
    parser.add_argument("--seconds", type=float, default=0.0, help="0: no limit")


def run(step: Callable[[], float], options: argparse.Namespace, speaks: bool = True) -> None:
    """Steps until the limits; prints `iteration N MS LOSS` and at the end a line of JSON.

    With several ranks only --iterations ends all at the same step. SystemExit without a limit.
    """
    if options.iterations <= 0 and options.seconds <= 0:
        raise SystemExit("give --iterations or --seconds: a training without an end is no example")
    times_ms: list[float] = []
    began = time.monotonic()
    while not (options.iterations and len(times_ms) >= options.iterations):
        if options.seconds and time.monotonic() - began >= options.seconds:
            break
        start = time.monotonic()
        loss = step()
        times_ms.append((time.monotonic() - start) * 1000)
        if speaks:
            print(f"iteration {len(times_ms) - 1} {times_ms[-1]:.3f} {loss:.6f}", flush=True)
    median_ms = statistics.median(times_ms[min(5, len(times_ms) - 1) :]) if times_ms else None
    if speaks:
        print(json.dumps({"iterations": len(times_ms), "median_ms": median_ms}), flush=True)
