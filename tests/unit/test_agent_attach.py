"""Who gets a board, and what gates are handed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from agent.board import Closed
from tests.unit.agent_peers import (
    FakeShim,
    Peer,
    RunningAgent,
    fill_begins,
    host_begins,
    running,
    settings_for,
    train,
    until,
    uuid_of,
)


def test_process_of_no_known_job_stands_aside(agent: RunningAgent, shims: list[FakeShim]) -> None:
    shims.append(FakeShim(99))
    answer = shims[0].attach(agent)
    assert answer.verb == "aside"
    assert "job 99" in answer.get("reason")


def test_wrong_protocol_version_stands_aside(agent: RunningAgent) -> None:
    with Peer(agent.settings.socket_path) as peer:
        peer.send("attach", version=7, role="monitor")
        assert peer.receive().verb == "aside"


def test_training_gets_a_board_that_cannot_be_truncated(
    agent: RunningAgent, shims: list[FakeShim]
) -> None:
    host_begins(agent, 1, spec="observe")
    shims.append(train(agent, 1))
    with pytest.raises(OSError):
        os.ftruncate(shims[0].descriptor, 0)


def test_role_is_the_agents_decision(agent: RunningAgent, shims: list[FakeShim]) -> None:
    host_begins(agent, 1)
    shims.append(FakeShim(1))
    assert shims[0].attach(agent, role="gate").verb == "monitor"


def test_gate_is_handed_policy_and_boards_and_sees_changes(
    agent: RunningAgent, shims: list[FakeShim]
) -> None:
    host_begins(agent, 1)
    training = train(agent, 1)
    shims.append(training)
    assert fill_begins(agent, 2).verb == "ok"
    gate = FakeShim(2)
    shims.append(gate)
    answer = gate.attach(agent, role="gate")
    assert answer.verb == "gate"
    assert answer.get("memory_limit_bytes") == str(4 << 30)
    gate.take_pushes()
    page = gate.pages[uuid_of(0)]
    assert list(gate.boards) == [str(training.training_board().head.board_id)]
    assert page.view.boards[0] == training.training_board().head.board_id
    until(lambda: page.view.fills[0].allowed == 1)
    assert training.training_board().fill_present == 1
    first = page.view.heartbeat
    until(lambda: page.view.heartbeat > first)

    training.kill()
    until(lambda: page.view.boards_count == 0)
    assert page.view.fills[0].allowed == 0
    assert page.view.fills[0].reason == Closed.NO_HOST
    assert [each.verb for each in gate.take_pushes()] == ["drop"]


def test_board_of_a_gate_cannot_be_opened_for_writing(
    agent: RunningAgent, shims: list[FakeShim]
) -> None:
    host_begins(agent, 1)
    shims.append(train(agent, 1))
    fill_begins(agent, 2)
    gate = FakeShim(2)
    shims.append(gate)
    gate.attach(agent, role="gate")
    gate.take_pushes()
    [descriptor] = gate.boards.values()
    with pytest.raises(OSError):
        os.write(descriptor, b"x")
    assert os.fstat(descriptor).st_mode & 0o077 == 0


def test_off_shuts_every_gate_within_100_ms_and_on_opens_it(
    agent: RunningAgent, shims: list[FakeShim]
) -> None:
    host_begins(agent, 1)
    shims.append(train(agent, 1))
    fill_begins(agent, 2)
    gate = FakeShim(2)
    shims.append(gate)
    gate.attach(agent, role="gate")
    gate.take_pushes()
    page = gate.pages[uuid_of(0)]
    until(lambda: page.view.fills[0].allowed)
    assert agent.slurm("off").verb == "ok"
    until(lambda: not page.view.fills[0].allowed, 0.1)
    assert page.view.fills[0].reason == Closed.OFF
    assert agent.slurm("on").verb == "ok"
    until(lambda: page.view.fills[0].allowed, 0.5)


def boards_mapped() -> int:
    return Path("/proc/self/maps").read_text().count("sfill-training")


def test_nothing_of_a_process_is_left_when_it_has_ended(agent: RunningAgent) -> None:
    of_other_tests = boards_mapped()
    host_begins(agent, 1)
    folder = Path("/proc/self/fd")
    train(agent, 1).close()
    until(lambda: not agent.agent.node.trainings)
    before = len(list(folder.iterdir()))
    for _ in range(5):
        shim = train(agent, 1)
        os.close(shim.descriptor)
        shim.close()
        shim.peer.socket.close()
    until(lambda: not agent.agent.node.trainings)
    until(lambda: len(list(folder.iterdir())) <= before)
    assert boards_mapped() <= of_other_tests


def test_heartbeat_stands_still_once_the_agent_is_gone(
    tmp_path: Path, shims: list[FakeShim]
) -> None:
    with running(settings_for(tmp_path)) as agent:
        host_begins(agent, 1)
        shims.append(train(agent, 1))
        fill_begins(agent, 2)
        gate = FakeShim(2)
        shims.append(gate)
        gate.attach(agent, role="gate")
        gate.take_pushes()
    page = gate.pages[uuid_of(0)]
    last = page.view.heartbeat
    time.sleep(0.2)
    assert page.view.heartbeat == last
