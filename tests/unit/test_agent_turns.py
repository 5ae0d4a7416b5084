"""Several fills on one GPU: those that want it take turns, and no other holds one."""

from __future__ import annotations

from agent.board import Closed
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


def test_only_fills_that_want_the_gpu_take_turns(agent: RunningAgent) -> None:
    host_begins(agent, 1)
    shims = [train(agent, 1)]
    boards = []
    for job_id in (2, 3):
        assert fill_begins(agent, job_id).verb == "ok"
        gate = gate_on_gpu(agent, job_id)
        shims.append(gate)
        gate.take_pushes(0.1)
        boards.append(gate.fill_board())
    page = shims[1].pages[uuid_of(0)]

    def entries() -> dict[int, tuple[int, int, int]]:
        fills = [each for each in page.view.fills if each.job_id]
        return {each.job_id: (each.allowed, each.turn, each.reason) for each in fills}

    boards[0].gpus[0].wants = 1
    until(lambda: entries()[2][0] == 1 and entries()[3] == (0, 0, Closed.TURN))
    assert page.view.turns == 1

    boards[1].gpus[0].wants = 1
    until(lambda: entries()[2][:2] == (1, 0) and entries()[3][:2] == (1, 1))
    assert page.view.turns == 2

    boards[0].gpus[0].wants = 0
    until(lambda: page.view.turns == 1 and entries()[2][0] == 0)
    assert entries()[3][:2] == (1, 0)
    for shim in shims:
        shim.close()


def test_a_single_fill_never_waits_for_a_turn(agent: RunningAgent) -> None:
    host_begins(agent, 1)
    shims = [train(agent, 1)]
    fill_begins(agent, 2)
    gate = FakeShim(2)
    shims.append(gate)
    gate.attach(agent, role="gate")
    gate.take_pushes(0.1)
    until(lambda: gate.pages[uuid_of(0)].view.fills[0].allowed)
    for shim in shims:
        shim.close()
