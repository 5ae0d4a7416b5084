"""Gives dry runs a simulated GPU: programs on the CPU launch simulated kernels beside their work.

So agent, gate and the bench's own library see launches, and all of a cell's course can be tried
where there is no GPU. None of it is a figure.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from deploy.sandbox.simgpu.session import Session
from tests.bench.stopwatch import Workload

Result = TypeVar("Result")
TRAINING_KERNELS, TRAINING_US = 10, 500
FILL_KERNELS, FILL_US = 4, 300


class Kernels:
    """A row of kernels of one name on a stream of its own."""

    def __init__(
        self, library: Path, name: str, count: int, microseconds: int, device: int = 0
    ) -> None:
        self._gpu = Session(library, device)
        self._stream: ctypes.c_void_p = self._gpu.stream()
        self._name, self._count, self._us = name, count, microseconds

    def run(self) -> None:
        """Launches them and waits."""
        for _ in range(self._count):
            self._gpu.launch(self._name, self._us, self._stream)
        self._gpu.call("cuStreamSynchronize", self._stream)


class SimulatedWorkload:
    """A training whose iterations begin with simulated kernels; its own work is the bubble."""

    def __init__(self, inner: Workload, library: Path, device: int) -> None:
        self._inner = inner
        self._kernels = Kernels(library, "train_gemm", TRAINING_KERNELS, TRAINING_US, device)

    def step(self) -> object:
        self._kernels.run()
        return self._inner.step()

    def restart(self) -> None:
        self._inner.restart()


def launching(inner: Callable[[], Result], library: Path) -> Callable[[], Result]:
    """An inference whose batches run simulated kernels first."""
    kernels = Kernels(library, "infer_gemm", FILL_KERNELS, FILL_US)

    def launch() -> Result:
        kernels.run()
        return inner()

    return launch
