#!/usr/bin/env python3
"""Batch inference of a model whose layers are split over two GPUs (tensor-parallel).

Needs two GPUs, and a site whose `--fill` knows `gpus=` (releases that do not know it refuse the
submission and say so; the program itself runs anywhere that torchrun finds GPUs):

    sbatch --fill=mem=16G,gpus=2 infer.sh
    # infer.sh: torchrun --standalone --nproc-per-node 2 -m deploy.examples.infer_tensor_parallel \
    #               --batches 1000

Each rank holds half of every layer's heads and half of its feed-forward part; two all-reduces a
layer add the halves up. So all ranks must run at once: held apart, each would wait for the other.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn

from deploy.examples.loop import Rank, join


class SplitLayer(nn.Module):
    """One rank's share of a transformer layer: whole heads, and a slice of the feed-forward."""

    def __init__(self, width: int, heads: int, ranks: int) -> None:
        super().__init__()
        if heads % ranks:
            raise SystemExit(f"{heads} heads cannot be split over {ranks} ranks")
        self.heads, self.head_width = heads // ranks, width // heads
        inner = self.heads * self.head_width
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * inner, bias=False)
        self.out = nn.Linear(inner, width, bias=False)
        self.up = nn.Linear(width, 4 * width // ranks, bias=False)
        self.down = nn.Linear(4 * width // ranks, width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = hidden.shape
        parts = self.qkv(self.norm_1(hidden)).chunk(3, -1)
        rows = (batch, tokens, self.heads, self.head_width)
        query, key, value = (part.view(rows).transpose(1, 2) for part in parts)
        seen = nn.functional.scaled_dot_product_attention(query, key, value)
        mixed = self.out(seen.transpose(1, 2).reshape(batch, tokens, -1))
        dist.all_reduce(mixed)
        hidden = hidden + mixed
        grown = self.down(nn.functional.gelu(self.up(self.norm_2(hidden))))
        dist.all_reduce(grown)
        return hidden + grown


class SplitModel:
    """One rank of the model; every rank is given the same inputs and gets the same scores."""

    def __init__(self, rank: Rank, width: int = 4096, layers: int = 8, heads: int = 32) -> None:
        torch.manual_seed(7)  # what is not split must be the same everywhere
        kind = torch.bfloat16 if rank.device.type == "cuda" else torch.float32
        self.embedding = nn.Embedding(256, width).to(rank.device, kind)
        self.head = nn.Linear(width, 1).to(rank.device, kind)
        torch.manual_seed(8 + rank.number)
        split = (SplitLayer(width, heads, rank.world) for _ in range(layers))
        self.layers = nn.Sequential(*split).to(rank.device, kind)

    @torch.inference_mode()
    def scores(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of a batch of byte tokens, shape (batch,)."""
        hidden = self.layers(self.embedding(tokens))
        result: torch.Tensor = self.head(hidden)[:, 0, 0].float()
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--width", type=int, default=4096)
    options = parser.parse_args()
    rank = join()
    model = SplitModel(rank, options.width)
    generator = torch.Generator(device="cpu").manual_seed(3)
    began = time.monotonic()
    total = 0.0
    for _ in range(options.batches):
        size = (options.batch, options.tokens)
        tokens = torch.randint(0, 256, size, generator=generator).to(rank.device)
        total += float(model.scores(tokens).sum())
    seconds = time.monotonic() - began
    if rank.number == 0:
        rate = options.batches / seconds if seconds else 0.0
        print(json.dumps({"batches": options.batches, "batches_per_s": rate, "sum": total}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
