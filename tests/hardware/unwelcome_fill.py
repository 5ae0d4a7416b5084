"""A fill for tests.hardware.rescue: takes memory and works, or launches an endless kernel."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

GIB = 1 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--report", type=Path, required=True, help="gets the time it was ready")
    parser.add_argument("--hold-gib", type=int, default=0)
    parser.add_argument("--endless", action="store_true")
    options = parser.parse_args()
    hold = [torch.empty(GIB, dtype=torch.uint8, device="cuda") for _ in range(options.hold_gib)]
    data = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    for _ in range(50):
        data = torch.tanh(data @ data)
    torch.cuda.synchronize()
    options.report.write_text(f"{time.monotonic_ns()} {len(hold)}\n")
    if options.endless:
        torch.cuda._sleep(1 << 62)  # cycles
        torch.cuda.synchronize()
    while True:
        data = torch.tanh(data @ data)
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
