"""Released work is counted by what the GPU writes; durations are learned; waits are charged."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agent.board import Closed, TrainingBoard, Use
from tests.unit.gate_library import Gate, policy_page, training_board

US = 1000
MS = 1_000_000
NOW = 1_000 * MS
SHAPE = 0xABCDEF


class Gpu:
    """A simulated GPU of one stream: operations run back to back, the test moves the clock."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.lib = gate.lib
        self.word = ctypes.c_uint64(0)
        self.lib.glue_stream(gate.handle, 0, ctypes.addressof(self.word))
        self.free_ns = 0
        self.running: list[tuple[int, int]] = []  # (value, end)
        self.busy_ns = 0

    def launch(self, now: int, length: int, shape: int = SHAPE, *, idle: bool = True) -> None:
        value = self.lib.glue_launch(self.gate.handle, 0, shape, now, MS, idle)
        self.free_ns = max(self.free_ns, now) + length
        self.running.append((value, self.free_ns))
        self.busy_ns += length

    def pause(self, length: int) -> None:
        """The GPU serves training before it goes on with what is not done."""
        self.free_ns += length
        self.running = [(value, end + length) for value, end in self.running]

    def look(self, now: int) -> None:
        while self.running and self.running[0][1] <= now:
            self.word.value = self.running.pop(0)[0]
        self.lib.glue_look(self.gate.handle, now)


@pytest.fixture
def board() -> TrainingBoard:
    board = training_board(bubble_begin_ns=NOW - MS)
    board.fill_present = 1
    return board


@pytest.fixture
def gate(board: TrainingBoard) -> Iterator[Gate]:
    gate = Gate()
    gate.map_page(policy_page())
    gate.map_boards({1: board})
    gate.freshen(NOW)
    yield gate
    gate.close()


def records(gate: Gate) -> list[Use]:
    board = gate.lib.glue_board().contents
    return [board.uses[i] for i in range(board.use_head)]


def saturate(gpu: Gpu, until: int, length: int, poll: int, *, depth: int = 2) -> int:
    """Keeps depth operations in flight until a time; returns when it stopped."""
    now = NOW
    while now < until:
        gpu.look(now)
        while gpu.lib.glue_count(gpu.gate.handle) < depth:
            gpu.launch(now, length)
        now += poll
    return now


def test_an_unknown_operation_runs_alone(gate: Gate) -> None:
    gpu = Gpu(gate)
    gpu.launch(NOW, 100 * US)
    assert gate.decide(NOW, 10 * US) == Closed.IN_FLIGHT
    gpu.look(NOW + 110 * US)
    assert gate.decide(NOW + 110 * US, 10 * US) == Closed.OPEN


def test_a_short_unknown_operation_runs_alone(gate: Gate) -> None:
    """What it counts as would leave room; but nobody knows what it takes."""
    lib, handle = gate.lib, gate.handle
    gpu = Gpu(gate)
    lib.glue_launch(handle, 0, SHAPE, NOW, 10 * US, 1)
    assert gate.decide(NOW, 10 * US) == Closed.IN_FLIGHT
    gpu.word.value = 1
    gpu.look(NOW + 20 * US)
    assert gate.decide(NOW + 20 * US, 10 * US) == Closed.OPEN
    lib.glue_learn(handle, SHAPE + 1, 10 * US, 1)
    gpu.launch(NOW + 20 * US, 10 * US, SHAPE + 1)
    assert gate.decide(NOW + 20 * US, 10 * US) == Closed.OPEN
    assert gate.decide(NOW + 20 * US, 10 * US, alone=True) == Closed.IN_FLIGHT


def test_budget_bounds_what_is_in_flight(gate: Gate) -> None:
    gate.lib.glue_learn(gate.handle, SHAPE, 100 * US, 1)
    gpu = Gpu(gate)
    for _ in range(3):
        assert gate.decide(NOW, 100 * US) == Closed.OPEN
        gpu.launch(NOW, 100 * US)
    assert gate.decide(NOW, 100 * US) == Closed.IN_FLIGHT
    gpu.look(NOW + 101 * US)
    assert gate.lib.glue_in_flight(gate.handle) == 200 * US
    assert gate.decide(NOW + 101 * US, 100 * US) == Closed.OPEN


def test_longer_than_the_budget_needs_an_empty_gpu(gate: Gate) -> None:
    gate.lib.glue_learn(gate.handle, SHAPE, 10 * US, 1)
    gpu = Gpu(gate)
    assert gate.decide(NOW, 400 * US) == Closed.OPEN
    gpu.launch(NOW, 10 * US)
    assert gate.decide(NOW, 400 * US) == Closed.IN_FLIGHT


@settings(deadline=None, max_examples=25)
@given(length=st.integers(20, 2000), poll=st.integers(3, 70), depth=st.integers(2, 4))
def test_gpu_time_of_a_saturating_fill_is_exact(length: int, poll: int, depth: int) -> None:
    """Within 4 % however coarse the looks are, from a first guess that is far off."""
    assume(depth * length > 4 * poll)  # else the GPU runs dry between two looks
    gate = Gate()
    gate.map_page(policy_page())
    gate.map_boards({1: training_board(bubble_begin_ns=NOW - MS)})
    gpu = Gpu(gate)
    gpu.launch(NOW, length * US)
    gpu.look(NOW + length * US + poll * US)
    gpu.busy_ns = 0
    before = sum(use.gpu_time_ns for use in records(gate))
    end = saturate(gpu, NOW + 300 * MS, length * US, poll * US, depth=depth)
    for _ in range(3 * depth * length // poll + 10):
        end += poll * US
        gpu.look(end)
    gpu.look(end + 300 * MS)
    total = sum(use.gpu_time_ns for use in records(gate)) - before
    assert total == pytest.approx(gpu.busy_ns, rel=0.04)
    coarse = max(0.25 * length, 1.5 * poll) * US  # one length can't be told better than looks come
    assert gate.lib.glue_mean(gate.handle, SHAPE) == pytest.approx(length * US, abs=coarse)
    gate.close()


def test_durations_forget_nothing_that_is_used(gate: Gate) -> None:
    lib = gate.lib
    for shape in range(1, 20_000):
        lib.glue_learn(gate.handle, shape, shape * US, 1)
        lib.glue_learn(gate.handle, SHAPE, 50 * US, 1)
    assert lib.glue_mean(gate.handle, SHAPE) == pytest.approx(50 * US, rel=0.01)
    assert lib.glue_mean(gate.handle, 19_999) == 19_999 * US
    assert lib.glue_mean(gate.handle, 0) == 0


def test_a_changed_graph_is_what_its_next_run_takes(gate: Gate) -> None:
    for _ in range(10):
        gate.lib.glue_learn(gate.handle, SHAPE, 50 * US, 1)
    gate.lib.glue_changed(gate.handle, SHAPE)
    assert gate.lib.glue_mean(gate.handle, SHAPE) == 50 * US
    gate.lib.glue_learn(gate.handle, SHAPE, 3000 * US, 1)
    assert gate.lib.glue_mean(gate.handle, SHAPE) == 3000 * US


def test_nothing_is_known_of_a_handle_that_is_used_again(gate: Gate) -> None:
    gate.lib.glue_learn(gate.handle, SHAPE, 50 * US, 1)
    gate.lib.glue_gone(gate.handle, SHAPE)
    assert gate.lib.glue_mean(gate.handle, SHAPE) == 0


def test_launch_latency_does_not_spoil_an_exact_duration(gate: Gate) -> None:
    for _ in range(10):
        gate.lib.glue_learn(gate.handle, SHAPE, 20 * US, 1)
        gate.lib.glue_learn(gate.handle, SHAPE, 60 * US, 0)
    assert gate.lib.glue_mean(gate.handle, SHAPE) == 20 * US


def test_one_long_run_does_not_keep_an_operation_alone_for_ever(gate: Gate) -> None:
    """Thought too long to stand behind another, it is never measured exactly again: what it takes
    on an idle GPU, launch latency and all, has to make up for the exception."""
    for _ in range(20):
        gate.lib.glue_learn(gate.handle, SHAPE, 100 * US, 1)
    gate.lib.glue_learn(gate.handle, SHAPE, 2400 * US, 1)
    assert gate.lib.glue_bound(gate.handle, SHAPE) > 300 * US
    for _ in range(100):
        gate.lib.glue_learn(gate.handle, SHAPE, 115 * US, 0)
    assert 100 * US <= gate.lib.glue_bound(gate.handle, SHAPE) < 120 * US


def test_what_often_runs_long_stays_known_for_it(gate: Gate) -> None:
    for _ in range(20):
        gate.lib.glue_learn(gate.handle, SHAPE, 100 * US, 1)
        gate.lib.glue_learn(gate.handle, SHAPE, 900 * US, 1)
    for _ in range(100):
        gate.lib.glue_learn(gate.handle, SHAPE, 800 * US, 0)
    assert gate.lib.glue_bound(gate.handle, SHAPE) > 500 * US


def test_a_wrong_estimate_holds_nothing_for_ever(gate: Gate) -> None:
    lib, handle, second = gate.lib, gate.handle, 1000 * MS
    lib.glue_learn(handle, SHAPE, 50 * MS, 0)
    assert not lib.glue_doubted(handle, SHAPE, second)
    assert lib.glue_doubted(handle, SHAPE, 2 * second)
    lib.glue_tried(handle, SHAPE)
    lib.glue_learn(handle, SHAPE, 50 * MS, 0)  # it is so long: the next trial comes later
    assert not lib.glue_doubted(handle, SHAPE, 3 * second)
    assert lib.glue_doubted(handle, SHAPE, 4 * second)
    lib.glue_tried(handle, SHAPE)
    lib.glue_learn(handle, SHAPE, 100 * US, 0)  # it was a mistake
    assert lib.glue_mean(handle, SHAPE) == 100 * US


def resume(board: TrainingBoard, at: int) -> None:
    """Training's first launch after its bubble, as the monitor tells it."""
    section = board.gpus[0]
    board.slots[0].before += 1
    section.resume_launch_ns = at
    section.resume_seq = section.bubble_seq
    record = board.bubbles[board.bubble_head % len(board.bubbles)]
    record.seq = section.bubble_seq
    record.begin_ns = section.bubble_begin_ns
    record.end_ns = at
    record.cause = section.bubble_cause
    board.bubble_head += 1
    section.bubble_seq += 1


def bubble(board: TrainingBoard, at: int) -> None:
    section = board.gpus[0]
    board.slots[0].after = board.slots[0].before
    board.slots[0].done = board.slots[0].before << 2
    section.bubble_begin_ns = at
    section.bubble_seq += 1


def drive(gpu: Gpu, begin: int, end: int, step: int = 20 * US) -> None:
    for now in range(begin, end, step):
        gpu.look(now)


def test_wait_of_a_well_gated_fill(gate: Gate, board: TrainingBoard) -> None:
    """Two kernels of 100 us in flight at the resume, then a switch of 130 us."""
    gate.lib.glue_learn(gate.handle, SHAPE, 100 * US, 1)
    gpu, truth, now = Gpu(gate), 0, NOW
    for number in range(40):
        begin = now
        while now < begin + 5 * MS:
            gpu.look(now)
            while gate.lib.glue_count(gate.handle) < 2:
                gpu.launch(now, 100 * US)
            now += 20 * US
        at = now + number * 3 * US
        resume(board, at)
        gpu.look(at)
        started = gpu.free_ns + 130 * US
        truth += started - at
        drive(gpu, at + 20 * US, started)
        board.gpus[0].resumed_seq = board.gpus[0].resume_seq
        drive(gpu, started, started + 5 * MS)
        now = started + 5 * MS
        bubble(board, now)
        now += 100 * US
    reported = sum(use.intrusion_ns for use in records(gate))
    assert len(records(gate)) == 40
    assert reported == pytest.approx(truth, rel=0.10)


def test_wait_when_the_gpu_alternates(gate: Gate, board: TrainingBoard) -> None:
    """Ten milliseconds in flight: the GPU serves both in slices of 1 ms."""
    gate.lib.glue_learn(gate.handle, SHAPE, 500 * US, 1)
    gpu, truth, now = Gpu(gate), 0, NOW
    for _ in range(20):
        gpu.look(now)
        for _ in range(20):
            gpu.launch(now, 500 * US)
        drive(gpu, now, now + 300 * US)
        at = now + 300 * US
        resume(board, at)
        # Our slice ends with the operation that runs at 1 ms.
        first_end = now + 1 * MS
        started = first_end + 130 * US
        truth += started - at
        slices = [(first_end, 130 * US + 1 * MS + 130 * US)]
        while slices[-1][0] + slices[-1][1] + MS < now + 40 * MS and len(slices) < 9:
            slices.append((slices[-1][0] + slices[-1][1] + MS, 130 * US + 1 * MS + 130 * US))
        waits = [(a + pause, b) for (a, pause), (b, _) in pairwise(slices)]
        look_ns = at
        for end, pause in slices:
            drive(gpu, look_ns, end + 1)
            gpu.running = [(v, e + pause if e > end else e) for v, e in gpu.running]
            gpu.free_ns += pause
            if end == first_end:
                drive(gpu, end, started)
                board.gpus[0].resumed_seq = board.gpus[0].resume_seq
            look_ns = max(end, started if end == first_end else end)
        truth += sum(b - a + 260 * US for a, b in waits)
        last_begin = slices[-1][0] + slices[-1][1]
        truth += gpu.free_ns - last_begin + 260 * US
        drive(gpu, look_ns, gpu.free_ns + 2 * MS)
        now = gpu.free_ns + 8 * MS
        gpu.look(now)
        bubble(board, now)
        now += MS
    reported = sum(use.intrusion_ns for use in records(gate))
    assert reported == pytest.approx(truth, rel=0.10)


def test_no_wait_is_charged_when_nothing_was_in_the_way(gate: Gate, board: TrainingBoard) -> None:
    gate.lib.glue_learn(gate.handle, SHAPE, 100 * US, 1)
    gpu, now = Gpu(gate), NOW
    gpu.launch(now, 100 * US)
    drive(gpu, now, now + 2 * MS)
    resume(board, now + 2 * MS)
    board.gpus[0].resumed_seq = board.gpus[0].resume_seq
    drive(gpu, now + 2 * MS + 5 * US, now + 10 * MS)
    # Seen to have begun 5 us after its launch: it cannot have waited for longer.
    assert [use.intrusion_ns <= 5 * US for use in records(gate)] == [True]
    assert records(gate)[0].bubble_end_ns == now + 2 * MS
    assert records(gate)[0].kernels == 1


def test_the_oldest_check_of_a_use_is_recorded(gate: Gate, board: TrainingBoard) -> None:
    gpu = Gpu(gate)
    for age_us in (2, 7, 3):
        gate.lib.glue_launch_checked(gate.handle, NOW, NOW - age_us * US)
    gpu.look(NOW + MS)
    resume(board, NOW + 2 * MS)
    board.gpus[0].resumed_seq = board.gpus[0].resume_seq
    drive(gpu, NOW + 2 * MS, NOW + 10 * MS)
    assert [use.check_age_max_ns for use in records(gate)] == [7 * US]


def test_a_long_bubble_is_told_in_parts(gate: Gate) -> None:
    gate.lib.glue_learn(gate.handle, SHAPE, 100 * US, 1)
    gpu = Gpu(gate)
    saturate(gpu, NOW + 3_500 * MS, 100 * US, 50 * US)
    uses = records(gate)
    assert len(uses) == 3
    assert {use.bubble_seq for use in uses} == {1}
    assert all(use.bubble_end_ns == 0 for use in uses)
    assert sum(use.gpu_time_ns for use in uses) == pytest.approx(3_000 * MS, rel=0.01)
