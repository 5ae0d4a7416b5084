"""What is left of a bubble is foretold from its position in the job's rhythm.

Each test lets a job run through its bubbles beside a gate that starts work of 300 us one after the
other for as long as a prediction allows it; then harvest and late ends are compared: by position,
by cause alone (all recent bubbles of that cause), and without any prediction.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest

from agent.board import BUBBLE_RING, TrainingBoard
from tests.unit.gate_library import library, training_board

US, MS = 1000, 1_000_000
HOST = 1
BY_POSITION, BY_CAUSE, NONE = 0, 1, 2
WORK_NS, HAND_BACK_NS, LOOK_NS = 300 * US, 150 * US, 50 * US

Bubble = tuple[int, int]  # launches before it, its length in ns
Job = Callable[[random.Random], Iterable[Bubble]]


@dataclass
class Outcome:
    """Of some bubbles: the part filled, and those at whose end work was still in flight."""

    filled_ns: int = 0
    bubble_ns: int = 0
    late: int = 0
    bubbles: int = 0

    @property
    def harvest(self) -> float:
        return self.filled_ns / self.bubble_ns


class Host:
    """A training's board, on which bubbles come as the job has them."""

    def __init__(self) -> None:
        self.board: TrainingBoard = training_board()
        self.launches = 0
        self.now_ns = 1_000 * MS

    def opens(self, launches: int) -> None:
        self.launches += launches
        self.board.gpus[0].launches = self.launches - 1  # the first one ended the bubble before

    def ends(self, length_ns: int) -> None:
        entry = self.board.bubbles[self.board.bubble_head % BUBBLE_RING]
        entry.seq, entry.gpu, entry.cause = 2 * self.board.bubble_head + 1, 0, HOST
        entry.begin_ns, entry.end_ns = self.now_ns, self.now_ns + length_ns
        entry.launches = self.launches
        self.board.bubble_head += 1
        self.now_ns += length_ns

    def outlasts(self, kind: int, age_ns: int, length_ns: int) -> bool:
        address = ctypes.addressof(self.board)
        return kind != NONE and bool(
            library().glue_outlasts(address, HOST, kind, age_ns, length_ns)
        )

    def fill(self, kind: int, bubble: Bubble, outcome: Outcome) -> None:
        launches, length_ns = bubble
        self.opens(launches)
        age_ns = LOOK_NS
        while age_ns < length_ns:
            if self.outlasts(kind, age_ns, WORK_NS + HAND_BACK_NS):
                age_ns += LOOK_NS
                continue
            outcome.filled_ns += min(WORK_NS, length_ns - age_ns)
            outcome.late += age_ns + WORK_NS > length_ns
            age_ns += WORK_NS
        outcome.bubble_ns += length_ns
        outcome.bubbles += 1
        self.ends(length_ns)


def about(random_: random.Random, length_ns: int, spread: float = 0.03) -> int:
    return int(length_ns * random_.uniform(1 - spread, 1 + spread))


def beside(job: Job, kind: int, learned: int) -> Outcome:
    """What a gate makes of a job once it has seen so many bubbles."""
    host, outcome = Host(), Outcome()
    for number, bubble in enumerate(job(random.Random(5))):
        host.fill(kind, bubble, outcome if number >= learned else Outcome())
    return outcome


def optimizer_gap_and_data_stall(random_: random.Random) -> Iterable[Bubble]:
    for _ in range(60):
        yield 900, about(random_, 1_500 * US)
        yield 120, about(random_, 20 * MS)


def pipeline(random_: random.Random) -> Iterable[Bubble]:
    for _ in range(30):
        for _ in range(6):
            yield 200, about(random_, 2 * MS)
        yield 260, about(random_, 15 * MS)


def test_short_and_long_bubbles_of_one_cause_are_not_mixed() -> None:
    for job in (optimizer_gap_and_data_stall, pipeline):
        position, cause, none = (beside(job, kind, 60) for kind in (BY_POSITION, BY_CAUSE, NONE))
        assert none.late > 0.9 * none.bubbles
        assert position.late <= 0.02 * position.bubbles
        assert position.late < cause.late
        assert position.harvest > cause.harvest
        assert position.harvest > 0.8


def test_launches_that_vary_a_little_are_one_position() -> None:
    def job(random_: random.Random) -> Iterable[Bubble]:
        for launches, length_ns in optimizer_gap_and_data_stall(random_):
            yield launches + random_.randint(-1, 1), length_ns

    outcome = beside(job, BY_POSITION, 60)
    assert outcome.late <= 0.03 * outcome.bubbles
    assert outcome.harvest > 0.8


def batch_size_changes(new_ns: int) -> Job:
    def job(random_: random.Random) -> Iterable[Bubble]:
        for iteration in range(45):
            yield 900, about(random_, 1_500 * US)
            yield 120, about(random_, 20 * MS if iteration < 30 else new_ns)

    return job


@pytest.mark.parametrize("new_ns", (8 * MS, 35 * MS))
def test_another_batch_size_is_followed_within_two_iterations(new_ns: int) -> None:
    later = beside(batch_size_changes(new_ns), BY_POSITION, 64)
    assert later.late <= 0.2 * later.bubbles  # one in eight is late by the quantile's design
    assert later.harvest > 0.8


def test_an_evaluation_is_met_with_care_and_the_rhythm_found_again() -> None:
    def job(random_: random.Random) -> Iterable[Bubble]:
        for iteration in range(40):
            if iteration == 30:
                for step in range(4):
                    yield 3_000 + 410 * step, about(random_, 2 * MS, 0.3)
            yield 900, about(random_, 1_500 * US)
            yield 120, about(random_, 20 * MS)

    evaluation = beside(lambda random_: list(job(random_))[:64], BY_POSITION, 60)
    careless = beside(lambda random_: list(job(random_))[:64], BY_CAUSE, 60)
    again = beside(job, BY_POSITION, 66)
    assert careless.late >= 2
    assert evaluation.late == 0
    assert again.late <= 1
    assert again.harvest > 0.8


def test_a_job_without_positions_is_foretold_by_cause() -> None:
    def job(random_: random.Random) -> Iterable[Bubble]:
        for number in range(100):
            yield random_.randint(100, 100_000) + 997 * number, about(random_, 10 * MS)

    position, cause = (beside(job, kind, 40) for kind in (BY_POSITION, BY_CAUSE))
    assert abs(position.harvest - cause.harvest) < 0.05
    assert position.late <= cause.late
