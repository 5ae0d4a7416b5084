"""Several fills on one GPU: those that want it take turns, and no other holds one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from agent.board import Closed, FillGpu
from agent.clock import now_ns
from tests.unit.agent_peers import (
    FakeShim,
    RunningAgent,
    fill_begins,
    gate_on_gpu,
    host_begins,
    train,
    until,
    uuid_of,
)


@pytest.fixture
def shims(agent: RunningAgent) -> Iterator[list[FakeShim]]:
    """A training that lends, and whoever joins it."""
    host_begins(agent, 1)
    made = [train(agent, 1)]
    yield made
    for shim in made:
        shim.close()


def gate(agent: RunningAgent, shims: list[FakeShim], job_id: int) -> FillGpu:
    """One more process of a fill job; what its board says of its GPU."""
    shims.append(gate_on_gpu(agent, job_id))
    shims[-1].take_pushes(0.1)
    section: FillGpu = shims[-1].fill_board().gpus[0]
    return section


def test_only_fills_that_want_the_gpu_take_turns(
    agent: RunningAgent, shims: list[FakeShim]
) -> None:
    boards = []
    for job_id in (2, 3):
        assert fill_begins(agent, job_id).verb == "ok"
        boards.append(gate(agent, shims, job_id))
    page = shims[1].pages[uuid_of(0)]

    def entries() -> dict[int, tuple[int, int, int]]:
        fills = [each for each in page.view.fills if each.job_id]
        return {each.job_id: (each.allowed, each.turn, each.reason) for each in fills}

    boards[0].wants = 1
    until(lambda: entries()[2][0] == 1 and entries()[3] == (0, 0, Closed.TURN))
    assert page.view.turns == 1

    boards[1].wants = 1
    until(lambda: entries()[2][:2] == (1, 0) and entries()[3][:2] == (1, 1))
    assert page.view.turns == 2

    boards[0].wants = 0
    until(lambda: page.view.turns == 1 and entries()[2][0] == 0)
    assert entries()[3][:2] == (1, 0)


def test_a_single_fill_never_waits_for_a_turn(agent: RunningAgent, shims: list[FakeShim]) -> None:
    fill_begins(agent, 2)
    only = gate(agent, shims, 2)
    page = shims[1].pages[uuid_of(0)]
    until(lambda: page.view.fills[0].allowed)
    only.wants = 1
    until(lambda: agent.agent.node.gpus[uuid_of(0)].turns.active(now_ns()) == {2})
    assert (only.member, only.members) == (0, 0)


def test_processes_of_a_fill_that_want_the_gpu_have_its_turns_one_after_another(
    agent: RunningAgent, shims: list[FakeShim]
) -> None:
    fill_begins(agent, 2)
    processes = [gate(agent, shims, 2) for _ in range(3)]

    def places() -> list[tuple[int, int]]:
        return [(each.member, each.members) for each in processes]

    until(lambda: places() == [(0, 3), (1, 3), (2, 3)])  # they may begin together
    processes[0].wants = 1
    until(lambda: places() == [(0, 1), (1, 1), (1, 1)])
    processes[2].wants = 1
    until(lambda: places() == [(0, 2), (2, 2), (1, 2)])
    page = shims[1].pages[uuid_of(0)]
    assert page.view.turns == 1  # however many processes it has, it is one job

    os.kill(shims[1].process.pid, signal.SIGSTOP)  # at the gate: it still says that it wants
    until(lambda: places() == [(1, 1), (1, 1), (0, 1)])
    for shim in shims[1:3]:
        shim.process.kill()
    until(lambda: places()[2] == (0, 0))  # the last one left
