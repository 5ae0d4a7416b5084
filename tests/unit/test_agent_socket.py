"""An agent whose socket's file goes away is found again, and says so once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.agent_peers import FakeShim, Peer, RunningAgent, running, settings_for, until


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RunningAgent]:
    folder = tmp_path / "run"
    settings = settings_for(tmp_path, socket=str(folder / "sfilld-%n.sock"))
    with running(settings) as started:
        yield started


def removed(path: Path) -> None:
    path.unlink()


def removed_with_its_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def replaced(path: Path) -> None:
    path.unlink()
    path.write_text("not a socket")


def answers(path: Path) -> bool:
    try:
        with Peer(str(path)) as peer:
            peer.send("status")
            return peer.receive().verb == "status"
    except OSError:
        return False


@pytest.mark.parametrize("lost", [removed, removed_with_its_folder, replaced])
def test_a_socket_that_was_lost_is_made_anew_within_seconds(
    agent: RunningAgent, lost: Callable[[Path], None]
) -> None:
    path = Path(agent.settings.socket_path)
    with Peer(str(path)) as before:
        lost(path)
        assert not answers(path)
        until(lambda: answers(path), 6)
        before.send("status")
        assert before.receive().verb == "status"
    assert path.stat().st_mode & 0o777 == 0o666
    [told] = agent.events("socket")
    assert str(path) in told["text"]


def test_a_socket_that_cannot_be_made_anew_is_told_of_once_and_tried_again(
    agent: RunningAgent,
) -> None:
    path = Path(agent.settings.socket_path)
    shutil.rmtree(path.parent)
    path.parent.write_text("in the folder's place")
    until(lambda: agent.events("socket"), 6)
    look = agent.agent._server.look
    assert look() == "" == look()
    path.parent.unlink()
    until(lambda: answers(path), 6)
    told = sorted(agent.events("socket"), key=lambda event: event["at_us"])
    first, second = (event["text"] for event in told)
    assert "can't be made anew" in first and "was made anew" in second


def test_a_training_attaches_at_a_socket_that_was_made_anew(agent: RunningAgent) -> None:
    path = Path(agent.settings.socket_path)
    path.unlink()
    until(lambda: answers(path), 6)
    shim = FakeShim(7)
    assert shim.attach(agent).verb == "aside"  # of a job that it does not know
    shim.close()
