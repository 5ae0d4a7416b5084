"""What the simulated GPU's own log says of the fills: counted while it grows, so that an hour of
it need not be kept."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from deploy.sandbox.simgpu.log_file import Kind, LogReader, log_path

Window = tuple[int, int]
"""Begin and end, CLOCK_MONOTONIC in nanoseconds."""


class Witness:
    """Reads the log of one GPU; `host` is the training's job."""

    def __init__(self, state: Path, minor: int, host: int) -> None:
        self._path = log_path(state, minor)
        self._reader: LogReader | None = None
        self._host = host
        self._starts = array("Q")
        self.kernels: Counter[int] = Counter()
        self.gpu_ns: Counter[int] = Counter()

    def read(self) -> None:
        """Takes in what is new."""
        if self._reader is None:
            if not self._path.exists():
                return
            self._reader = LogReader(self._path)
        log = self._reader.read()
        for operation in log.operations:
            context = log.contexts.get(operation.context)
            if context is None or operation.kind > Kind.SET:
                continue
            self.gpu_ns[context.job] += operation.end_ns - operation.start_ns
            if operation.kind == Kind.KERNEL:
                self.kernels[context.job] += 1
                if context.job != self._host:
                    self._starts.append(operation.start_ns)
        log.operations.clear()
        log.switches.clear()

    def starts_in(self, windows: Iterable[Window]) -> int:
        """Fill kernels that began within these windows."""
        spans = list(windows)
        return sum(any(begin <= at < end for begin, end in spans) for at in self._starts)
