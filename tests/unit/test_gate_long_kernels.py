"""Kernels longer than the work in flight may be: none ever stands behind another."""

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
LENGTH = MS
SWITCH = 180 * US
"""Not what is taken for usual until it has been seen."""
MARKER = 2 * US
LAUNCH = 3 * US
"""From a launch until a GPU that is ours has begun it."""


class Fill:
    """One kernel after the other in each bubble of a training."""

    def __init__(self, gate: Gate, board: TrainingBoard) -> None:
        self.gate = gate
        self.board = board
        self.word = ctypes.c_uint64(0)
        self.now = NOW
        gate.lib.glue_stream(gate.handle, 0, ctypes.addressof(self.word))

    def run(self, waits_ns: int) -> None:
        """One kernel, which begins so long after its launch."""
        value = self.gate.lib.glue_launch(self.gate.handle, 0, SHAPE, self.now, MS, 1)
        end = self.now + waits_ns + LENGTH
        self.gate.lib.glue_timed(self.gate.handle, 0, value, end)
        self.word.value = value
        self.now = end + 20 * US
        self.gate.lib.glue_look(self.gate.handle, self.now)

    def bubble(self) -> int:
        """Three kernels, idleness, training's return; what training waited by our account."""
        for waits_ns in (SWITCH, LAUNCH, LAUNCH):
            self.run(waits_ns)
        section, slot = self.board.gpus[0], self.board.slots[0]
        at = self.now + MS
        self.gate.lib.glue_look(self.gate.handle, at - 10 * US)
        slot.before += 1
        section.resume_launch_ns, section.resume_seq = at, section.bubble_seq
        section.bubble_seq += 1
        section.resume_mark_ns, section.resume_call_ns = at + US, at + 20 * US
        section.resume_issued_ns = at + 25 * US
        self.gate.lib.glue_look(self.gate.handle, at + 25 * US)
        section.resumed_seq = section.resume_seq
        self.gate.lib.glue_look(self.gate.handle, at + SWITCH + 300 * US)
        self.gate.lib.glue_look(self.gate.handle, at + 5 * MS)
        slot.after, slot.done = slot.before, slot.before << 2
        section.bubble_begin_ns = at + 6 * MS
        section.bubble_seq += 1
        self.now = at + 6 * MS + 100 * US
        board = self.gate.lib.glue_board().contents
        return int(board.uses[board.use_head - 1].intrusion_ns)

    def mean_ns(self) -> int:
        return int(self.gate.lib.glue_mean(self.gate.handle, SHAPE))


@pytest.fixture
def fill() -> Iterator[Fill]:
    with gate_beside_training(NOW, NOW - MS) as (gate, board):
        yield Fill(gate, board)


def test_they_tell_how_long_the_gpu_takes_to_turn(fill: Fill) -> None:
    for _ in range(18):
        waited_ns = fill.bubble()
    truly_ns = (US + MARKER + SWITCH) - 25 * US
    assert waited_ns == pytest.approx(truly_ns, abs=LAUNCH)


def test_one_that_another_fill_may_have_kept_waiting_is_no_measure(fill: Fill) -> None:
    for waits_ns in (SWITCH, LAUNCH, LAUNCH, LAUNCH):
        fill.run(waits_ns)
    for _ in range(4):
        fill.now += 5 * MS
        fill.run(SWITCH)
    assert fill.mean_ns() == pytest.approx(LENGTH, abs=LAUNCH)
