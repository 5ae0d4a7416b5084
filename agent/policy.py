"""Policy pages, the agent's word to the gates, one for each GPU, and the heartbeat that backs it.

A gate that sees the heartbeat stand still for 500 ms is shut. The heartbeat has a thread of its
own, which goes quiet as well when the agent's main loop is stuck: then `sfill off` would not get
through either.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent.board import (
    LAYOUT_VERSION,
    MAGIC_POLICY,
    MAX_BOARDS,
    MAX_FILLS,
    POLICY_IGNORE_TRAINING,
    POLICY_MPS,
    POLICY_NO_PREDICTION,
    Closed,
    PolicyPage,
)
from agent.shared_memory import SharedMemory

log = logging.getLogger(__name__)

MAIN_LOOP_STALE_NS = 1_000_000_000


@dataclass(frozen=True)
class Tuning:
    """The gate's numbers, in microseconds, as board.h names them."""

    dwell_us: int
    in_flight_us: int
    min_bubble_us: int
    unknown_op_us: int
    max_op_us: int
    turn_us: int
    graph_part_us: int


@dataclass(frozen=True)
class FillVerdict:
    """Whether a fill job may run; `closed` is OPEN when it may."""

    job_id: int
    closed: Closed
    memory_limit_bytes: int


class Policy:
    """One GPU's policy page. Written by the main thread alone, but for the heartbeat."""

    def __init__(
        self, uuid: str, *, ignore_training: bool = False, predict_end: bool = True
    ) -> None:
        self.memory = SharedMemory.create(PolicyPage, "sfill-policy")
        page = self.memory.view
        page.uuid = uuid.encode()
        page.size_bytes = len(self.memory.raw)
        page.version = LAYOUT_VERSION
        page.flags = POLICY_IGNORE_TRAINING if ignore_training else 0
        page.flags |= 0 if predict_end else POLICY_NO_PREDICTION
        page.turns = 1
        page.magic = MAGIC_POLICY
        self._boards: tuple[int, ...] = ()

    def beat(self) -> None:
        self.memory.view.heartbeat += 1

    def write_boards(self, board_ids: Sequence[int], unknown_training: int) -> None:
        """Publishes the training boards of the GPU; what doesn't fit the page shuts the gate."""
        page = self.memory.view
        page.unknown_training = unknown_training + max(0, len(board_ids) - MAX_BOARDS)
        boards = tuple(board_ids[:MAX_BOARDS])
        if boards == self._boards:
            return
        page.boards_sequence += 1
        for position, board_id in enumerate(boards):
            page.boards[position] = board_id
        page.boards_count = len(boards)
        page.boards_sequence += 1
        self._boards = boards

    def write_share(self, *, by_mps: bool) -> None:
        """Publishes how the training on the GPU shares it."""
        page = self.memory.view
        page.flags = page.flags | POLICY_MPS if by_mps else page.flags & ~POLICY_MPS

    def write_tuning(self, tuning: Tuning) -> None:
        page = self.memory.view
        page.dwell_us = tuning.dwell_us
        page.in_flight_us = tuning.in_flight_us
        page.min_bubble_us = tuning.min_bubble_us
        page.unknown_op_us = tuning.unknown_op_us
        page.max_op_us = tuning.max_op_us
        page.turn_us = tuning.turn_us
        page.graph_part_us = tuning.graph_part_us

    def write_fills(self, verdicts: Iterable[FillVerdict]) -> None:
        """Publishes who may run and in which turn. Entries keep their place while they live."""
        page = self.memory.view
        wanted = {verdict.job_id: verdict for verdict in verdicts}
        entries = list(page.fills)
        for entry in entries:
            if entry.job_id and entry.job_id not in wanted:
                entry.allowed = 0
                entry.job_id = 0
        by_job = {entry.job_id: entry for entry in entries if entry.job_id}
        free = [entry for entry in entries if not entry.job_id]
        allowed = [v.job_id for v in wanted.values() if v.closed == Closed.OPEN][:MAX_FILLS]
        page.turns = max(1, len(allowed))
        for job_id, verdict in wanted.items():
            entry = by_job.get(job_id) or (free.pop(0) if free else None)
            if entry is None:
                log.error("no place on the policy page for fill job %d: it stays shut", job_id)
                continue
            entry.memory_limit_bytes = verdict.memory_limit_bytes
            entry.turn = allowed.index(job_id) if job_id in allowed else 0
            entry.reason = verdict.closed
            entry.allowed = 1 if job_id in allowed else 0
            entry.job_id = job_id


class Heartbeat(threading.Thread):
    """Beats every page while the main loop shows that it lives by calling `alive`."""

    def __init__(self, policies: Sequence[Policy], period_ms: int) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._policies = policies
        self._period_s = period_ms / 1000
        self._alive_ns = time.monotonic_ns()
        self._ending = threading.Event()
        self._late = False
        self.turns = 0  # of this thread: they go on when only the main loop is stuck

    def alive(self) -> None:
        """The main loop is running."""
        self._alive_ns = time.monotonic_ns()

    def run(self) -> None:
        while not self._ending.wait(self._period_s):
            self.turns += 1
            late = time.monotonic_ns() - self._alive_ns > MAIN_LOOP_STALE_NS
            if late != self._late:
                self._late = late
                log.warning("main loop %s", "is stuck: gates shut" if late else "runs again")
            if not late:
                for policy in self._policies:
                    policy.beat()

    def stop(self) -> None:
        self._ending.set()
        self.join()
