"""The gate's parts that need no GPU, built as a library for ctypes, with boards to feed them."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent.board import FillBoard, PolicyPage, TrainingBoard

ROOT = Path(__file__).resolve().parents[2]
SHIM = ROOT / "agent" / "shim"
# gate_idle and gate_policy are in gate_between.c.
PARTS = (
    "gate_predict",
    "gate_rhythm",
    "gate_decide",
    "durations",
    "inflight",
    "flight_exact",
    "intrusion",
    "uses",
)
MOMENT = ctypes.CFUNCTYPE(None, ctypes.c_int)
"""Called between two readings: 0 of the list of boards, 1 of the boards."""
UUID = "GPU-00000000-0000-0000-0000-000000000000"
JOB = 77
LIVE, BUSY_SLOT = 1, 2


@functools.cache
def library() -> ctypes.CDLL:
    """Builds once for each test run."""
    target = Path(tempfile.mkdtemp(prefix="sfill-gate-")) / "libgate.so"
    sources = [str(SHIM / f"{part}.c") for part in PARTS]
    command = ["cc", "-O2", "-g", "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror"]
    command += ["-fPIC", "-shared", f"-I{SHIM}", "-o", str(target)]
    own = [str(Path(__file__).with_name(name)) for name in ("gate_glue.c", "gate_between.c")]
    command += [*own, *sources, "-pthread"]
    subprocess.run(command, check=True)
    lib = ctypes.CDLL(str(target))
    u64, pointer, integer = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "glue_new": (pointer, [ctypes.c_char_p, u64]),
        "glue_free": (None, [pointer]),
        "glue_evict": (None, [integer]),
        "glue_page": (None, [pointer, pointer]),
        "glue_poll": (None, [pointer, u64]),
        "glue_host": (None, [pointer, u64, pointer]),
        "glue_forget": (None, [pointer]),
        "glue_hold_memory": (None, [pointer, u64]),
        "glue_decide": (integer, [pointer, u64, integer, integer, u64]),
        "glue_stream": (None, [pointer, ctypes.c_uint32, pointer]),
        "glue_launch": (u64, [pointer, ctypes.c_uint32, u64, u64, u64, integer]),
        "glue_launch_checked": (None, [pointer, u64, u64]),
        "glue_look": (None, [pointer, u64]),
        "glue_timed": (None, [pointer, ctypes.c_uint32, u64, u64]),
        "glue_clock": (None, [pointer, u64]),
        "glue_took_over": (None, [pointer, u64]),
        "glue_mean": (u64, [pointer, u64]),
        "glue_bound": (u64, [pointer, u64]),
        "glue_learn": (None, [pointer, u64, u64, integer]),
        "glue_doubted": (integer, [pointer, u64, u64]),
        "glue_changed": (None, [pointer, u64]),
        "glue_gone": (None, [pointer, u64]),
        "glue_tried": (None, [pointer, u64]),
        "glue_in_flight": (u64, [pointer]),
        "glue_count": (ctypes.c_uint32, [pointer]),
        "glue_board": (ctypes.POINTER(FillBoard), []),
        "glue_at_moment": (None, [MOMENT]),
        "glue_outlasts": (u64, [pointer, ctypes.c_uint32, integer, u64, u64]),
        "glue_race": (u64, [pointer, ctypes.c_char_p, u64, ctypes.POINTER(u64)]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    return lib


def training_board(*, streams: int = 1, bubble_begin_ns: int = 1) -> TrainingBoard:
    """A training process that is idle since bubble_begin_ns."""
    board = TrainingBoard()
    board.lend = board.ready = board.gpus_used = 1
    board.slots_used = streams
    section = board.gpus[0]
    section.uuid = UUID.encode()
    section.used = 1
    section.bubble_seq = 1
    section.bubble_cause = 1
    section.bubble_begin_ns = bubble_begin_ns
    for slot in board.slots[:streams]:
        slot.state = LIVE
        slot.before = slot.after = 5
        slot.done = 5 << 2
    return board


def policy_page(boards: int = 1) -> PolicyPage:
    """A page that lets job JOB run beside boards 1..boards."""
    page = PolicyPage()
    page.uuid = UUID.encode()
    page.boards_count = boards
    for position in range(boards):
        page.boards[position] = position + 1
    page.dwell_us = 50
    page.in_flight_us = 300
    page.unknown_op_us = 1000
    page.turns = 1
    page.turn_us = 1000
    page.fills[0].job_id = JOB
    page.fills[0].allowed = 1
    return page


@contextmanager
def gate_beside_training(now_ns: int, idle_since_ns: int) -> Iterator[tuple[Gate, TrainingBoard]]:
    """A gate that has just looked at one idle training, which sees that fill is present."""
    board = training_board(bubble_begin_ns=idle_since_ns)
    board.fill_present = 1
    gate = Gate()
    gate.map_page(policy_page())
    gate.map_boards({1: board})
    gate.freshen(now_ns)
    yield gate, board
    gate.close()


class Gate:
    """One GPU of a fill process, driven by a test's own clock."""

    def __init__(self) -> None:
        self.lib = library()
        self.handle = self.lib.glue_new(UUID.encode(), JOB)
        self.page: PolicyPage | None = None
        self.boards: dict[int, TrainingBoard] = {}

    def close(self) -> None:
        self.lib.glue_free(self.handle)

    def map_page(self, page: PolicyPage) -> None:
        self.page = page
        self.lib.glue_page(self.handle, ctypes.addressof(page))

    def map_boards(self, boards: dict[int, TrainingBoard]) -> None:
        self.boards = dict(boards)
        self.lib.glue_forget(self.handle)
        for board_id, board in boards.items():
            self.lib.glue_host(self.handle, board_id, ctypes.addressof(board))

    def freshen(self, now_ns: int) -> None:
        """The heartbeat moves between two looks that end at now_ns."""
        assert self.page is not None
        self.lib.glue_poll(self.handle, now_ns)
        self.page.heartbeat += 1
        self.lib.glue_poll(self.handle, now_ns)

    def decide(
        self, now_ns: int, bound_ns: int = 1000, *, alone: bool = False, weightless: bool = False
    ) -> int:
        return int(self.lib.glue_decide(self.handle, bound_ns, alone, weightless, now_ns))
