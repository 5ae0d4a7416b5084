"""Policy page: freshness on the gate's own clock, turns, memory, length limits, the off switch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.board import Closed, PolicyPage, TrainingBoard
from tests.unit.gate_library import JOB, Gate, policy_page, training_board

MS = 1_000_000
NOW = 1_000 * MS


@pytest.fixture
def page() -> PolicyPage:
    return policy_page()


@pytest.fixture
def board() -> TrainingBoard:
    return training_board()


@pytest.fixture
def gate(page: PolicyPage, board: TrainingBoard) -> Iterator[Gate]:
    gate = Gate()
    gate.map_page(page)
    gate.map_boards({1: board})
    gate.freshen(NOW)
    yield gate
    gate.close()


def bubbles(board: TrainingBoard, lengths_us: list[int], *, cause: int = 1) -> None:
    """Past bubbles, the last one in the list the most recent."""
    for length in lengths_us:
        record = board.bubbles[board.bubble_head % len(board.bubbles)]
        record.begin_ns = 1000
        record.end_ns = 1000 + length * 1000
        record.cause = cause
        record.gpu = 0
        record.seq = 1
        board.bubble_head += 1


def own_turn(gate: Gate, length_ns: int) -> int:
    """When the first turn of the gate's own begins, from NOW on."""
    first = NOW + -NOW % length_ns
    turns = range(first, first + 100 * length_ns, length_ns)
    return next(each for each in turns if gate.decide(each) == Closed.OPEN)


def test_a_new_page_is_stale_until_its_heartbeat_moves(page: PolicyPage) -> None:
    gate = Gate()
    gate.map_boards({1: training_board()})
    gate.map_page(page)
    assert gate.decide(NOW) == Closed.STALE
    assert gate.decide(NOW + MS) == Closed.STALE
    page.heartbeat += 1
    assert gate.decide(NOW + 2 * MS) == Closed.OPEN
    gate.close()


@settings(deadline=None)
@given(gaps=st.lists(st.integers(1, 700), min_size=1, max_size=20))
def test_age_is_never_underestimated(gaps: list[int]) -> None:
    """However rarely the gate looks, it is shut once the last beat is 500 ms old."""
    gate, page = Gate(), policy_page()
    gate.map_page(page)
    gate.map_boards({1: training_board()})
    now = NOW
    gate.freshen(now)
    for gap in gaps:
        page.heartbeat += 1
        beat_ns = now + MS // 2
        now += gap * MS
        if now - beat_ns >= 500 * MS:
            assert gate.decide(now) == Closed.STALE
        else:
            gate.decide(now)
    gate.close()


def test_shut_half_a_second_after_the_last_beat(gate: Gate) -> None:
    assert gate.decide(NOW + 499 * MS) == Closed.OPEN
    assert gate.decide(NOW + 500 * MS) == Closed.STALE


@pytest.mark.parametrize("reason", [Closed.OFF, Closed.BUDGET])
def test_agent_says_why_not(gate: Gate, page: PolicyPage, reason: Closed) -> None:
    page.fills[0].reason = reason
    page.fills[0].allowed = 0
    assert gate.decide(NOW) == reason


def test_evicted_is_shut(gate: Gate) -> None:
    gate.lib.glue_evict(1)
    assert gate.decide(NOW) == Closed.OFF
    gate.lib.glue_evict(0)
    assert gate.decide(NOW) == Closed.OPEN


def test_each_instant_belongs_to_one_fill(gate: Gate, page: PolicyPage) -> None:
    page.turns = 3
    page.turn_us = 1000
    open_in: dict[int, set[int]] = {}
    for turn in range(3):
        page.fills[0].turn = turn
        instants = range(NOW, NOW + 12 * MS, MS // 4)
        open_in[turn] = {now for now in instants if gate.decide(now) == Closed.OPEN}
        assert {gate.decide(now) for now in instants} == {Closed.OPEN, Closed.TURN}
    assert not open_in[0] & open_in[1] and not open_in[1] & open_in[2]
    assert len(open_in[0] | open_in[1] | open_in[2]) == 48


def test_what_would_outlast_a_turn_waits_for_the_next(gate: Gate, page: PolicyPage) -> None:
    page.turns = 2
    page.turn_us = 20_000
    page.in_flight_us = 2000
    page.fills[0].turn = 0
    begin = own_turn(gate, 20 * MS)
    assert gate.decide(begin + 19 * MS, 900_000) == Closed.OPEN
    assert gate.decide(begin + 19 * MS, 1_100_000) == Closed.TURN
    gate.lib.glue_learn(gate.handle, 7, 600_000, 1)
    gate.lib.glue_launch(gate.handle, 0, 7, begin + 19 * MS, MS, 1)
    assert gate.decide(begin + 19 * MS, 300_000) == Closed.OPEN
    assert gate.decide(begin + 19 * MS, 500_000) == Closed.TURN


def test_what_takes_a_good_part_of_a_turn_may_outlast_it(gate: Gate, page: PolicyPage) -> None:
    page.turns = 2
    page.turn_us = 1000
    page.fills[0].turn = 0
    begin = own_turn(gate, MS)
    assert gate.decide(begin + MS // 2, 300_000) == Closed.OPEN
    assert gate.decide(begin + 3 * MS // 4, 260_000) == Closed.OPEN
    page.fills[0].turn = 1
    assert gate.decide(begin + MS // 2, 300_000) == Closed.TURN


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_turn_of_a_job_belongs_to_one_of_its_processes(
    gate: Gate, page: PolicyPage, jobs: int
) -> None:
    page.turns, page.turn_us = jobs, 1000
    page.fills[0].turn = jobs - 1
    face = gate.lib.glue_board().contents.gpus[0]
    begin = NOW - NOW % (6 * MS) + 6 * MS
    instants = range(begin, begin + 12 * MS, MS // 4)

    def opens() -> set[int]:
        return {now for now in instants if gate.decide(now) == Closed.OPEN}

    alone = opens()
    assert len(alone) == len(instants) / jobs
    parts = []
    for face.member in range(3):
        face.members = 3
        parts.append(opens())
        assert len(parts[-1]) == len(alone) / 3
        end = max(parts[-1]) + MS // 4  # of its turn: what would outlast it waits
        assert gate.decide(end - MS // 4, 200_000) == Closed.OPEN
        assert gate.decide(end - MS // 8, 200_000) == Closed.TURN
    assert set.union(*parts) == alone
    face.member = 3  # has no work
    assert opens() == set()
    face.member, face.members = 0, 1
    assert opens() == alone
    face.member = 1
    assert opens() == set()


@pytest.mark.parametrize("iteration_ms", [20, 40, 60, 100, 120, 240, 300])
@pytest.mark.parametrize(("jobs", "members"), [(2, 0), (3, 0), (1, 2), (1, 5), (2, 3), (5, 4)])
def test_no_rhythm_of_a_training_leaves_one_without_bubbles(
    gate: Gate, page: PolicyPage, jobs: int, members: int, iteration_ms: int
) -> None:
    """Of 4000 bubbles in step with the turns, each has its part, and never waits for long."""
    page.turns, page.turn_us = jobs, 20_000
    face = gate.lib.glue_board().contents.gpus[0]
    face.members = members
    bubbles = range(4000)
    equal = jobs * max(members, 1)
    for page.fills[0].turn in range(jobs):
        for face.member in range(max(members, 1)):
            had = []
            for bubble in bubbles:
                now = NOW + bubble * iteration_ms * MS + 7 * MS
                gate.freshen(now)
                if gate.decide(now) == Closed.OPEN:
                    had.append(bubble)
            assert 0.7 < len(had) * equal / len(bubbles) < 1.3
            waits = [later - earlier for earlier, later in itertools.pairwise(had)]
            assert max(waits) < 15 * equal


def test_one_fill_alone_has_every_turn(gate: Gate, page: PolicyPage) -> None:
    page.turns = 1
    page.fills[0].turn = 5
    assert gate.decide(NOW) == Closed.OPEN


def test_dwell_has_to_pass(gate: Gate, page: PolicyPage, board: TrainingBoard) -> None:
    page.dwell_us = 200
    board.gpus[0].bubble_begin_ns = NOW
    assert gate.decide(NOW + 199_000) == Closed.DWELL
    assert gate.decide(NOW + 200_000) == Closed.OPEN


def test_memory_over_a_lowered_limit_shuts(gate: Gate, page: PolicyPage) -> None:
    gate.lib.glue_hold_memory(gate.handle, 2 << 30)
    page.fills[0].memory_limit_bytes = 2 << 30
    assert gate.decide(NOW) == Closed.OPEN
    page.fills[0].memory_limit_bytes = (2 << 30) - 1
    assert gate.decide(NOW) == Closed.OFF


def test_longest_operation(gate: Gate, page: PolicyPage) -> None:
    page.max_op_us = 100
    assert gate.decide(NOW, 100_000) == Closed.OPEN
    assert gate.decide(NOW, 100_001) == Closed.TOO_LONG


def test_long_operation_without_history_is_bounded(gate: Gate, board: TrainingBoard) -> None:
    begin = board.gpus[0].bubble_begin_ns = NOW
    assert gate.decide(begin + MS, 4 * 300_000) == Closed.OPEN
    assert gate.decide(begin + MS, 4 * 300_000 + 1) == Closed.TOO_LONG
    # Later an eighth of what the bubble has lasted already.
    assert gate.decide(begin + 80 * MS, 10 * MS) == Closed.OPEN
    assert gate.decide(begin + 80 * MS, 10 * MS + 1) == Closed.TOO_LONG


@pytest.mark.parametrize("in_flight_us", [40, 200, 300])
def test_a_training_that_pauses_lets_every_operation_start_in_the_end(
    gate: Gate, page: PolicyPage, board: TrainingBoard, in_flight_us: int
) -> None:
    """A kernel never seen counts as 1 ms, which four of the default budgets (200 us) never held."""
    page.in_flight_us = in_flight_us
    bubbles(board, [30_000 + us for us in range(0, 500, 10)])
    begin = board.gpus[0].bubble_begin_ns = NOW
    assert gate.decide(begin + 29_500_000, MS) == Closed.TOO_LONG
    assert gate.decide(begin + 100 * MS, MS) == Closed.OPEN
    assert gate.decide(begin + 100 * MS, 13 * MS) == Closed.TOO_LONG
    assert gate.decide(begin + 200 * MS, 13 * MS) == Closed.OPEN


def test_long_operation_needs_room_in_the_bubble(gate: Gate, board: TrainingBoard) -> None:
    bubbles(board, [4000, 30_000, 5000, 20_000, 9000, 7000, 12_000])
    begin = board.gpus[0].bubble_begin_ns = NOW
    # Lengths 4 5 7 9 12 20 30 ms; the 25th percentile of all is 5 ms.
    assert gate.decide(begin + MS, 4 * MS) == Closed.OPEN
    assert gate.decide(begin + MS, 4 * MS + 1) == Closed.TOO_LONG
    # At 8 ms only 9 12 20 30 are longer: their 25th percentile is 9 ms.
    assert gate.decide(begin + 8 * MS, MS) == Closed.OPEN
    assert gate.decide(begin + 8 * MS, MS + 1) == Closed.TOO_LONG
    # Other causes say nothing.
    board.gpus[0].bubble_cause = 2
    assert gate.decide(begin + MS, 4 * MS) == Closed.TOO_LONG


def test_nothing_starts_just_before_a_steady_end(gate: Gate, board: TrainingBoard) -> None:
    bubbles(board, [10_000 + us for us in (0, 20, 40, 60, 80, 100, 120, 140, 160, 180)])
    begin = board.gpus[0].bubble_begin_ns = NOW
    assert gate.decide(begin + 9 * MS, 200_000) == Closed.OPEN
    # 200 us and the time to hand the GPU back (150 us) no longer fit.
    assert gate.decide(begin + 9_700_000, 200_000) == Closed.TOO_LONG
    assert gate.decide(begin + 10_100_000, 200_000) == Closed.TOO_LONG
    # A bubble that has just outlived all of them is about to end; later it has left the rhythm.
    assert gate.decide(begin + 10_181_000, 200_000) == Closed.TOO_LONG
    assert gate.decide(begin + 10_500_000, 200_000) == Closed.OPEN


def test_ends_that_vary_widely_do_not_stop_the_fill(gate: Gate, board: TrainingBoard) -> None:
    bubbles(board, [1000, 9000, 2000, 8000, 3000, 7000, 4000, 6000, 5000, 10_000])
    begin = board.gpus[0].bubble_begin_ns = NOW
    assert gate.decide(begin + 4_900_000, 200_000) == Closed.OPEN


def test_short_bubbles_among_long_ones_are_left_alone(gate: Gate, board: TrainingBoard) -> None:
    bubbles(board, [200] * 14 + [60_000] * 2 + [210] * 14 + [60_000] * 2)
    begin = board.gpus[0].bubble_begin_ns = NOW
    assert gate.decide(begin + 100_000, 50_000) == Closed.TOO_LONG
    assert gate.decide(begin + 250_000, 50_000) == Closed.OPEN


def test_short_bubbles_are_left_alone(gate: Gate, page: PolicyPage, board: TrainingBoard) -> None:
    bubbles(board, [200] * 8)
    page.min_bubble_us = 1000
    begin = board.gpus[0].bubble_begin_ns = NOW
    assert gate.decide(begin + 100_000, 1000) == Closed.TOO_LONG
    assert gate.decide(begin + MS, 1000) == Closed.OPEN


def test_a_bench_may_ignore_training_but_not_the_off_switch(
    gate: Gate, page: PolicyPage, board: TrainingBoard
) -> None:
    page.flags = 1
    board.gpus[0].bubble_seq = 2
    page.unknown_training = 1
    assert gate.decide(NOW) == Closed.OPEN
    page.fills[0].allowed = 0
    assert gate.decide(NOW) == Closed.OFF
    assert page.fills[0].job_id == JOB
