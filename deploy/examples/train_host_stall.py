#!/usr/bin/env python3
"""Trains a small transformer whose host stalls once an iteration: the plainest maker of bubbles.

A stall stands for what real jobs do between steps on the host: decoding images, augmenting,
waiting for storage. Run it under Slurm as

    sbatch --gres=gpu:1 --fill-host=on train.sh        # train.sh: python3 train_host_stall.py

It prints one line an iteration (`iteration N MS LOSS`) and, at the end, one line of JSON with the
median. Nothing in it knows of fill: the interposer is brought by Slurm.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Shape:
    """Size of the model and of one batch."""

    width: int = 2048
    layers: int = 8
    heads: int = 16
    batch: int = 16
    tokens: int = 512
    vocabulary: int = 8192


class Language(nn.Module):
    """A causal transformer over byte-like tokens; weights are random, data is made up."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        block = nn.TransformerEncoderLayer(
            shape.width,
            shape.heads,
            4 * shape.width,
            dropout=0.0,
            batch_first=True,
            norm_first=True,
        )
        self.blocks = nn.TransformerEncoder(block, shape.layers, enable_nested_tensor=False)
        self.head = nn.Linear(shape.width, shape.vocabulary)
        mask = nn.Transformer.generate_square_subsequent_mask(shape.tokens)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        hidden = self.blocks(hidden, mask=self.mask, is_causal=True)
        result: torch.Tensor = self.head(hidden)
        return result


def random_tokens(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """A made-up batch on the host: (batch, tokens + 1), each row with the token to foretell."""
    size = (shape.batch, shape.tokens + 1)
    return torch.randint(0, shape.vocabulary, size, generator=generator)


def train_on(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> float:
    """Forward, backward and update; returns the loss, so the host waits for the GPU."""
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return float(loss.item())


class Training:
    """One training: call `step()` again and again."""

    def __init__(self, shape: Shape, seed: int = 1, device: torch.device | None = None) -> None:
        torch.manual_seed(seed)
        self.shape = shape
        self.device = device or torch.device("cuda", 0)
        self.model = Language(shape).to(self.device, torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.generator = torch.Generator(device="cpu").manual_seed(seed)

    def step(self) -> float:
        """One iteration without the stall; returns the loss, so the host waits for the GPU."""
        tokens = random_tokens(self.shape, self.generator).to(self.device, non_blocking=True)
        return train_on(self.model, self.optimizer, tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--iterations", type=int, default=0, help="0: no limit")
    parser.add_argument("--seconds", type=float, default=0.0, help="0: no limit")
    parser.add_argument("--stall-ms", type=float, default=60.0, help="host stall an iteration")
    parser.add_argument("--batch", type=int, default=Shape.batch)
    parser.add_argument("--layers", type=int, default=Shape.layers)
    options = parser.parse_args()
    if options.iterations <= 0 and options.seconds <= 0:
        parser.error("give --iterations or --seconds: a training without an end is not an example")

    training = Training(Shape(batch=options.batch, layers=options.layers))
    durations_ms: list[float] = []
    began = time.monotonic()
    iteration = 0
    while True:
        if options.iterations and iteration >= options.iterations:
            break
        if options.seconds and time.monotonic() - began >= options.seconds:
            break
        start = time.monotonic()
        loss = training.step()
        time.sleep(options.stall_ms / 1000)
        took_ms = (time.monotonic() - start) * 1000
        durations_ms.append(took_ms)
        print(f"iteration {iteration} {took_ms:.3f} {loss:.6f}", flush=True)
        iteration += 1
    tail = durations_ms[min(5, len(durations_ms) - 1) :]
    median_ms = statistics.median(tail) if tail else None
    print(json.dumps({"iterations": iteration, "median_ms": median_ms}), flush=True)


if __name__ == "__main__":
    main()
