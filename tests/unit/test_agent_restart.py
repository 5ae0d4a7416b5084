"""A restarted agent goes on: jobs, switches, boards, and every record at most once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from agent.clock import now_ns
from agent.drain import Drain
from agent.jobs import FillJob, HostJob
from agent.node import Node
from agent.reporter import Spooler
from agent.state_file import StateFile
from tests.unit.agent_peers import (
    FakeGpus,
    FakeShim,
    fill_begins,
    host_begins,
    running,
    settings_for,
    train,
    until,
    uuid_of,
)


def write_use(gate: FakeShim, host_board_id: int) -> None:
    board = gate.fill_board()
    use = board.uses[board.use_head % len(board.uses)]
    use.host_board_id = host_board_id
    use.bubble_seq = 2 * board.use_head + 1
    use.bubble_begin_ns = now_ns() - 3_000_000
    use.first_release_ns = now_ns() - 2_500_000
    use.last_done_ns = use.bubble_end_ns = now_ns() - 1_000_000
    use.gpu_time_ns = 1_000_000
    use.intrusion_ns = 7_000
    use.kernels = 3
    use.cause = 1
    board.use_head += 1


def test_filling_goes_on_after_a_restart(tmp_path: Path, shims: list[FakeShim]) -> None:
    settings = settings_for(tmp_path)
    with running(settings) as agent:
        host_begins(agent, 1)
        training = train(agent, 1)
        fill_begins(agent, 2)
        gate = FakeShim(2)
        shims += [training, gate]
        gate.attach(agent, role="gate")
        write_use(gate, training.training_board().head.board_id)
        until(lambda: len(agent.records("bubble_use")) == 1)
        board_id = training.training_board().head.board_id

    write_use(gate, board_id)
    with running(settings) as agent:
        assert list(agent.agent.node.jobs.fills) == [2]
        answer = training.attach(agent, again=True)
        assert answer.verb == "monitor"
        assert answer.get("board_id") == str(board_id)
        assert gate.attach(agent, role="gate", again=True).verb == "gate"
        gate.pages.clear()
        gate.boards.clear()
        gate.take_pushes()
        assert list(gate.boards) == [str(board_id)]
        page = gate.pages[uuid_of(0)]
        until(lambda: page.view.fills[0].allowed)
        until(lambda: len(agent.records("bubble_use")) == 2)
        uses = agent.records("bubble_use")
        assert sorted(use["bubble_seq"] for use in uses) == [1, 3]
        assert {use["host_job_id"] for use in uses} == {1}
        host = agent.agent.node.jobs.hosts[1]
        assert host.intrusion_us == pytest.approx(14.0)


@pytest.mark.parametrize("stored", [False, True])
def test_an_agent_that_is_killed_has_each_use_on_record_once(
    tmp_path: Path, shims: list[FakeShim], monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """Killed before it stored what it had read, or before it noted on the board that it had."""
    settings = settings_for(tmp_path)
    with monkeypatch.context() as killed:
        killed.setattr(Drain, "stored", lambda *_: None)
        if not stored:
            killed.setattr(Spooler, "store", lambda _: None)
        with running(settings) as agent:
            host_begins(agent, 1)
            training = train(agent, 1)
            fill_begins(agent, 2)
            gate = FakeShim(2)
            shims += [training, gate]
            gate.attach(agent, role="gate")
            board_id = training.training_board().head.board_id
            for _ in range(3):
                write_use(gate, board_id)
            until(lambda: len(agent.records("bubble_use")) == 3)
    assert gate.fill_board().drained == 0
    with running(settings, FakeGpus()) as agent:
        assert len(agent.records("bubble_use")) == (3 if stored else 0)
        host_begins(agent, 1)
        fill_begins(agent, 2)
        training.attach(agent, again=True)
        assert gate.attach(agent, role="gate", again=True).verb == "gate"
        write_use(gate, board_id)
        until(lambda: gate.fill_board().drained == 4)
        assert [use["bubble_seq"] for use in agent.records("bubble_use")] == [1, 3, 5, 7]


def test_something_else_than_a_board_is_not_adopted(tmp_path: Path, shims: list[FakeShim]) -> None:
    with running(settings_for(tmp_path)) as agent:
        host_begins(agent, 1)
        shim = FakeShim(1)
        shims.append(shim)
        path = tmp_path / "false"
        path.write_bytes(bytes(101440))
        with path.open("r+b") as file:
            shim.descriptor = file.fileno()
            assert shim.attach(agent, again=True).verb == "aside"


def test_off_survives_a_restart(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    with running(settings) as agent:
        agent.slurm("off")
    with running(settings) as agent:
        assert agent.agent.node.off


def test_damaged_state_file_means_a_new_begin(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    with running(settings) as agent:
        host_begins(agent, 1)
    (tmp_path / "state/sfilld-n1.json").write_text("{")
    with running(settings, FakeGpus()) as agent:
        assert agent.agent.node.jobs.hosts == {}
        until(lambda: len(agent.records("anew")) == 2)  # of the first begin, and of this one
        [event] = agent.events("lost")
        assert "begins anew" in event["text"]
    assert (tmp_path / "state/sfilld-n1.damaged").read_text() == "{"


def _written(folder: Path) -> Path:
    """The state of an agent with a training and a fill."""
    settings = settings_for(folder)
    with running(settings) as agent:
        host_begins(agent, 1)
        training = train(agent, 1)
        assert fill_begins(agent, 2).verb == "ok"
        agent.agent.node.jobs.refuse(3, "no room")
        training.close()
    return folder / "state/sfilld-n1.json"


def _malformed() -> Iterator[tuple[tuple[str | int, ...], object]]:
    yield (), []
    yield (), None
    value: object
    for key in ("hosts", "fills", "refused", "requeue", "off_here"):
        for value in (None, 5, "x", [1], {"x": 1}, [[]]):
            if (key, value) != ("requeue", [1]):
                yield (key,), value
    for name in (each.name for each in fields(HostJob)):
        for value in (float("nan"), 10**30, -1, {"x": []}, [None], "x"):
            if not (value == "x" and HostJob.__annotations__[name] == "str"):
                yield ("hosts", 0, name), value
    for name in (each.name for each in fields(FillJob)):
        for value in (float("inf"), 10**30, {}, [None], "x"):
            if not (value == "x" and FillJob.__annotations__[name] == "str"):
                yield ("fills", 0, name), value


def test_a_state_file_with_content_of_any_wrong_kind_means_a_new_begin(tmp_path: Path) -> None:
    path = _written(tmp_path)
    text = path.read_text()
    node = Node(settings_for(tmp_path), FakeGpus().devices())
    assert StateFile(path.parent, node).load() and list(node.jobs.fills) == [2]
    for place, value in _malformed():
        root = [json.loads(text)]
        at: Any = root
        for key in (step := (0, *place))[:-1]:
            at = at[key]
        at[step[-1]] = value
        path.write_text(json.dumps(root[0]))
        node = Node(settings_for(tmp_path), FakeGpus().devices())
        assert not StateFile(path.parent, node).load(), (place, value)
        assert not node.jobs.hosts and not node.jobs.fills and not node.jobs.refused
        assert not path.exists()


@pytest.mark.parametrize("garbage", [b"", b"\xff", b"[" * 100_000, b'{"hosts":[1]}', b"1e999"])
def test_a_state_file_of_garbage_means_a_new_begin(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "sfilld-n1.json"
    path.write_bytes(garbage)
    node = Node(settings_for(tmp_path), FakeGpus().devices())
    assert not StateFile(tmp_path, node).load()
    assert path.with_suffix(".damaged").read_bytes() == garbage


def test_an_agent_that_knows_its_jobs_does_not_say_that_it_begins_anew(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    with running(settings) as agent:
        host_begins(agent, 1)
    with running(settings, FakeGpus()) as agent:
        until(lambda: len(agent.events("agent_begins")) == 2)
        assert len(agent.records("anew")) == 1


GROWING = [each.name for each in fields(HostJob) if "float" in str(each.type)]


@pytest.mark.parametrize("name", sorted({*GROWING} - {"slowdown"}))
def test_what_only_grows_with_time_is_written_with_the_sums(tmp_path: Path, name: str) -> None:
    """At times, and not at every look at the node."""
    with running(settings_for(tmp_path)) as agent:
        host_begins(agent, 1)
        node = agent.agent.node
        state = StateFile(tmp_path / "another", node)
        state.save()
        setattr(node.jobs.hosts[1], name, 123.0)
        state.save()
        state.close()
        (path,) = (tmp_path / "another").iterdir()
        assert json.loads(path.read_text())["hosts"][0][name] != 123.0
        later = StateFile(tmp_path / "another", node)
        later.save(sums=True)
        later.close()
        assert json.loads(path.read_text())["hosts"][0][name] == 123.0
