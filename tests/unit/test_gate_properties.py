"""Whatever trainings, agent and fill do in whatever order, nothing is released beside training.

Each training of the model keeps the monitor's rules step by step, and beside its board the truth:
which operations have been launched and which are done. The steps may fall between the two looks
of a decision. The fill releases whenever the gate says so, operations of known length.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from agent.board import Closed, TrainingBoard
from tests.slow import ASKED_FOR
from tests.unit.gate_library import LIVE, MOMENT, UUID, Gate, policy_page

US, MS = 1000, 1_000_000
STALE_NS = 500 * MS
BUDGET_NS = 300 * US
OTHER_UUID = "GPU-11111111-0000-0000-0000-000000000000"
LENGTHS_US = (20, 90, 150, 299, 700)
STREAMS = 3  # the last one is on the other GPU


@dataclass
class Stream:
    """One stream by the monitor's counters, and the markers that stand in it."""

    launched: int = 0  # calls begun
    queued: int = 0  # calls returned
    done: int = 0  # operations that the GPU has finished
    markers: list[int] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        return self.launched == self.done


class Training:
    """One training process on two GPUs; `ours` is the section of the GPU under test."""

    def __init__(self, ours: int, now: int) -> None:
        self.board = TrainingBoard()
        self.streams = [Stream() for _ in range(STREAMS)]
        self.ours = ours
        self.capturing = False
        board = self.board
        board.lend = board.ready = 1
        board.gpus_used = 2
        board.slots_used = STREAMS
        for place, uuid in ((ours, UUID), (1 - ours, OTHER_UUID)):
            board.gpus[place].uuid = uuid.encode()
            board.gpus[place].used = 1
            board.gpus[place].bubble_cause = 1
        for index in range(STREAMS):
            board.slots[index].state = LIVE
            board.slots[index].gpu = self.gpu_of(index)
        self.open_bubble(now)

    def gpu_of(self, stream: int) -> int:
        return self.ours if stream < STREAMS - 1 else 1 - self.ours

    @property
    def idle(self) -> bool:
        """The truth about the GPU under test."""
        return all(self.streams[i].idle for i in range(STREAMS - 1))

    def count_launch(self, index: int) -> None:
        """The first step of a launch."""
        self.streams[index].launched += 1
        self.board.slots[index].before = self.streams[index].launched

    def begin_launch(self, index: int, now: int) -> None:
        """Counted first; then the bubble ends."""
        section = self.board.gpus[self.gpu_of(index)]
        self.count_launch(index)
        if section.bubble_seq % 2 == 1:
            section.resume_launch_ns = now
            section.resume_seq = section.bubble_seq
            section.bubble_seq += 1

    def end_launch(self, index: int) -> None:
        stream, section = self.streams[index], self.board.gpus[self.gpu_of(index)]
        if stream.launched != stream.queued and section.bubble_seq % 2 == 1:
            section.bubble_seq += 1  # counted only, until now
        stream.queued = stream.launched
        self.board.slots[index].after = stream.queued

    def mark(self, index: int) -> None:
        """As the monitor does: never while a call is under way, nor during a capture."""
        stream = self.streams[index]
        if stream.launched == stream.queued and not self.capturing:
            stream.markers.append(stream.queued)
            self.board.slots[index].marked = stream.queued

    def compute(self, index: int, operations: int) -> None:
        """The GPU goes on, and writes the markers that it passes."""
        stream = self.streams[index]
        stream.done = min(stream.queued, stream.done + operations)
        passed = [each for each in stream.markers if each <= stream.done]
        stream.markers = [each for each in stream.markers if each > stream.done]
        if passed:
            self.board.slots[index].done = passed[-1] << 2

    def open_bubble(self, now: int) -> None:
        """Where the board says that all is drained."""
        section = self.board.gpus[self.ours]
        slots = [self.board.slots[i] for i in range(STREAMS - 1)]
        drained = all(s.before == s.after and s.done == s.before << 2 for s in slots)
        if drained and section.bubble_seq % 2 == 0:
            section.bubble_begin_ns = now
            section.bubble_seq += 1

    def run_dry(self, now: int) -> None:
        """All that is launched gets done, and the bubble begins."""
        self.capturing = False
        for index in range(STREAMS):
            self.end_launch(index)
            self.mark(index)
            self.compute(index, self.streams[index].queued)
        self.open_bubble(now)


class Fill:
    """The fill's operations on the GPU, one after the other, with their true lengths."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.word = ctypes.c_uint64(0)
        gate.lib.glue_stream(gate.handle, 0, ctypes.addressof(self.word))
        for length in LENGTHS_US:
            gate.lib.glue_learn(gate.handle, length, length * US, 1)
        self.queue: list[tuple[int, int]] = []  # (value, end)
        self.free_ns = 0

    def release(self, length_us: int, now: int) -> None:
        value = self.gate.lib.glue_launch(self.gate.handle, 0, length_us, now, MS, 1)
        self.free_ns = max(self.free_ns, now) + length_us * US
        self.queue.append((value, self.free_ns))

    def left_ns(self, now: int) -> int:
        return max(0, self.free_ns - now)

    def look(self, now: int) -> None:
        while self.queue and self.queue[0][1] <= now:
            self.word.value = self.queue.pop(0)[0]
        self.gate.lib.glue_look(self.gate.handle, now)


class Sharing(RuleBasedStateMachine):
    """Trainings, the agent's page and one fill on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.now = 10_000 * MS
        self.page = policy_page(boards=0)
        self.gate.map_page(self.page)
        self.fill = Fill(self.gate)
        self.trainings: dict[int, Training] = {}
        self.listed: list[int] = []
        self.mapped: set[int] = set()
        self.last_id = 0
        self.beat_ns = 0
        self.disturbance: Callable[[], None] | None = None
        self.moment = 1
        self.call = MOMENT(self._at_moment)
        self.gate.lib.glue_at_moment(self.call)

    def teardown(self) -> None:
        self.gate.lib.glue_at_moment(MOMENT())
        self.gate.close()

    def _at_moment(self, moment: int) -> None:
        if moment == self.moment and self.disturbance:
            step, self.disturbance = self.disturbance, None
            step()

    def _pick(self, data: st.DataObject) -> Training:
        return self.trainings[data.draw(st.sampled_from(sorted(self.trainings)))]

    def _list(self, listed: list[int]) -> None:
        self.listed = listed
        self.page.boards_sequence += 1
        for position, board_id in enumerate(listed):
            self.page.boards[position] = board_id
        self.page.boards_count = len(listed)
        self.page.boards_sequence += 1

    def _map(self, mapped: set[int]) -> None:
        self.mapped = mapped
        self.gate.map_boards({i: self.trainings[i].board for i in sorted(mapped)})

    # The agent.

    @initialize(count=st.integers(1, 2))
    def starts(self, count: int) -> None:
        for _ in range(count):
            self.training_starts(0)
        self.all_is_well()

    @rule(ours=st.integers(0, 1))
    @precondition(lambda self: len(self.trainings) < 3)
    def training_starts(self, ours: int) -> None:
        self.last_id += 1
        self.trainings[self.last_id] = Training(ours, self.now)

    @rule(data=st.data())
    @precondition(lambda self: self.trainings)
    def list_and_map_differ(self, data: st.DataObject) -> None:
        """A board comes late, goes early, or is named twice."""
        ids = sorted(self.trainings)
        some = st.lists(st.sampled_from(ids), max_size=3)
        self._list(data.draw(some))
        self._map(set(data.draw(some)))

    @rule(unknown=st.integers(0, 1), torn=st.booleans(), allowed=st.integers(0, 1))
    def agent_writes(self, unknown: int, torn: bool, allowed: int) -> None:
        self.page.unknown_training = unknown
        self.page.fills[0].allowed = allowed
        self.page.fills[0].reason = Closed.OFF
        if (self.page.boards_sequence % 2 == 1) != torn:
            self.page.boards_sequence += 1

    @rule(ms=st.sampled_from([1, 100, 499, 501]))
    def agent_is_silent(self, ms: int) -> None:
        self._time_passes(ms * MS)

    @rule()
    def agent_beats(self) -> None:
        self.page.heartbeat += 1
        self.beat_ns = self.now

    @rule()
    def all_is_well(self) -> None:
        """Every training in a bubble, the agent alive and in agreement: the gate is open."""
        self._list(sorted(self.trainings))
        self._map(set(self.trainings))
        self.agent_writes(0, False, 1)
        for training in self.trainings.values():
            training.board.lend = training.board.ready = 1
            training.board.head.shut = 0
            training.run_dry(self.now)
        self._time_passes(2 * MS)
        self.fill.look(self.now)
        self.gate.freshen(self.now)
        self.beat_ns = self.now
        assert self.gate.decide(self.now, 20 * US) == Closed.OPEN

    # Trainings.

    @rule(data=st.data(), stream=st.integers(0, STREAMS - 1), counted_only=st.booleans())
    @precondition(lambda self: self.trainings)
    def launch_begins(self, data: st.DataObject, stream: int, counted_only: bool) -> None:
        training = self._pick(data)
        if counted_only:
            training.count_launch(stream)
        else:
            training.begin_launch(stream, self.now)

    @rule(data=st.data(), stream=st.integers(0, STREAMS - 1), marks=st.booleans())
    @precondition(lambda self: self.trainings)
    def launch_returns(self, data: st.DataObject, stream: int, marks: bool) -> None:
        training = self._pick(data)
        training.end_launch(stream)
        if marks:
            training.mark(stream)

    @rule(data=st.data(), stream=st.integers(0, STREAMS - 1), count=st.integers(1, 9))
    @precondition(lambda self: self.trainings)
    def gpu_computes(self, data: st.DataObject, stream: int, count: int) -> None:
        training = self._pick(data)
        training.compute(stream, count)
        training.open_bubble(self.now)

    @rule(data=st.data())
    @precondition(lambda self: self.trainings)
    def runs_dry(self, data: st.DataObject) -> None:
        self._pick(data).run_dry(self.now)

    @rule(data=st.data(), on=st.booleans())
    @precondition(lambda self: self.trainings)
    def captures(self, data: st.DataObject, on: bool) -> None:
        self._pick(data).capturing = on

    @rule(data=st.data(), shut=st.integers(0, 5), lend=st.integers(0, 1), ready=st.integers(0, 1))
    @precondition(lambda self: self.trainings)
    def shuts_or_pauses(self, data: st.DataObject, shut: int, lend: int, ready: int) -> None:
        board = self._pick(data).board
        board.head.shut, board.lend, board.ready = shut, lend, ready

    # Time and the fill.

    def _time_passes(self, ns: int) -> None:
        """The fill's helper looks every 40 ms."""
        end = self.now + ns
        while self.now < end:
            self.now = min(end, self.now + 40 * MS)
            self.gate.lib.glue_poll(self.gate.handle, self.now)
            self.fill.look(self.now)

    @rule(us=st.sampled_from([1, 20, 60, 200, 900]))
    def time_passes(self, us: int) -> None:
        self._time_passes(us * US)

    def _ask(self, length_us: int) -> bool:
        """One operation is asked for, and released if the gate is open."""
        self.fill.look(self.now)
        closed = self.gate.decide(self.now, length_us * US)
        if closed == Closed.OPEN:
            self.check_release()
            self.fill.release(length_us, self.now)
        return closed == Closed.OPEN

    @rule(lengths=st.lists(st.sampled_from(LENGTHS_US), min_size=1, max_size=8))
    def fill_asks(self, lengths: list[int]) -> None:
        for length_us in lengths:
            self._ask(length_us)

    @rule(data=st.data(), stream=st.integers(0, STREAMS - 2), filling=st.booleans())
    @precondition(lambda self: self.trainings)
    def one_step_from_open(self, data: st.DataObject, stream: int, filling: bool) -> None:
        """All is well but for one thing, before the fill's first operation or in the midst."""
        self.all_is_well()
        if filling:
            assert self._ask(90)
        training = self._pick(data)
        board, ids = training.board, sorted(self.trainings)
        steps: list[Callable[[], None]] = [
            lambda: self.agent_writes(1, False, 1),
            lambda: self.agent_writes(0, True, 1),
            lambda: self.agent_writes(0, False, 0),
            lambda: self.agent_is_silent(501),
            lambda: self.shuts_or_pauses(data, 2, 1, 1),
            lambda: self.shuts_or_pauses(data, 0, 0, 1),
            lambda: self.shuts_or_pauses(data, 0, 1, 0),
            lambda: training.count_launch(stream),
            lambda: training.begin_launch(stream, self.now),
            lambda: setattr(board.gpus[training.ours], "bubble_begin_ns", self.now),
            lambda: self._list(ids[1:]),
            lambda: self._list(ids[:1] * len(ids)),
            lambda: self._map(set(ids[1:])),
        ]
        data.draw(st.sampled_from(steps))()
        self._ask(20)

    @rule(data=st.data(), finishes=st.booleans())
    @precondition(lambda self: self.trainings and self.mapped)
    def training_moves_between_the_looks(self, data: st.DataObject, finishes: bool) -> None:
        """Even when it is idle again at the second look: nobody knows what ran meanwhile."""
        board_id = data.draw(st.sampled_from(sorted(self.mapped)))
        training = self.trainings[board_id]

        def step() -> None:
            training.begin_launch(0, self.now)
            if finishes:
                training.run_dry(self.now - MS)

        self.moment, self.disturbance = 1, step
        opened = self._ask(20)
        happened, self.disturbance = self.disturbance is None, None
        assert not (opened and happened)

    @rule()
    @precondition(lambda self: self.trainings)
    def list_changes_while_it_is_read(self) -> None:
        self.moment, self.disturbance = 0, lambda: self._list([*self.listed])
        opened = self._ask(20)
        happened, self.disturbance = self.disturbance is None, None
        assert not (opened and happened)

    # What must hold.

    def check_release(self) -> None:
        assert self.now - self.beat_ns < STALE_NS, "released on a stale heartbeat"
        assert self.page.unknown_training == 0, "released beside a training without a board"
        assert self.page.fills[0].allowed == 1
        assert self.page.boards_sequence % 2 == 0, "released on a list that is being written"
        assert sorted(self.listed) == sorted(self.mapped), "released without a training's board"
        assert self.listed, "released where no training is"
        for board_id in self.listed:
            training = self.trainings[board_id]
            board = training.board
            assert training.idle, "released while training computes"
            begin_ns = board.gpus[training.ours].bubble_begin_ns
            assert self.now - begin_ns >= self.page.dwell_us * US, "released without a dwell"
            assert (board.head.shut, board.lend, board.ready) == (0, 1, 1)

    @invariant()
    def little_is_left_when_training_comes_back(self) -> None:
        """It may come at any moment. One operation alone may be longer than the budget."""
        alone = self.fill.left_ns(self.now) if len(self.fill.queue) == 1 else 0
        assert self.fill.left_ns(self.now) <= max(BUDGET_NS, alone)


Sharing.TestCase.settings = settings(
    max_examples=3000 if ASKED_FOR else 120,
    stateful_step_count=60 if ASKED_FOR else 40,
    deadline=None,
)
TestSharing = Sharing.TestCase
