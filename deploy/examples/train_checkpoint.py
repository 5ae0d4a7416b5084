#!/usr/bin/env python3
"""Trains and writes its whole state to a file every few iterations: bubbles while it writes.

    sbatch --gres=gpu:1 --fill-host=on train.sh
    # train.sh: python3 -m deploy.examples.train_checkpoint --seconds 60 --file state.pt

The state is written beside the old file and then takes its place, so that a job which is killed
while it writes finds a whole one; a job that starts goes on from it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from deploy.examples.loop import add_length_options, first_device, run
from deploy.examples.train_host_stall import Shape, Training

SHAPE = Shape(width=1024, layers=2, batch=32)


class CheckpointTraining:
    """A training and its file."""

    def __init__(self, shape: Shape, file: Path, every: int, device: torch.device) -> None:
        self.training = Training(shape, device=device)
        self.file = file
        self.every = every
        self.iteration = 0
        if file.exists():
            self.load()

    def step(self) -> float:
        """One iteration, with a checkpoint after every few; the loss."""
        loss = self.training.step()
        self.iteration += 1
        if self.iteration % self.every == 0:
            self.save()
        return loss

    def save(self) -> None:
        """Writes model, optimizer and iteration."""
        partial = self.file.with_suffix(".part")
        state = {
            "model": self.training.model.state_dict(),
            "optimizer": self.training.optimizer.state_dict(),
            "iteration": self.iteration,
        }
        torch.save(state, partial)
        partial.replace(self.file)

    def load(self) -> None:
        """Goes on from the file."""
        state = torch.load(self.file, map_location=self.training.device)
        self.training.model.load_state_dict(state["model"])
        self.training.optimizer.load_state_dict(state["optimizer"])
        self.iteration = int(state["iteration"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_length_options(parser)
    parser.add_argument("--file", type=Path, required=True, help="where the state is kept")
    parser.add_argument("--every", type=int, default=10, help="iterations between checkpoints")
    options = parser.parse_args()
    run(CheckpointTraining(SHAPE, options.file, options.every, first_device()).step, options)


if __name__ == "__main__":
    main()
