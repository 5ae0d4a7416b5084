"""Reads what the simulated GPU itself noted: when each operation was issued, began and ended."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

HEADER_BYTES = 4096
RECORD = struct.Struct("<BBHI II QQQQQQ 64x")
KERNEL, COPY, SET = 1, 2, 3


@dataclass(frozen=True)
class Operation:
    """One kernel, copy or set; times are CLOCK_MONOTONIC nanoseconds."""

    launch_ns: int
    ready_ns: int
    start_ns: int
    end_ns: int


def operations(state: Path, gpu: int = 0) -> list[Operation]:
    """All that occupied the GPU, in the order in which it ended."""
    data = (state / f"log-{gpu}.bin").read_bytes()
    count = struct.unpack_from("<Q", data, 16)[0]
    found = []
    for index in range(count):
        record = RECORD.unpack_from(data, HEADER_BYTES + index * RECORD.size)
        if record[0] in (KERNEL, COPY, SET):
            found.append(Operation(*record[7:11]))
    return found


def gaps(done: list[Operation], least_ns: int) -> list[tuple[int, int]]:
    """(begin, end) of the stretches of at least least_ns in which nothing ran between operations;
    a stretch ends with the issue of the next operation, or its start if that came first."""
    found = []
    free_from = 0
    for operation in sorted(done, key=lambda one: one.start_ns):
        end = min(operation.start_ns, max(operation.launch_ns, free_from))
        if free_from and end - free_from >= least_ns:
            found.append((free_from, end))
        free_from = max(free_from, operation.end_ns)
    return found
