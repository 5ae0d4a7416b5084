"""Takes bubbles and uses off the boards: into windows, budgets and the ledger.

Everything in a board was written by a user's process: numbers are bounded before they count.
"""

from __future__ import annotations

import json
import logging
import struct
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from agent import last_use
from agent.attachments import Fill, Training
from agent.board import (
    BUBBLE_RING,
    MAX_GPUS,
    USE_RING,
    Bubble,
    FillBoard,
    TrainingBoard,
    Use,
)
from agent.bubbles import BubblesOfBoard
from agent.calibrator import Calibrator
from agent.clock import now_ns
from agent.node import Node
from agent.rings import Ring
from agent.shared_waits import SharedWaits
from agent.windows import Windows
from db.wire.messages import Cause

log = logging.getLogger(__name__)

_BUBBLES = Ring(TrainingBoard.bubbles.offset, BUBBLE_RING, struct.calcsize("=4Q2I"))
_USES = Ring(FillBoard.uses.offset, USE_RING, struct.calcsize("=8Q6I"))
_BUBBLE = struct.Struct("=4Q2I")
_USE = struct.Struct("=8Q6I")
assert _BUBBLE.size == struct.calcsize("=4Q2I") and Bubble.cause.offset == 36
assert Use.check_age_max_ns.offset == 80

_CAUSES = {number: cause.value for number, cause in enumerate(Cause, start=1)}
_LONGEST_NS = 24 * 3600 * 1_000_000_000
_LARGEST = (1 << 63) - 1  # of a database's whole numbers
_LOW_BITS = (1 << 32) - 1
_REMEMBERED_BOARDS = 4096
# A process that goes on losing records, or says so, is told of no more often.
_LOST_EVERY_NS = 60_000_000_000


@dataclass
class _Source:
    """Sums of the uses of one training board's bubbles, and how their records begin."""

    gpu: str
    host_job_id: int
    prefix: str
    uses: int = 0
    gpu_time_ns: int = 0
    intrusion_ns: int = 0
    kernels: int = 0
    times: list[tuple[int, int]] = field(default_factory=list)


class Drain:
    """Reads every board a few times a second. Main thread only."""

    def __init__(self, node: Node, windows: Windows, calibrator: Calibrator) -> None:
        self._node = node
        self._windows = windows
        self._calibrator = calibrator
        # Host boards by id, kept for uses that come in after the process has ended.
        self._hosts_of_boards: OrderedDict[int, tuple[int, str]] = OrderedDict()
        self._waits = SharedWaits()

    def all(self) -> None:
        """Drains all boards and closes windows that are over."""
        began_ns = now_ns()
        for training in self._node.trainings.values():
            with self.reading(training):
                self.training(training)
        for fill in self._node.fills.values():
            with self.reading(fill):
                self.fill(fill)
        self._windows.close_due(began_ns)

    @contextmanager
    def reading(self, attached: Training | Fill) -> Iterator[None]:
        """What a process wrote into its board keeps nobody from his work: an error that nobody
        foresaw is told of, once for each board."""
        try:
            yield
        except Exception as error:
            if attached.unread_told:
                return
            attached.unread_told = True
            process_id, job_id = attached.process.process_id, attached.job.job_id
            log.exception("the board of process %d cannot be read", process_id)
            text = f"the board of process {process_id} of job {job_id} cannot be read: {error!r}"
            self._node.ledger.event("unread", text, job_id=job_id)

    def flush(self) -> None:
        """Takes everything there is into the ledger now, windows included: a job is ending."""
        self.all()
        self._windows.close(now_ns())

    def training(self, training: Training) -> None:
        """Takes the bubbles off a training board."""
        self._remember(training)
        view = training.memory.view
        data, training.drained, lost = _BUBBLES.read(
            training.memory.raw, lambda: int(view.bubble_head), training.drained
        )
        view.drained = training.drained & _LOW_BITS
        by_index: dict[int, list[tuple[int, int, int]]] = {}
        now = now_ns()
        for _, begin, end, launches, gpu, _ in _BUBBLE.iter_unpack(data):
            if begin < end <= now:
                by_index.setdefault(gpu, []).append((begin, end, launches))
        for uuid, index in training.sections.items():
            bubbles = self._windows.bubbles_of(uuid, training.board_id, training.attached_ns)
            ended = by_index.get(index, ())
            bubbles.ended += ((begin, end) for begin, end, _ in ended)
            self._calibrator.bubbles(training, uuid, ended, lost=lost > 0)
            self._read_open(training, index, bubbles, now)
        if lost:
            self._windows.lost_bubbles += lost

    def gone(self, training: Training, ended_ns: int) -> None:
        """A training process has ended: its last bubbles, and no open one any more."""
        try:
            self.training(training)
        finally:
            self._windows.gone(training.board_id, ended_ns)

    @staticmethod
    def _read_open(training: Training, index: int, bubbles: BubblesOfBoard, now: int) -> None:
        section = training.memory.view.gpus[index]
        sequence, begin = int(section.bubble_seq), int(section.bubble_begin_ns)
        stable = sequence == int(section.bubble_seq)
        bubbles.open_since_ns = begin if stable and sequence & 1 and 0 < begin <= now else 0

    def fill(self, fill: Fill) -> None:
        """Takes the uses of bubbles off a fill's board."""
        view = fill.memory.view
        data, fill.drained, lost = _USES.read(
            fill.memory.raw, lambda: int(view.use_head), fill.drained
        )
        if lost:
            fill.lost += lost
            view.use_lost = fill.lost
        if now_ns() - fill.lost_told_ns >= _LOST_EVERY_NS:
            self.tell_lost(fill)
        if data:
            self._uses(fill, data, now_ns(), (fill.board_id, fill.drained))

    def tell_lost(self, fill: Fill) -> None:
        """Tells of records that were lost and not told of yet."""
        if lost := fill.lost - fill.lost_told:
            fill.lost_told, fill.lost_told_ns = fill.lost, now_ns()
            text = f"{lost} uses of bubbles were overwritten before they were read"
            self._node.ledger.event("lost", text, job_id=fill.job.job_id, gpu=fill.gpu)

    def end(self) -> None:
        """The agent stops: takes in and tells all that there is."""
        self.all()
        for fill in self._node.fills.values():
            self.tell_lost(fill)

    def stored(self, positions: dict[int, int]) -> None:
        """Boards' uses up to here are on disk: an agent that adopts them reads on from there."""
        for board_id, drained in positions.items():
            fill = self._node.fills.get(board_id)
            if fill is not None:
                fill.memory.view.drained = drained & _LOW_BITS

    def died(self, fill: Fill, ended_ns: int, *, stood: bool) -> None:
        """A fill's process has ended, its last use still open: that is entered by estimate.

        `stood`: its work had been seen to make no progress.
        """
        trainings = self._node.trainings_on(fill.gpu)
        last = last_use.estimate(fill, trainings, ended_ns, stood=stood)
        if last is None:
            return
        self._uses(fill, b"".join(_USE.pack(*each) for each in last.records), now_ns())
        self._node.ledger.event("estimated", last.text, job_id=fill.job.job_id, gpu=fill.gpu)

    def _uses(
        self, fill: Fill, data: bytes, now: int, position: tuple[int, int] | None = None
    ) -> None:
        """Turns use records into ledger text and sums; thousands a second, so plain and bulky."""
        oldest = max(now - _LONGEST_NS, fill.admitted_ns)
        utc_ns = self._node.clock.utc_us(0) * 1000
        sources: dict[tuple[int, int], _Source | None] = {}
        texts: list[str] = []
        for use in _USE.iter_unpack(data):
            (board, seq, begin, end, first, last, gpu_time, intrusion, kernels, copies) = use[:10]
            gpu, cause = use[10], use[11]
            fill.recorded_until_ns = max(fill.recorded_until_ns, min(last, now))
            if (board, gpu) not in sources:
                sources[board, gpu] = self._source(fill, board, gpu)
            source = sources[board, gpu]
            if source is None or not oldest < first <= now:
                continue
            last = min(max(last, first), now)
            begin = begin if oldest < begin <= first else first
            length = (end if begin < end <= now else last) - begin
            # Nobody can use a GPU, or delay a training on it, for longer than he was there.
            there = now - fill.admitted_ns
            gpu_time = min(gpu_time, now - first, there - fill.gpu_time_ns)
            intrusion = min(intrusion, now - first, there - fill.intrusion_ns)
            if intrusion and seq and not self._node.settings.ignore_training:
                bubble = (fill.gpu, board, seq)
                intrusion = self._waits.charge(bubble, fill.board_id, intrusion)
            fill.gpu_time_ns += gpu_time
            fill.intrusion_ns += intrusion
            source.uses += 1
            source.times.append((first, last))
            source.gpu_time_ns += gpu_time
            source.intrusion_ns += intrusion
            source.kernels += kernels
            texts.append(
                f'{source.prefix}"bubble_seq":{seq & _LARGEST},'
                f'"bubble_began_at_us":{(begin + utc_ns) // 1000},"bubble_us":{length / 1000},'
                f'"cause":"{_CAUSES.get(cause, "host")}",'
                f'"first_release_at_us":{(first + utc_ns) // 1000},'
                f'"used_us":{(last - first) / 1000},"kernels":{kernels},"copies":{copies},'
                f'"gpu_time_us":{gpu_time / 1000},"intrusion_us":{intrusion / 1000}}}'
            )
        self._node.ledger.add_texts(texts, position)
        for source in sources.values():
            if source is not None and source.uses:
                self._count(fill, source, now)

    def _source(self, fill: Fill, board: int, gpu: int) -> _Source | None:
        """Whose bubbles these uses are of; None when there is nobody whose they may be.

        A fill was let onto one GPU beside one host job: whatever it writes is booked there.
        """
        uuid = fill.gpu
        if self._names_another_gpu(fill, gpu):
            return None
        job_id, step = self._host_of(fill, board)
        if job_id == 0:
            return None
        prefix = (
            f'{{"kind":"bubble_use","gpu":{json.dumps(uuid)},"host_job_id":{job_id},'
            f'"host_step":{json.dumps(step)},"fill_job_id":{fill.job.job_id},'
        )
        return _Source(uuid, job_id, prefix)

    def _count(self, fill: Fill, source: _Source, now: int) -> None:
        self._calibrator.uses(source.gpu, source.times)
        host = self._node.jobs.hosts.get(source.host_job_id)
        if host is not None:
            host.intrusion_us += source.intrusion_ns / 1000
            host.filled_us += source.gpu_time_ns / 1000
            self._node.budget_of(host).charge(now, source.intrusion_ns)
        self._windows.use(
            source.gpu,
            source.host_job_id,
            fill.job.job_id,
            uses=source.uses,
            gpu_time_ns=source.gpu_time_ns,
            intrusion_ns=source.intrusion_ns,
            kernels=source.kernels,
        )

    @staticmethod
    def _names_another_gpu(fill: Fill, index: int) -> bool:
        if not 0 <= index < MAX_GPUS:
            return True
        uuid = fill.memory.view.gpus[index].uuid
        return uuid not in (b"", fill.gpu.encode())

    def _host_of(self, fill: Fill, board_id: int) -> tuple[int, str]:
        """Host job and step of a board that a fill names; where it is not its host's, only the job.

        With the setting ignore_training a fill may have no host: then any board is as good.
        """
        known = self._hosts_of_boards.get(board_id)
        if known is not None and fill.host_job_id in (None, known[0]):
            return known
        host = self._node.jobs.host_of(fill.gpu)
        return (fill.host_job_id or (host.job_id if host else 0), "")

    def _remember(self, training: Training) -> None:
        board_id = training.board_id
        if board_id not in self._hosts_of_boards:
            self._hosts_of_boards[board_id] = (training.job.job_id, training.job.step_id)
            if len(self._hosts_of_boards) > _REMEMBERED_BOARDS:
                self._hosts_of_boards.popitem(last=False)
