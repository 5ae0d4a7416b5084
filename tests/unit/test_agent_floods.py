"""A process that says too much gets less said about it, and what it says harms no reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import agent.rate
from agent.rate import Rate
from tests.unit.agent_peers import (
    FakeShim,
    RunningAgent,
    fill_begins,
    host_begins,
    running,
    settings_for,
    train,
    until,
    uuid_of,
)


@pytest.fixture
def agent_(tmp_path: Path) -> Iterator[RunningAgent]:
    with running(settings_for(tmp_path)) as started:
        yield started


def test_a_rate_counts_each_key_and_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [10**12]
    monkeypatch.setattr(agent.rate, "now_ns", lambda: clock[0])
    rate = Rate(2)
    assert [rate.allows("a") for _ in range(4)] == [True, True, False, False]
    assert rate.allows("b")
    clock[0] += 10_000_000_001
    assert rate.allows("a")


def test_what_a_process_says_cannot_upset_a_terminal_or_a_database(
    agent_: RunningAgent, shims: list[FakeShim]
) -> None:
    host_begins(agent_, 1)
    shim = train(agent_, 1)
    shims.append(shim)
    shim.peer.socket.send(b"log\ntext=\x1b[31mred\x00 \xc2\x9b2J and \xc3\xa9")
    until(lambda: agent_.events("log"))
    [event] = agent_.events("log")
    assert event["text"] == "?[31mred? ?2J and é"


def test_a_gpu_that_was_announced_already_changes_nothing(
    agent_: RunningAgent, shims: list[FakeShim]
) -> None:
    host_begins(agent_, 1)
    shim = train(agent_, 1)
    shims.append(shim)
    changes = []
    agent_.agent.node.on_change = lambda: changes.append(1)
    for _ in range(30):
        shim.peer.send("gpu", uuid=uuid_of(0))
    for number in range(30):
        shim.peer.send("gpu", uuid=f"GPU-{number}")
    shim.peer.send("status")
    assert shim.peer.receive().verb == "status"
    assert len(changes) < 30
    [training] = agent_.agent.node.trainings.values()
    assert len(training.announced) <= 16


def test_stray_gpus_of_a_fill_are_told_a_limited_number_of_times(
    agent_: RunningAgent, shims: list[FakeShim]
) -> None:
    host_begins(agent_, 1)
    shims.append(train(agent_, 1))
    fill_begins(agent_, 2)
    gate = FakeShim(2)
    shims.append(gate)
    gate.attach(agent_, role="gate")
    for _ in range(120):
        gate.peer.send("gpu", uuid="GPU-elsewhere")
    gate.take_pushes()
    until(lambda: agent_.events("stray"))
    assert len(agent_.events("stray")) <= 50


def test_a_job_that_attaches_again_and_again_stands_aside_in_the_end(
    agent_: RunningAgent, shims: list[FakeShim]
) -> None:
    agent_.agent._shims._attaches = Rate(3)
    host_begins(agent_, 1)
    shim = FakeShim(1)
    shims.append(shim)
    answers = [shim.attach(agent_) for _ in range(5)]
    assert [each.verb for each in answers] == ["monitor"] * 3 + ["aside"] * 2
    assert "too often" in answers[-1].get("reason")
    assert len(agent_.events("attached")) == 3
