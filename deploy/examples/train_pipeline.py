#!/usr/bin/env python3
"""Trains one model in stages on several GPUs: a GPipe-style pipeline with microbatches.

Needs at least two GPUs, one for each stage:

    sbatch --gres=gpu:2 --fill-host=on train.sh
    # train.sh: torchrun --standalone --nproc-per-node 2 -m deploy.examples.train_pipeline \
    #               --iterations 500

All microbatches go forward through the stages, then all go back. Bubbles: the first microbatch
finds later stages waiting for it, the last leaves earlier ones with nothing to do.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from deploy.examples.loop import Rank, add_length_options, join, run
from deploy.examples.train_host_stall import Language, Shape

SHAPE = Shape(batch=16, layers=16)
MICROBATCHES = 4


class Stage(nn.Module):
    """A run of layers; the first stage embeds, the last one predicts."""

    def __init__(self, shape: Shape, number: int, stages: int) -> None:
        super().__init__()
        share = shape.layers // stages + (1 if number < shape.layers % stages else 0)
        whole = Language(replace(shape, layers=share))
        self.embedding = whole.embedding if number == 0 else None
        self.blocks = whole.blocks
        self.head = whole.head if number == stages - 1 else None
        self.register_buffer("mask", whole.mask, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(inputs) if self.embedding is not None else inputs
        hidden = self.blocks(hidden, mask=self.mask, is_causal=True)
        result: torch.Tensor = self.head(hidden) if self.head is not None else hidden
        return result


class PipelineTraining:
    """One stage's rank."""

    def __init__(self, shape: Shape, rank: Rank, microbatches: int = MICROBATCHES) -> None:
        if rank.world > shape.layers or shape.batch % microbatches:
            raise SystemExit("a pipeline needs a layer for each stage and equal microbatches")
        torch.manual_seed(1)
        self.shape, self.rank, self.microbatches = shape, rank, microbatches
        self.first, self.last = rank.number == 0, rank.number == rank.world - 1
        self.kind = torch.bfloat16 if rank.device.type == "cuda" else torch.float32
        self.stage = Stage(shape, rank.number, rank.world).to(rank.device, self.kind)
        self.optimizer = torch.optim.AdamW(self.stage.parameters(), lr=1e-4, fused=True)
        self.generator = torch.Generator(device="cpu").manual_seed(1)  # all ranks see the same data

    def step(self) -> float:
        """One iteration; every rank returns the loss of the whole batch."""
        shape, parts = self.shape, self.microbatches
        size = (shape.batch, shape.tokens + 1)
        tokens = torch.randint(0, shape.vocabulary, size, generator=self.generator)
        pieces = tokens.to(self.rank.device, non_blocking=True).chunk(parts)
        self.optimizer.zero_grad(set_to_none=True)
        ways = [self._forward(piece) for piece in pieces]
        total = torch.zeros((), device=self.rank.device)
        for inputs, outputs in ways:
            self._backward(inputs, outputs)
            if self.last:
                total += outputs.detach()
        self.optimizer.step()
        dist.broadcast(total, src=self.rank.world - 1)
        return float(total.item())

    def _forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes a microbatch from the stage before, computes, hands it on."""
        if self.first:
            inputs = tokens[:, :-1]
        else:
            rows = (tokens.shape[0], self.shape.tokens, self.shape.width)
            inputs = torch.empty(rows, device=self.rank.device, dtype=self.kind)
            dist.recv(inputs, src=self.rank.number - 1)
            inputs.requires_grad_()
        outputs = self.stage(inputs)
        if self.last:
            targets = tokens[:, 1:].flatten()
            loss = nn.functional.cross_entropy(outputs.flatten(0, 1).float(), targets)
            return inputs, loss / self.microbatches
        dist.send(outputs.detach().contiguous(), dst=self.rank.number + 1)
        return inputs, outputs

    def _backward(self, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        """Takes the gradient from the stage after, goes back through this one, hands it on."""
        if self.last:
            outputs.backward()
        else:
            gradient = torch.empty_like(outputs)
            dist.recv(gradient, src=self.rank.number + 1)
            outputs.backward(gradient)
        if not self.first:
            assert inputs.grad is not None
            dist.send(inputs.grad.contiguous(), dst=self.rank.number - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_length_options(parser)
    parser.add_argument("--microbatches", type=int, default=MICROBATCHES)
    options = parser.parse_args()
    rank = join()
    training = PipelineTraining(SHAPE, rank, options.microbatches)
    run(training.step, options, speaks=rank.number == rank.world - 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
