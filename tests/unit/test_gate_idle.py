"""The gate opens on an idle board only: whatever is busy, torn, absent, shut or stale closes it."""

from __future__ import annotations

import ctypes

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent.board import Closed, TrainingBoard
from tests.unit.gate_library import (
    BUSY_SLOT,
    JOB,
    LIVE,
    UUID,
    Gate,
    library,
    policy_page,
    training_board,
)

MS = 1_000_000
STALE_NS = 500 * MS


class Boards(RuleBasedStateMachine):
    """Random histories of boards and page beside what the rules say of them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.now = 10_000 * MS
        self.page = policy_page(boards=0)
        self.gate.map_page(self.page)
        self.boards: dict[int, TrainingBoard] = {}
        self.listed: set[int] = set()
        self.mapped: set[int] = set()
        self.last_id = 0
        self.polled = 0
        self.fresh = 0
        self.beaten = False

    def teardown(self) -> None:
        self.gate.close()

    # The agent's side.

    def _list(self) -> None:
        self.page.boards_sequence += 1
        for position, board_id in enumerate(sorted(self.listed)):
            self.page.boards[position] = board_id
        self.page.boards_count = len(self.listed)
        self.page.boards_sequence += 1

    def _map(self) -> None:
        self.gate.map_boards({i: self.boards[i] for i in sorted(self.mapped)})

    @precondition(lambda self: len(self.boards) < 4)
    @rule(listed=st.booleans(), mapped=st.booleans())
    def training_starts(self, listed: bool, mapped: bool) -> None:
        self.last_id += 1
        self.boards[self.last_id] = training_board(streams=3, bubble_begin_ns=self.now - MS)
        if listed:
            self.listed.add(self.last_id)
            self._list()
        if mapped:
            self.mapped.add(self.last_id)
            self._map()

    @rule(data=st.data())
    @precondition(lambda self: self.boards)
    def agent_sends_or_drops(self, data: st.DataObject) -> None:
        board_id = data.draw(st.sampled_from(sorted(self.boards)))
        self.listed ^= {board_id} if data.draw(st.booleans()) else set()
        self.mapped ^= {board_id} if data.draw(st.booleans()) else set()
        self._list()
        self._map()

    @rule()
    def everything_agrees_again(self) -> None:
        self.listed = set(self.boards)
        self.mapped = set(self.boards)
        self._list()
        self._map()

    @rule(unknown=st.integers(0, 1))
    def unknown_training(self, unknown: int) -> None:
        self.page.unknown_training = unknown

    @rule(allowed=st.booleans(), reason=st.sampled_from([Closed.OFF, Closed.BUDGET]))
    def verdict(self, allowed: bool, reason: Closed) -> None:
        self.page.fills[0].reason = reason
        self.page.fills[0].allowed = allowed

    @rule(torn=st.booleans())
    def list_is_being_written(self, torn: bool) -> None:
        if (self.page.boards_sequence % 2 == 1) != torn:
            self.page.boards_sequence += 1

    @rule(ms=st.sampled_from([1, 20, 60, 300, 499, 600]))
    def time_passes(self, ms: int) -> None:
        self.now += ms * MS

    @rule()
    def agent_beats(self) -> None:
        self.page.heartbeat += 1
        self.beaten = True

    @rule()
    def agent_is_well(self) -> None:
        """Beats and looks as they come while agent and helper thread live."""
        for _ in range(2):
            self.agent_beats()
            self.look()
            self.now += MS

    # Training's side. Each breaks or mends one thing on one board.

    def _any(self, data: st.DataObject) -> TrainingBoard:
        return self.boards[data.draw(st.sampled_from(sorted(self.boards)))]

    @precondition(lambda self: self.boards)
    @rule(data=st.data(), slot=st.integers(0, 2))
    def issues(self, data: st.DataObject, slot: int) -> None:
        board = self._any(data)
        board.slots[slot].before += 1
        if data.draw(st.booleans()):
            board.gpus[0].bubble_seq |= 1
            board.gpus[0].bubble_seq += 1

    @precondition(lambda self: self.boards)
    @rule(data=st.data(), slot=st.integers(0, 2), word=st.integers(0, 2))
    def finishes(self, data: st.DataObject, slot: int, word: int) -> None:
        own = self._any(data).slots[slot]
        own.after = own.before
        own.done = own.before << 2 | word

    @precondition(lambda self: self.boards)
    @rule(data=st.data())
    def bubble_begins(self, data: st.DataObject) -> None:
        board = self._any(data)
        board.gpus[0].bubble_seq += 1 - board.gpus[0].bubble_seq % 2
        board.gpus[0].bubble_begin_ns = self.now - data.draw(st.sampled_from([0, 10_000, MS]))
        for slot in board.slots[:3]:
            slot.after = slot.before
            slot.done = slot.before << 2

    @precondition(lambda self: self.boards)
    @rule(data=st.data(), value=st.integers(0, 1))
    def flags(self, data: st.DataObject, value: int) -> None:
        board = self._any(data)
        field = data.draw(st.sampled_from(["lend", "ready"]))
        setattr(board, field, value)

    @precondition(lambda self: self.boards)
    @rule(data=st.data())
    def odd_states(self, data: st.DataObject) -> None:
        board = self._any(data)
        match data.draw(st.integers(0, 9)):
            case 0:
                board.head.shut = data.draw(st.integers(0, 5))
            case 1:
                board.slots_used = data.draw(st.sampled_from([3, 513, 0xFFFFFFFF]))
            case 2:
                board.gpus_used = data.draw(st.sampled_from([0, 1, 17]))
            case 3:
                board.slots[1].state = data.draw(st.sampled_from([0, LIVE, BUSY_SLOT, 9]))
            case 4:
                board.slots[1].gpu = data.draw(st.integers(0, 1))
            case 5:
                board.gpus[0].used = data.draw(st.integers(0, 1))
            case 6:  # marked before the launch call has returned
                board.slots[1].after = board.slots[1].before - 1
            case 8:  # the GPU has not got there
                board.slots[1].done -= 1 << 2
            case 9:  # it stands there, in a wait or a collective
                board.slots[1].done |= data.draw(st.integers(1, 2))
            case 7:  # a launch has ended the bubble and is not counted yet
                board.gpus[0].bubble_seq |= 1
                board.gpus[0].bubble_seq += 1

    @precondition(lambda self: self.boards)
    @rule()
    def all_mended(self) -> None:
        for board_id in self.boards:
            fresh = training_board(streams=3, bubble_begin_ns=self.now - MS)
            ctypes.memmove(
                ctypes.addressof(self.boards[board_id]),
                ctypes.addressof(fresh),
                ctypes.sizeof(fresh),
            )

    @precondition(lambda self: self.boards)
    @rule(data=st.data())
    def one_thing_is_wrong(self, data: st.DataObject) -> None:
        """From a state in which the gate is open, one step away from it."""
        self.all_mended()
        self.everything_agrees_again()
        self.list_is_being_written(False)
        self.unknown_training(0)
        self.verdict(True, Closed.OFF)
        self.agent_is_well()
        assert self.look() == Closed.OPEN
        self.odd_states(data)

    # What the rules say.

    def _idle(self, board: TrainingBoard) -> bool:
        section = board.gpus[0]
        return (
            board.head.shut == 0
            and board.ready == 1
            and board.lend == 1
            and board.gpus_used == 1
            and section.used == 1
            and section.bubble_seq % 2 == 1
            and self.now - section.bubble_begin_ns >= 50_000
            and board.slots_used <= 512
            and all(
                slot.state == LIVE and slot.before == slot.after and slot.done == slot.before << 2
                for slot in board.slots[: board.slots_used]
                if slot.state != 0 and slot.gpu == 0
            )
        )

    def _may_open(self) -> bool:
        return (
            self.fresh > 0
            and self.now - self.fresh < STALE_NS
            and self.page.fills[0].allowed == 1
            and self.page.unknown_training == 0
            and self.page.boards_sequence % 2 == 0
            and self.listed == self.mapped
            and len(self.listed) > 0
            and all(self._idle(self.boards[i]) for i in self.listed)
        )

    def look(self) -> int:
        if self.beaten and self.polled:
            self.fresh = self.polled
        self.beaten = False
        self.polled = self.now
        return self.gate.decide(self.now)

    @invariant()
    def opens_exactly_when_idle(self) -> None:
        closed = self.look()
        assert (closed == Closed.OPEN) == self._may_open(), Closed(closed)


Boards.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestBoards = Boards.TestCase


def test_no_look_calls_a_computing_gpu_idle() -> None:
    """Against a training process that really runs beside the looks."""
    board = training_board(streams=3)
    idle = ctypes.c_uint64()
    for _ in range(20):  # where others take the processors, one race may show no idle moment
        race = (ctypes.addressof(board), UUID.encode(), 400_000, ctypes.byref(idle))
        assert library().glue_race(*race) == 0
        if idle.value:
            break
    assert idle.value > 0, "the race never left an idle moment to be seen"


def test_no_training_means_nothing_to_lend() -> None:
    gate = Gate()
    gate.map_page(policy_page(boards=0))
    gate.freshen(10 * MS)
    assert gate.decide(10 * MS) == Closed.NO_HOST
    gate.close()


def test_a_fill_without_an_entry_stays_shut() -> None:
    gate = Gate()
    page = policy_page()
    page.fills[0].job_id = JOB + 1
    gate.map_page(page)
    gate.map_boards({1: training_board()})
    gate.freshen(10 * MS)
    assert gate.decide(10 * MS) == Closed.OFF
    gate.close()
