#!/usr/bin/env python3
"""Trains one model whose weights are spread over several GPUs (FSDP2, torch's fully_shard).

Needs at least two GPUs:

    sbatch --gres=gpu:2 --fill-host=on train.sh
    # train.sh: torchrun --standalone --nproc-per-node 2 -m deploy.examples.train_fsdp \
    #               --iterations 500

Bubbles: each layer's weights are gathered before it runs; where that takes longer than the layer
before it computes, the GPU waits.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from deploy.examples.loop import Rank, add_length_options, join, run
from deploy.examples.train_host_stall import Language, Shape, random_tokens, train_on

SHAPE = Shape(batch=8)


class FsdpTraining:
    """One rank."""

    def __init__(self, shape: Shape, rank: Rank) -> None:
        torch.manual_seed(1)
        self.shape, self.rank = shape, rank
        on_gpu = rank.device.type == "cuda"
        model = Language(shape).to(rank.device, torch.bfloat16 if on_gpu else torch.float32)
        for layer in model.blocks.layers:
            fully_shard(layer)
        self.model = fully_shard(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.generator = torch.Generator(device="cpu").manual_seed(rank.number)

    def step(self) -> float:
        """One iteration on this rank's share of the data; its own loss."""
        tokens = random_tokens(self.shape, self.generator)
        return train_on(self.model, self.optimizer, tokens.to(self.rank.device, non_blocking=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_length_options(parser)
    options = parser.parse_args()
    rank = join()
    run(FsdpTraining(SHAPE, rank).step, options, speaks=rank.number == 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
