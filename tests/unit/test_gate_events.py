"""GPU time from events: in their order, none before training has been looked at, none for ever."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from agent.board import TrainingBoard
from tests.unit.gate_library import Gate, gate_beside_training

US = 1000
MS = 1_000_000
NOW = 1_000 * MS
SHAPE = 0xABCDEF
NEVER_KNOWN = 0


class Fill:
    """Kernels of 100 us on one stream, whose markers have events."""

    def __init__(self, gate: Gate, board: TrainingBoard) -> None:
        self.gate = gate
        self.board = board
        self.word = ctypes.c_uint64(0)
        gate.lib.glue_stream(gate.handle, 0, ctypes.addressof(self.word))
        for _ in range(8):
            gate.lib.glue_learn(gate.handle, SHAPE, 100 * US, 1)

    def launch(self) -> int:
        return int(self.gate.lib.glue_launch(self.gate.handle, 0, SHAPE, NOW, MS, 1))

    def event(self, value: int, at: int) -> None:
        """The marker of that value has an event that the GPU passes then."""
        self.gate.lib.glue_timed(self.gate.handle, 0, value, at)

    def look(self, now: int) -> None:
        self.gate.lib.glue_look(self.gate.handle, now)

    def resume(self, at: int) -> None:
        section = self.board.gpus[0]
        self.board.slots[0].before += 1
        section.resume_launch_ns = at
        section.resume_seq = section.resumed_seq = section.bubble_seq
        section.bubble_seq += 1

    @property
    def in_flight(self) -> int:
        return int(self.gate.lib.glue_count(self.gate.handle))

    def gpu_time_ns(self) -> int:
        board = self.gate.lib.glue_board().contents
        assert board.use_head > 0
        return sum(board.uses[i].gpu_time_ns for i in range(board.use_head))


@pytest.fixture
def fill() -> Iterator[Fill]:
    with gate_beside_training(NOW, NOW - MS) as (gate, board):
        yield Fill(gate, board)


def test_what_stands_before_an_event_waits_for_it(fill: Fill) -> None:
    """The first marker had no event. Its word alone would place it between two looks."""
    fill.launch()
    second = fill.launch()
    fill.event(second, NOW + 200 * US)
    fill.word.value = second - 1
    fill.look(NOW + 150 * US)
    assert fill.in_flight == 2
    fill.word.value = second
    fill.look(NOW + 300 * US)
    assert fill.in_flight == 0


def test_events_that_fail_hold_nothing(fill: Fill) -> None:
    first, second = fill.launch(), fill.launch()
    fill.event(first, NEVER_KNOWN)
    fill.event(second, NEVER_KNOWN)
    fill.word.value = first
    fill.look(NOW + 150 * US)
    assert fill.in_flight == 2, "the second event has not been asked for"
    fill.word.value = second
    fill.look(NOW + 250 * US)
    assert fill.in_flight == 0


def test_an_event_that_passed_since_the_look_began_is_for_the_next(fill: Fill) -> None:
    """Training came back and had the GPU for 2.8 ms while the looking thread stood still."""
    first, second = fill.launch(), fill.launch()
    fill.event(first, NOW + 100 * US)
    fill.event(second, NOW + 3 * MS)
    fill.word.value = second
    fill.look(NOW + 110 * US)
    assert fill.in_flight == 1
    fill.resume(NOW + 120 * US)
    fill.look(NOW + 3 * MS + 50 * US)
    assert fill.in_flight == 0
    fill.look(NOW + 10 * MS)
    assert fill.gpu_time_ns() == pytest.approx(200 * US, abs=2 * US)
