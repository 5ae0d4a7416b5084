"""Reads the log that the simulated driver keeps of one GPU (log.h states the layout).

All times are CLOCK_MONOTONIC in nanoseconds, as in board.h.
"""

import struct
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

MAGIC = 0x32474F4C4D495331
HEADER_BYTES = 4096
RECORD_BYTES = 128
FLAG_COMMUNICATION = 8
FLAG_KILLED = 16
FLAG_GRAPH = 64
FLAG_SPINS = 128
FLAG_FAULT = 256

_HEADER = struct.Struct("<QIIQ40s")
_OPERATION = struct.Struct("<BBHIIIQQQQQQQQQ40x")
_SWITCH = struct.Struct("<BBHIIIQQ96x")
_CONTEXT = struct.Struct("<BBHIIIIIQQ16sI68x")
_DROPPED = struct.Struct("<BBHIQ112x")
_NAME = struct.Struct("<BBHII112s4x")


class Kind(IntEnum):
    """What an operation is (enum sim_kind). Kinds up to SET occupy the compute engine."""

    KERNEL = 1
    COPY = 2
    SET = 3
    MARK = 4


_CONTEXT_TYPE, _NAME_TYPE, _SWITCH_TYPE, _DROPPED_TYPE = 64, 65, 66, 67


class LogError(Exception):
    """The file is not such a log; the message says which file and why."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One finished operation. ready_ns: when it could have run had its process had the GPU to
    itself, the later of its launch and the end of what came before it in its stream."""

    kind: Kind
    flags: int
    context: int
    name: str
    stream: int
    id: int
    launch_ns: int
    ready_ns: int
    start_ns: int
    end_ns: int
    bytes: int
    graph_launch: int = 0
    """Kernels: the graph launch that it belongs to, counted over all GPUs from 1; 0 for none."""
    ran_ns: int = 0
    """Time on the GPU; less than end - start if it was stopped to make room (it spins)."""
    lost_ns: int = 0
    """Of that, what it took longer because other processes ran beside it (MPS)."""

    @property
    def spins(self) -> bool:
        """Does it wait for a value, or for ever?"""
        return bool(self.flags & FLAG_SPINS)

    @property
    def faulted(self) -> bool:
        """Did it end its context with an illegal address?"""
        return bool(self.flags & FLAG_FAULT)

    @property
    def in_graph(self) -> bool:
        """Is it a node of a graph?"""
        return bool(self.flags & FLAG_GRAPH)

    @property
    def communication(self) -> bool:
        """Is it a collective's kernel?"""
        return bool(self.flags & FLAG_COMMUNICATION)

    @property
    def killed(self) -> bool:
        """Did its process die while it ran?"""
        return bool(self.flags & FLAG_KILLED)


@dataclass(frozen=True, slots=True)
class Context:
    """Who a context belongs to. job: SLURM_JOB_ID of the process, 0 without. server: process of
    the MPS server that it is a client of, 0 without."""

    number: int
    pid: int
    uid: int
    job: int
    at_ns: int
    command: str
    server: int = 0


@dataclass(frozen=True, slots=True)
class Switch:
    """The GPU went from one context to another; it did nothing from begin_ns to end_ns."""

    source: int
    target: int
    begin_ns: int
    end_ns: int


@dataclass(slots=True)
class GpuLog:
    """All that is known of one GPU, in the order in which it ended."""

    gpu: int
    operations: list[Operation] = field(default_factory=list)
    contexts: dict[int, Context] = field(default_factory=dict)
    switches: list[Switch] = field(default_factory=list)
    dropped: dict[int, int] = field(default_factory=dict)
    """Kernels by context that stood in its queues when it went, and never ran."""

    def contexts_of(
        self,
        *,
        jobs: Collection[int] = (),
        pids: Collection[int] = (),
        commands: Collection[str] = (),
    ) -> frozenset[int]:
        """Numbers of the contexts of these jobs, processes or programs (any that matches).

        commands are compared with the first 15 bytes of a program's name, which is all that the
        log keeps.
        """
        short = {command[:15] for command in commands}
        return frozenset(
            c.number
            for c in self.contexts.values()
            if c.job in jobs or c.pid in pids or c.command in short
        )


def log_path(state_dir: Path, gpu: int) -> Path:
    """Where the driver keeps the log of the GPU with this minor number."""
    return state_dir / f"log-{gpu}.bin"


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


def _records(path: Path, after: int) -> tuple[int, bytes]:
    """The GPU's number, and the records after the first `after`."""
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            raise LogError(f"{path}: {len(header)} bytes are too few for a log of a simulated GPU")
        magic, gpu, record_bytes, count, _boot = _HEADER.unpack_from(header)
        if magic != MAGIC or record_bytes != RECORD_BYTES:
            raise LogError(f"{path}: not the log of a simulated GPU")
        file.seek(HEADER_BYTES + after * RECORD_BYTES)
        return gpu, file.read(max(0, count - after) * RECORD_BYTES)


def _context(raw: memoryview) -> Context:
    _type, _zero, _flags, number, pid, uid, job, _gpu, at, _ticks, command, server = (
        _CONTEXT.unpack(raw)
    )
    return Context(number, pid, uid, job, at, _text(command), server)


class LogReader:
    """Reads a log bit by bit while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._taken = 0
        self._log = GpuLog(-1)
        self._names: dict[int, str] = {}
        self._seen: set[int] = set()

    def read(self) -> GpuLog:
        """Takes in what is new; the log so far, the same object each time.

        Raises:
            LogError: it is no such log.
            OSError: it cannot be read.
        """
        self._log.gpu, data = _records(self._path, self._taken)
        records = memoryview(data)
        for at in range(0, len(records) - RECORD_BYTES + 1, RECORD_BYTES):
            self._take(records[at : at + RECORD_BYTES])
            self._taken += 1
        return self._log

    def _take(self, raw: memoryview) -> None:
        kind = raw[0]
        if kind <= Kind.MARK:
            self._take_operation(Kind(kind), raw)
        elif kind == _SWITCH_TYPE:
            _type, _zero, _flags, target, source, _pad, begin, end = _SWITCH.unpack(raw)
            self._log.switches.append(Switch(source, target, begin, end))
        elif kind == _DROPPED_TYPE:
            _type, _zero, _flags, number, kernels = _DROPPED.unpack(raw)
            self._log.dropped[number] = kernels
        elif kind == _NAME_TYPE:
            _type, _zero, _flags, _context_number, number, text_raw = _NAME.unpack(raw)
            self._names[number] = _text(text_raw)
        elif kind == _CONTEXT_TYPE:
            context_read = _context(raw)
            self._log.contexts[context_read.number] = context_read

    def _take_operation(self, kind: Kind, raw: memoryview) -> None:
        (_type, _zero, flags, context, name, stream, number, launch, ready, start, end, *rest) = (
            _OPERATION.unpack(raw)
        )
        size, graph_launch, ran, lost = rest
        if number in self._seen:  # written again after its writer died
            return
        self._seen.add(number)
        text = self._names.get(name, "") if kind == Kind.KERNEL else ""
        self._log.operations.append(
            Operation(
                *(kind, flags, context, text, stream, number),
                *(launch, ready, start, end, size, graph_launch, ran, lost),
            )
        )


def read_log(path: Path) -> GpuLog:
    """Reads a log as it stands now, also while it grows.

    Raises:
        LogError: it is no such log.
        OSError: it cannot be read.
    """
    return LogReader(path).read()
