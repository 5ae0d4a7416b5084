"""Boards that are attached: who holds them, on which GPUs they stand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from agent.board import (
    LAYOUT_VERSION,
    MAGIC_FILL,
    MAGIC_TRAINING,
    MAX_GPUS,
    BoardHead,
    FillBoard,
    FillGpu,
    TrainingBoard,
)
from agent.clock import now_ns
from agent.job_of_process import JobOfProcess
from agent.processes import WatchedProcess
from agent.server import Connection
from agent.shared_memory import SharedMemory


@dataclass
class Training:
    """A training process with its board. `sections`: GPU UUID -> index into the board's gpus[].

    `board_id` is what the agent gave out: the one in the board is its process's to overwrite.
    """

    board_id: int
    memory: SharedMemory[TrainingBoard]
    process: WatchedProcess
    job: JobOfProcess
    connection: Connection | None
    sections: dict[str, int] = field(default_factory=dict)
    announced: set[str] = field(default_factory=set)
    attached_ns: int = field(default_factory=now_ns)
    drained: int = 0  # bubble records read so far
    shut_told: bool = False
    unread_told: bool = False  # that its board could not be read

    @property
    def gpus(self) -> set[str]:
        return self.announced | self.sections.keys()

    def read_sections(self) -> bool:
        """Looks for GPUs that the process has come to use; True when there are new ones."""
        view = self.memory.view
        count = min(int(view.gpus_used), MAX_GPUS)
        if count == len(self.sections):
            return False
        known = len(self.sections)
        # What a section was first read as stands: a board that goes on changing grows nothing.
        for index in set(range(count)) - set(self.sections.values()):
            uuid = view.gpus[index].uuid.decode(errors="replace")
            if uuid:
                self.sections.setdefault(uuid, index)
        return len(self.sections) != known


@dataclass
class Fill:
    """A process of a fill job with its board; `gpu` is the one that its job was given.

    `host_job_id` is the job beside which it was admitted there, at `admitted_ns`; `gpu_time_ns`
    and `intrusion_ns` sum what its uses claimed so far.
    """

    board_id: int
    memory: SharedMemory[FillBoard]
    process: WatchedProcess
    job: JobOfProcess
    connection: Connection | None
    gpu: str
    host_job_id: int | None
    admitted_ns: int
    drained: int = 0  # use records read so far
    lost: int = 0  # use records overwritten before they were read
    lost_told: int = 0  # of those, how many events have told of, the last at `lost_told_ns`
    lost_told_ns: int = 0
    gpu_time_ns: int = 0
    intrusion_ns: int = 0
    recorded_until_ns: int = 0  # when the last of those ended
    unread_told: bool = False


def place_of(fill: Fill) -> int | None:
    """Where in its board a fill speaks of the GPU that its job was given."""
    view, uuid = fill.memory.view, fill.gpu.encode()
    count = min(int(view.gpus_used), MAX_GPUS)
    return next((index for index in range(count) if view.gpus[index].uuid == uuid), None)


def section_of(fill: Fill) -> FillGpu | None:
    """What a fill's board says of the GPU that its job was given."""
    place = place_of(fill)
    return None if place is None else fill.memory.view.gpus[place]


def memory_by_boards(fills: list[Fill], uuid: str) -> dict[int, int]:
    """Device memory that fill jobs hold on a GPU, as their interposers count it: by job."""
    held: dict[int, int] = {}
    for fill in fills:
        view = fill.memory.view
        for index in range(min(int(view.gpus_used), MAX_GPUS)):
            if view.gpus[index].uuid == uuid.encode() and view.gpus[index].memory_bytes:
                job_id = fill.job.job_id
                held[job_id] = held.get(job_id, 0) + int(view.gpus[index].memory_bytes)
    return held


def new_training_board(board_id: int, process_id: int) -> SharedMemory[TrainingBoard]:
    """A fresh board for a training process. Raises OSError."""
    memory = SharedMemory.create(TrainingBoard, "sfill-training")
    _write_head(memory.view.head, MAGIC_TRAINING, len(memory.raw), board_id, process_id)
    return memory


def new_fill_board(board_id: int, process_id: int) -> SharedMemory[FillBoard]:
    """A fresh board for a fill's process. Raises OSError."""
    memory = SharedMemory.create(FillBoard, "sfill-fill")
    _write_head(memory.view.head, MAGIC_FILL, len(memory.raw), board_id, process_id)
    return memory


class BoardIds(Protocol):
    """Who knows which board ids are taken."""

    def new_board_id(self) -> int:
        """An id that no board has."""

    def may_keep(self, board_id: int) -> bool:
        """Whether this id was given out once and no attached board has it."""


def adopt_training_board(
    descriptor: int, process_id: int, ids: BoardIds
) -> tuple[int, SharedMemory[TrainingBoard]]:
    """The board a process kept over a restart of the agent, and its id from now on.

    Raises SharedMemoryError.
    """
    memory = SharedMemory.adopt(TrainingBoard, descriptor, MAGIC_TRAINING, LAYOUT_VERSION)
    return _adopt_head(memory.view.head, process_id, ids), memory


def adopt_fill_board(
    descriptor: int, process_id: int, ids: BoardIds
) -> tuple[int, SharedMemory[FillBoard]]:
    """As adopt_training_board, for a fill's process."""
    memory = SharedMemory.adopt(FillBoard, descriptor, MAGIC_FILL, LAYOUT_VERSION)
    return _adopt_head(memory.view.head, process_id, ids), memory


def drained_before(head: int, low_bits: int, entries: int) -> int:
    """How many records an agent that is gone had read of a ring, from its note in the board.

    A note that makes no sense counts as: all of them.
    """
    pending = (head - low_bits) & 0xFFFFFFFF
    return head - pending if pending <= entries else head


def _adopt_head(head: BoardHead, process_id: int, ids: BoardIds) -> int:
    # Records of uses name the board by its id: it is kept, unless a process made one up.
    board_id = int(head.board_id)
    if not ids.may_keep(board_id):
        board_id = ids.new_board_id()
    head.board_id = board_id
    head.process_id = process_id
    return board_id


def _write_head(head: BoardHead, magic: int, size: int, board_id: int, process_id: int) -> None:
    head.version = LAYOUT_VERSION
    head.size_bytes = size
    head.board_id = board_id
    head.process_id = process_id
    head.magic = magic
