#!/usr/bin/env python3
"""Trains one model on several GPUs, data-parallel (DDP): gradients are averaged by all-reduce.

Needs at least two GPUs to have any communication:

    sbatch --gres=gpu:2 --fill-host=on train.sh
    # train.sh: torchrun --standalone --nproc-per-node 2 -m deploy.examples.train_ddp \
    #               --iterations 500

Bubbles: over NVLink few; where ranks meet over a slow link (NCCL_P2P_DISABLE=1
NCCL_SHM_DISABLE=1 shows one), the GPUs wait for gradients.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from deploy.examples.loop import Rank, add_length_options, join, run
from deploy.examples.train_host_stall import Language, Shape, random_tokens, train_on

SHAPE = Shape(batch=8)


class DdpTraining:
    """One rank."""

    def __init__(self, shape: Shape, rank: Rank) -> None:
        torch.manual_seed(1)
        self.shape, self.rank = shape, rank
        on_gpu = rank.device.type == "cuda"
        model = Language(shape).to(rank.device, torch.bfloat16 if on_gpu else torch.float32)
        self.model = DistributedDataParallel(model, device_ids=[rank.device] if on_gpu else None)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
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
    run(DdpTraining(SHAPE, rank).step, options, speaks=rank.number == 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
