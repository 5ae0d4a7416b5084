"""What training waited for a fill: when it was ready, and when it had the GPU again."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

import pytest

from agent.board import TrainingBoard, Use
from tests.unit.gate_library import Gate, gate_beside_training

US = 1000
MS = 1_000_000
NOW = 1_000 * MS
SHAPE = 0xABCDEF
SWITCH = 130 * US
MARKER = 2 * US
"""A marker's call and its write by the GPU."""


class Bench:
    """A fill with one kernel a bubble, and a training that comes back at a time of the test's."""

    def __init__(self, gate: Gate, board: TrainingBoard) -> None:
        self.gate = gate
        self.board = board
        self.word = ctypes.c_uint64(0)
        self.now = NOW
        gate.lib.glue_stream(gate.handle, 0, ctypes.addressof(self.word))
        gate.lib.glue_learn(gate.handle, SHAPE, 100 * US, 1)

    def learn_the_switch(self) -> None:
        for _ in range(16):
            self.gate.lib.glue_took_over(self.gate.handle, SWITCH)

    def look(self, now: int) -> None:
        self.gate.lib.glue_look(self.gate.handle, now)

    def launch(self) -> int:
        """Starts a kernel of 100 us; returns when it ends."""
        self.value = self.gate.lib.glue_launch(self.gate.handle, 0, SHAPE, self.now, MS, 1)
        return self.now + 100 * US

    def end_kernel(self, at: int) -> None:
        self.word.value = self.value
        self.look(at)

    def resume(
        self,
        at: int,
        *,
        mark: int | None = None,
        call: int | None = None,
        issued: int | None = None,
    ) -> None:
        """Training launches: its call, the marker before it, the driver's call and its return."""
        section = self.board.gpus[0]
        self.board.slots[0].before += 1
        section.resume_launch_ns = at
        section.resume_seq = section.bubble_seq
        section.bubble_seq += 1
        if mark is not None and call is not None and issued is not None:
            section.resume_mark_ns = mark
            section.resume_call_ns = call
            section.resume_issued_ns = issued

    def start(self, at: int) -> None:
        """The GPU passes the marker before training's launch; we see it."""
        self.board.gpus[0].resumed_seq = self.board.gpus[0].resume_seq
        self.look(at)

    def bubble(self, at: int) -> None:
        section = self.board.gpus[0]
        self.board.slots[0].after = self.board.slots[0].before
        self.board.slots[0].done = self.board.slots[0].before << 2
        section.bubble_begin_ns = at
        section.bubble_seq += 1
        self.now = at + 100 * US

    def told(self) -> Use:
        """The last record."""
        board = self.gate.lib.glue_board().contents
        assert board.use_head > 0
        last: Use = board.uses[board.use_head - 1]
        return last


@pytest.fixture
def newcomer() -> Iterator[Bench]:
    """A fill that has not learned how long the GPU takes to switch."""
    with gate_beside_training(NOW, NOW - MS) as (gate, board):
        yield Bench(gate, board)


@pytest.fixture
def bench(newcomer: Bench) -> Bench:
    """A fill that has."""
    newcomer.learn_the_switch()
    return newcomer


def return_to_idle(
    bench: Bench, mark_us: int, call_us: int, issued_us: int, *, seen_us: int | None = None
) -> int:
    """One bubble that our kernel had left idle long before; what training waited, in us."""
    bench.end_kernel(bench.launch())
    at = bench.now + MS
    bench.look(at - 10 * US)
    mark, call, issued = (at + us * US for us in (mark_us, call_us, issued_us))
    bench.resume(at, mark=mark, call=call, issued=issued)
    bench.look(issued)
    seen = max(issued, mark + MARKER + SWITCH) + 200 * US if seen_us is None else at + seen_us * US
    bench.start(seen)
    bench.look(at + 5 * MS)
    bench.bubble(at + 6 * MS)
    return int(bench.told().intrusion_ns) // US


def test_a_wait_goes_from_the_launch_to_the_end_of_a_switch_that_the_marker_began(
    bench: Bench,
) -> None:
    assert return_to_idle(bench, 1, 20, 25) == 1 + 2 + 130 - 25


def test_a_marker_that_passes_before_the_switch_does_not_shorten_the_wait(bench: Bench) -> None:
    """A GPU writes it without the multiprocessors, which training gets only by the switch."""
    assert return_to_idle(bench, 1, 20, 25, seen_us=30) == 1 + 2 + 130 - 25


def test_a_marker_that_came_late_ends_the_wait_later(bench: Bench) -> None:
    assert return_to_idle(bench, 100, 120, 125) == 100 + 2 + 130 - 125


def test_calls_of_ours_that_returned_late_do_not_shorten_the_switch(bench: Bench) -> None:
    """Three of five looked shorter by what the machine held them up."""
    for number in range(30):
        late = 80 * US if number % 5 < 3 else 0
        bench.gate.lib.glue_took_over(bench.gate.handle, SWITCH - late)
    assert return_to_idle(bench, 1, 20, 25) == 1 + 2 + 130 - 25


@pytest.mark.parametrize("held", [[0], [0, 1], range(7)], ids=len)
def test_the_first_calls_of_ours_that_returned_late_do_not_shorten_the_switch(
    newcomer: Bench, held: Sequence[int]
) -> None:
    """Few have been seen: what is assumed of a switch counts until there are enough."""
    for number in range(len(held) + 2):
        late = 90 * US if number in held else 0
        newcomer.gate.lib.glue_took_over(newcomer.gate.handle, SWITCH - late)
    assert return_to_idle(newcomer, 1, 20, 25) == 1 + 2 + 130 - 25


def test_the_second_launch_call_of_training_may_be_found_held_up(bench: Bench) -> None:
    return_to_idle(bench, 1, 20, 25)
    before, after = 1 + 2 + 130 - 220, 1 + 2 + 130 - 25
    assert before < 0 < after
    assert return_to_idle(bench, 1, 20, 220) == 3 * after // 4


def test_three_quarters_of_a_wait_are_told_of_a_launch_call_that_was_held_up(bench: Bench) -> None:
    """Nothing says whether it was held up before it had launched or after."""
    for _ in range(4):
        return_to_idle(bench, 1, 20, 25)
    before, after = 1 + 2 + 130 - 65, 1 + 2 + 130 - 25
    assert return_to_idle(bench, 1, 20, 65) == (before + 3 * after) // 4
    assert return_to_idle(bench, 1, 20, 400) == (0 + 3 * after) // 4


def test_a_launch_that_was_late_itself_did_not_wait(bench: Bench) -> None:
    for _ in range(4):
        return_to_idle(bench, 1, 20, 25)
    assert return_to_idle(bench, 1, 180, 185) == 0


def test_a_look_that_was_held_up_does_not_date_the_start_too_early(newcomer: Bench) -> None:
    """The looking thread stood still between reading the clock and reading the board."""
    bench = newcomer
    bench.end_kernel(bench.launch())
    at = bench.now + MS
    bench.look(at - 10 * US)
    bench.resume(at, mark=at, call=at + 5 * US, issued=at + 8 * US)
    bench.look(at + 8 * US)
    bench.gate.lib.glue_clock(bench.gate.handle, at + SWITCH + 50 * US)
    bench.start(at + 20 * US)
    bench.look(at + 5 * MS)
    assert bench.told().intrusion_ns == MARKER + SWITCH - 8 * US


def test_coarse_looks_do_not_lengthen_the_return_from_work_of_ours(bench: Bench) -> None:
    """The switch is known from our own starts; looks 80 us apart don't contradict that."""
    for number in range(12):
        end = bench.launch()
        at = end - 30 * US - number * US
        bench.look(at)
        bench.resume(at, mark=at, call=at, issued=at)
        bench.look(at + US)
        bench.end_kernel(end)
        started = end + SWITCH
        bench.look(started - 20 * US)
        bench.start(started + 60 * US)
        bench.look(at + 5 * MS)
        told = bench.told()
        assert told.intrusion_ns == pytest.approx(started - at, abs=5 * US)
        bench.bubble(at + 6 * MS)


def test_a_return_that_is_seen_to_take_longer_is_charged_longer(bench: Bench) -> None:
    for _ in range(20):
        end = bench.launch()
        at = end - 30 * US
        bench.look(at)
        bench.resume(at, mark=at, call=at, issued=at)
        bench.look(at + US)
        bench.end_kernel(end)
        bench.look(end + 290 * US)
        bench.start(end + 310 * US)
        bench.look(at + 5 * MS)
        bench.bubble(at + 6 * MS)
    assert bench.told().intrusion_ns == pytest.approx(330 * US, abs=15 * US)
