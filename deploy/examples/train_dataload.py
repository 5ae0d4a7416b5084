#!/usr/bin/env python3
"""Trains on batches that take a varying time to load: bubbles while the GPU waits for data.

    sbatch --gres=gpu:1 --fill-host=on train.sh
    # train.sh: python3 -m deploy.examples.train_dataload --seconds 60

A thread prepares one batch ahead. How long each takes is drawn anew, as with files of differing
size on a shared filesystem: mostly tens of milliseconds, sometimes much longer.
"""

from __future__ import annotations

import argparse
import queue
import random
import threading
import time

import torch

from deploy.examples.loop import add_length_options, first_device, run
from deploy.examples.train_host_stall import Shape, Training, random_tokens, train_on

SHAPE = Shape(batch=8)


class Loader:
    """Batches of random tokens, each after a wait; restart() gives the same sequence again."""

    def __init__(self, shape: Shape, median_ms: float, spread: float, seed: int = 1) -> None:
        self._shape = shape
        self._median_s, self._spread = median_ms / 1000, spread
        self._seed = seed
        self._generation = 0
        self._ready: queue.Queue[torch.Tensor] = queue.Queue(maxsize=1)
        self.restart()

    def restart(self) -> None:
        """Drops what is prepared and begins at the first batch."""
        self._generation += 1
        self._ready = queue.Queue(maxsize=1)
        arguments = (self._generation, self._ready)
        threading.Thread(target=self._load, args=arguments, daemon=True).start()

    def next(self) -> torch.Tensor:
        """The next batch; waits until it is loaded."""
        return self._ready.get()

    def _load(self, generation: int, ready: queue.Queue[torch.Tensor]) -> None:
        waits = random.Random(self._seed)
        shape = self._shape
        generator = torch.Generator(device="cpu").manual_seed(self._seed)
        while generation == self._generation:
            time.sleep(self._median_s * waits.lognormvariate(0.0, self._spread))
            batch = random_tokens(shape, generator)
            while generation == self._generation:
                try:
                    ready.put(batch, timeout=0.5)
                    break
                except queue.Full:
                    continue


class DataloadTraining:
    """A training fed by a loader."""

    def __init__(
        self, shape: Shape, device: torch.device, median_ms: float = 50.0, spread: float = 0.6
    ) -> None:
        self.training = Training(shape, device=device)
        self.loader = Loader(shape, median_ms, spread)

    def step(self) -> float:
        """Waits for a batch and trains on it; the loss."""
        training = self.training
        tokens = self.loader.next().to(training.device, non_blocking=True)
        return train_on(training.model, training.optimizer, tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_length_options(parser)
    parser.add_argument("--load-ms", type=float, default=50.0, help="median time to load a batch")
    parser.add_argument("--spread", type=float, default=0.6, help="of its logarithm")
    options = parser.parse_args()
    training = DataloadTraining(SHAPE, first_device(), options.load_ms, options.spread)
    run(training.step, options)


if __name__ == "__main__":
    main()
