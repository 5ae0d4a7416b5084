"""Far from the foretold end of a bubble more may be in flight, near it only the budget."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from agent.board import Closed, PolicyPage, TrainingBoard
from tests.unit.gate_library import Gate, policy_page, training_board

US, MS = 1000, 1_000_000
BEGAN = 1_000 * MS
SHAPE = 77


@pytest.fixture
def page() -> PolicyPage:
    page = policy_page()
    page.in_flight_us = 300
    return page


@pytest.fixture
def board() -> TrainingBoard:
    return training_board(bubble_begin_ns=BEGAN)


@pytest.fixture
def gate(page: PolicyPage, board: TrainingBoard) -> Iterator[Gate]:
    gate = Gate()
    gate.map_page(page)
    gate.map_boards({1: board})
    gate.lib.glue_learn(gate.handle, SHAPE, 100 * US, 1)
    yield gate
    gate.close()


def sixty_ms_bubbles(board: TrainingBoard) -> None:
    for number in range(10):
        entry = board.bubbles[number]
        entry.seq, entry.gpu, entry.cause = 2 * number + 1, 0, 1
        entry.begin_ns, entry.end_ns = 1, 1 + 60 * MS
    board.bubble_head = 10


def may_queue_fourth(gate: Gate, now_ns: int) -> int:
    """Three operations of 100 us fill a budget of 300 us; may a fourth start?"""
    word = ctypes.c_uint64(0)
    gate.lib.glue_stream(gate.handle, 0, ctypes.addressof(word))
    gate.freshen(now_ns)
    for _ in range(3):
        gate.lib.glue_launch(gate.handle, 0, SHAPE, now_ns, MS, 1)
    return gate.decide(now_ns, 100 * US)


def test_without_history_the_budget_is_kept(gate: Gate) -> None:
    assert may_queue_fourth(gate, BEGAN + 5 * MS) == Closed.IN_FLIGHT


def test_far_from_the_end_the_queue_may_be_deeper(gate: Gate, board: TrainingBoard) -> None:
    sixty_ms_bubbles(board)
    assert may_queue_fourth(gate, BEGAN + 5 * MS) == Closed.OPEN
    # ... up to four times the budget.
    for _ in range(9):
        gate.lib.glue_launch(gate.handle, 0, SHAPE, BEGAN + 5 * MS, MS, 1)
    assert gate.decide(BEGAN + 5 * MS, 100 * US) == Closed.IN_FLIGHT


def test_near_the_end_the_budget_is_kept(gate: Gate, board: TrainingBoard) -> None:
    sixty_ms_bubbles(board)
    assert may_queue_fourth(gate, BEGAN + 57 * MS) == Closed.IN_FLIGHT
