"""The trainings that the bench measures, by name; each is an example program's training.

`tiny` sizes run on a CPU within milliseconds: they are for dry runs and give no figures.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from deploy.examples.loop import first_device, join
from deploy.examples.train_host_stall import Shape, Training

if TYPE_CHECKING:
    from deploy.examples.train_dataload import DataloadTraining

TINY = Shape(width=32, layers=4, heads=2, batch=8, tokens=16, vocabulary=64)
CHECKPOINT_EVERY = 10
CHECKPOINT_ROOM_BYTES = 2 << 30
FILES = "sfill-bench-state"
STALL_MS = 60.0


class Plain:
    """A training whose iterations are all alike."""

    def __init__(self, step: Callable[[], float]) -> None:
        self._step = step

    def step(self) -> float:
        return self._step()

    def restart(self) -> None:
        pass


class Stall(Plain):
    """A host that stalls once an iteration."""

    def __init__(self, step: Callable[[], float], stall_ms: float) -> None:
        super().__init__(step)
        self._stall_s = stall_ms / 1000

    def step(self) -> float:
        loss = super().step()
        time.sleep(self._stall_s)
        return loss


class Cycle(Plain):
    """Several steps taken as one iteration: a checkpoint and the steps before it."""

    def __init__(self, step: Callable[[], float], steps: int) -> None:
        super().__init__(step)
        self._steps = steps

    def step(self) -> float:
        for _ in range(self._steps - 1):
            super().step()
        return super().step()


class Dataload(Plain):
    """Each block waits for the same sequence of batches."""

    def __init__(self, training: DataloadTraining) -> None:
        super().__init__(training.step)
        self._loader = training.loader

    def restart(self) -> None:
        self._loader.restart()


def stall(tiny: bool, stall_ms: float = STALL_MS, batch: int = 0) -> Plain:
    shape = TINY if tiny else Shape(batch=batch or Shape.batch)
    training = Training(shape, device=first_device())
    return Stall(training.step, 5.0 if tiny else stall_ms)


def checkpoint(tiny: bool) -> Plain:
    from deploy.examples.train_checkpoint import SHAPE, CheckpointTraining

    file = checkpoint_folder() / f"{FILES}-{os.getuid()}-{os.getpid()}.pt"
    shape = TINY if tiny else SHAPE
    training = CheckpointTraining(shape, file, CHECKPOINT_EVERY, first_device())
    return Cycle(training.step, CHECKPOINT_EVERY)


def dataload(tiny: bool) -> Plain:
    from deploy.examples.train_dataload import SHAPE, DataloadTraining

    shape, median_ms = (TINY, 5.0) if tiny else (SHAPE, 50.0)
    return Dataload(DataloadTraining(shape, first_device(), median_ms))


def ddp(tiny: bool) -> Plain:
    from deploy.examples.train_ddp import SHAPE, DdpTraining

    return Plain(DdpTraining(TINY if tiny else SHAPE, join()).step)


def fsdp(tiny: bool) -> Plain:
    from deploy.examples.train_fsdp import SHAPE, FsdpTraining

    return Plain(FsdpTraining(TINY if tiny else SHAPE, join()).step)


def pp(tiny: bool) -> Plain:
    from deploy.examples.train_pipeline import MICROBATCHES, SHAPE, PipelineTraining

    rank = join()
    microbatches = max(MICROBATCHES, 2 * rank.world)
    shape = replace(TINY if tiny else SHAPE, batch=4 * microbatches)
    return Plain(PipelineTraining(shape, rank, microbatches).step)


BUILDERS: dict[str, Callable[[bool], Plain]] = {
    "stall": stall,
    "checkpoint": checkpoint,
    "dataload": dataload,
    "ddp": ddp,
    "fsdp": fsdp,
    "pp": pp,
}


def checkpoint_folder() -> Path:
    """In memory where there is room: measured is the way of writing, not this machine's disk."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free >= CHECKPOINT_ROOM_BYTES
    return memory if roomy else Path(tempfile.gettempdir())


def remove_files() -> None:
    """Takes away what checkpoint has written in this process."""
    for folder in (Path("/dev/shm"), Path(tempfile.gettempdir())):
        for name in (".pt", ".part"):
            own = f"{FILES}-{os.getuid()}-{os.getpid()}{name}"
            (folder / own).unlink(missing_ok=True)


def agreed(answer: bool) -> bool:
    """What the first rank answers, on all ranks: a stage must end everywhere at one iteration."""
    if not dist.is_initialized():
        return answer
    device = "cuda" if torch.cuda.is_available() else "cpu"
    word = torch.tensor([int(answer)], device=device)
    dist.broadcast(word, src=0)
    return bool(word.item())
