"""Several fills that used a bubble each tell of training's wait at its end: it is charged once."""

from __future__ import annotations

import pytest

from agent.clock import now_ns
from agent.shared_waits import SharedWaits
from tests.unit.agent_peers import (
    RunningAgent,
    fill_begins,
    gate_on_gpu,
    host_begins,
    train,
    until,
)

BUBBLE = ("GPU-0", 1, 7)
US = 1000


def test_the_longest_wait_counts_whoever_comes_first() -> None:
    for told_us in ([130, 430, 130], [430, 130, 130], [130, 130, 430]):
        waits = SharedWaits()
        charged = [waits.charge(BUBBLE, fill, us * US) for fill, us in enumerate(told_us)]
        assert sum(charged) == 430 * US


def test_the_parts_of_one_use_add_up() -> None:
    waits = SharedWaits()
    assert [waits.charge(BUBBLE, 1, 200), waits.charge(BUBBLE, 1, 300)] == [200, 300]
    assert [waits.charge(BUBBLE, 2, 400), waits.charge(BUBBLE, 2, 200)] == [0, 100]


def test_other_bubbles_boards_and_gpus_are_apart() -> None:
    waits = SharedWaits()
    assert waits.charge(BUBBLE, 1, 100) == 100
    for other in (("GPU-0", 1, 9), ("GPU-0", 2, 7), ("GPU-1", 1, 7)):
        assert waits.charge(other, 2, 100) == 100


def test_what_is_remembered_is_bounded() -> None:
    waits = SharedWaits()
    for seq in range(1, 20_000, 2):
        assert waits.charge(("GPU-0", 1, seq), 1, 100) == 100
    assert len(waits._bubbles) <= 4096


def test_three_fills_of_one_bubble_cost_its_training_one_wait(agent: RunningAgent) -> None:
    host_begins(agent, 1)
    training = train(agent, 1)
    board_id = int(training.training_board().head.board_id)
    gates = []
    for job_id in (2, 3, 4):
        fill_begins(agent, job_id)
        gates.append(gate_on_gpu(agent, job_id))
    began_ns = now_ns()
    for gate, intrusion_us in zip(gates, (130, 430, 130), strict=True):
        board = gate.fill_board()
        use = board.uses[0]
        use.host_board_id, use.bubble_seq, use.gpu = board_id, 5, 0
        use.bubble_begin_ns = use.first_release_ns = began_ns
        use.last_done_ns = use.bubble_end_ns = now_ns()
        use.gpu_time_ns, use.intrusion_ns, use.kernels = 1000, intrusion_us * US, 1
        board.use_head = 1
    host = agent.agent.node.jobs.hosts[1]
    until(lambda: host.filled_us == pytest.approx(3.0))
    assert host.intrusion_us == pytest.approx(430)
    for shim in (training, *gates):
        shim.close()
