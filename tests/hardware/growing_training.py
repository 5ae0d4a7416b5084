"""A training that grows, for tests.hardware.rescue: deterministic, every loss kept to the bit.

It trains with `--hold-gib` taken and a pause between iterations, then takes `--grow-gib` more and
trains on with it. `--repeats` does all of that so many times in one process, from the same seed.
With `--stay` it waits for a file before it grows, and afterwards goes on until another appears, one
line (nanoseconds, iteration's milliseconds) each.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

ITERATIONS = 40  # before the growth, and after it
WIDTH = 2048
PAUSE_S = 0.03
GIB = 1 << 30


class Training:
    """A small network under AdamW; all it does follows from the seed."""

    def __init__(self, hold_gib: int) -> None:
        torch.manual_seed(7)
        self.hold = [torch.empty(GIB, dtype=torch.uint8, device="cuda") for _ in range(hold_gib)]
        layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, WIDTH)]
        self.model = torch.nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)
        self.generator = torch.Generator("cuda").manual_seed(11)
        self.grown: torch.Tensor | None = None
        self.losses: list[str] = []

    def grow(self, gib: int) -> float:
        """Takes the memory in one piece; seconds."""
        began = time.monotonic()
        self.grown = torch.empty(gib * GIB // 4, device="cuda")
        torch.cuda.synchronize()
        took = time.monotonic() - began
        self.grown.fill_(0.5)
        return took

    def iterate(self) -> None:
        data = torch.randn(256, WIDTH, device="cuda", generator=self.generator)
        if self.grown is not None:  # the last bytes of what was taken are part of the batch
            data = data + self.grown[-data.numel() :].view_as(data)
        loss = (self.model(data) - data).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item().hex())
        time.sleep(PAUSE_S)


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)


def stay(training: Training, end: Path, lines: Path) -> None:
    """Goes on until the file `end` appears, with a line for each iteration."""
    with lines.open("w", buffering=1) as out:
        while not end.exists():
            began = time.monotonic_ns()
            training.iterate()
            now = time.monotonic_ns()
            out.write(f"{now} {(now - began) / 1e6 - PAUSE_S * 1e3:.3f}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--hold-gib", type=int, required=True)
    parser.add_argument("--grow-gib", type=int, required=True)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--stay", type=Path, help="folder of the files go, end and iterations.txt")
    options = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    runs: list[dict[str, object]] = []
    for _ in range(options.repeats):
        training = Training(options.hold_gib)
        for _ in range(ITERATIONS):
            training.iterate()
        torch.cuda.synchronize()
        if options.stay:
            (options.stay / "ready").touch()
            wait_for(options.stay / "go")
        free_gib = torch.cuda.mem_get_info()[0] / GIB
        grow_s = training.grow(options.grow_gib)
        for _ in range(ITERATIONS):
            training.iterate()
        runs.append({"losses": training.losses[:], "grow_s": grow_s, "free_gib": free_gib})
        partial = options.report.with_suffix(".part")
        partial.write_text(json.dumps(runs))
        partial.replace(options.report)
        if options.stay:
            stay(training, options.stay / "end", options.stay / "iterations.txt")
        del training
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
