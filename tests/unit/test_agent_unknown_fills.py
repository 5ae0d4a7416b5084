"""Fill jobs that run while their agent lost its state leave and are requeued; nobody else is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import unknown_fills
from tests.unit.agent_peers import (
    FakeGpus,
    FakeShim,
    RunningAgent,
    fill_begins,
    host_begins,
    running,
    settings_for,
    train,
    until,
)

ON_TWIN = {"SLURMD_NODENAME": "f1", "SFILL_ROLE": "gate"}


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningAgent]:
    """Evicts whoever it has not known for half a second."""
    monkeypatch.setattr(unknown_fills, "INTERVAL_S", 0.1)
    monkeypatch.setattr(unknown_fills, "PATIENCE_S", 0.5)
    settings = settings_for(tmp_path, evict_grace_s=0.3, evict_kill_s=0.3)
    with running(settings, FakeGpus()) as started:
        yield started


def requeue(agent: RunningAgent) -> set[int]:
    report = agent.agent._report
    return set(report.requeue) if report is not None else set()


def test_an_unknown_fill_leaves_and_is_requeued(agent: RunningAgent, shims: list[FakeShim]) -> None:
    gate = FakeShim(2, **ON_TWIN)
    shims.append(gate)
    assert gate.attach(agent, role="gate").verb == "aside"
    gate.process.wait(5)
    until(lambda: requeue(agent) == {2})
    [told] = agent.events("evicted")
    assert told["job_id"] == 2 and told["user"] == "root"
    assert "not known to this agent: its state was lost" in told["text"]
    # It did not end by itself: the end of the job takes nothing back.
    agent.slurm("job_end", job_id=2)
    assert agent.agent.node.requeue == {2}
    time.sleep(1)
    assert len(agent.events("evicted")) == 1


def test_an_unknown_fill_that_ignores_sigterm_is_killed(
    agent: RunningAgent, shims: list[FakeShim]
) -> None:
    gate = FakeShim(2, **ON_TWIN, PYTHONSTARTUP="")
    shims.append(gate)
    gate.process.send_signal(19)  # stopped: it hears no SIGTERM
    gate.process.wait(6)
    assert [event["job_id"] for event in agent.events("killed")] == [2, 2]


def test_an_unknown_fill_that_ends_within_its_grace_is_not_requeued(
    agent: RunningAgent, shims: list[FakeShim]
) -> None:
    gate = FakeShim(2, **ON_TWIN)
    shims.append(gate)
    until(lambda: requeue(agent) == {2})
    gate.kill()
    agent.slurm("job_end", job_id=2)
    assert agent.agent.node.requeue == set()
    assert agent.events("killed") == []


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"SLURMD_NODENAME": "n1", "SFILL_ROLE": "gate"},
        {"SLURMD_NODENAME": "f2", "SFILL_ROLE": "gate"},
        {"SLURMD_NODENAME": "f1"},
        {"SLURMD_NODENAME": "f1", "SFILL_ROLE": "monitor"},
    ],
    ids=["no-node", "training-node", "other-twin", "no-role", "monitor"],
)
def test_whoever_is_no_fill_of_this_node_goes_on(
    agent: RunningAgent, shims: list[FakeShim], variables: dict[str, str]
) -> None:
    shims.append(FakeShim(2, **variables))
    shims.append(FakeShim(3, **ON_TWIN))
    until(lambda: requeue(agent) == {3})
    shims[1].process.wait(5)
    assert shims[0].process.poll() is None
    assert requeue(agent) == {3}


def test_a_fill_that_is_known_or_refused_stays(agent: RunningAgent, shims: list[FakeShim]) -> None:
    assert fill_begins(agent, 4).verb == "refused"
    host_begins(agent, 1)
    shims.append(train(agent, 1))
    assert fill_begins(agent, 2).verb == "ok"
    shims += [FakeShim(job_id, **ON_TWIN) for job_id in (2, 4, 3)]
    shims[-1].process.wait(5)
    assert requeue(agent) == {3}
    assert [shim.process.poll() for shim in shims[:3]] == [None, None, None]


def test_a_fill_has_time_to_become_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shims: list[FakeShim]
) -> None:
    """Its patience is counted from the first look at it, and outlasts one look."""
    assert unknown_fills.PATIENCE_S > unknown_fills.INTERVAL_S
    monkeypatch.setattr(unknown_fills, "INTERVAL_S", 0.1)
    monkeypatch.setattr(unknown_fills, "PATIENCE_S", 1.5)
    with running(settings_for(tmp_path), FakeGpus()) as agent:
        host_begins(agent, 1)
        shims += [train(agent, 1), FakeShim(2, **ON_TWIN)]
        time.sleep(0.8)
        assert fill_begins(agent, 2).verb == "ok"
        time.sleep(1.5)
        assert agent.events("evicted") == []
