"""A training that Slurm requeues runs again under its number: each run has its own GPUs, mode and
record, also where nobody told of the end of the run before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.jobs import HostJob
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
    uuid_of,
)

MINUTE_US = 60_000_000


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RunningAgent]:
    with running(settings_for(tmp_path), FakeGpus(2)) as started:
        yield started


def host(agent: RunningAgent, job_id: int = 1) -> HostJob:
    return agent.agent.node.jobs.hosts[job_id]


def ended(agent: RunningAgent) -> list[tuple[list[str], int]]:
    """GPUs and begin of each run that is on record as over."""
    rows = agent.records("host_job")
    return [(row["gpus"], row["started_at_us"]) for row in rows if row["ended_at_us"]]


def began_a_minute_ago(agent: RunningAgent) -> None:
    host(agent).started_at_us -= MINUTE_US


def test_a_requeued_training_begins_anew_where_its_end_was_missed(
    agent: RunningAgent, shims: list[FakeShim]
) -> None:
    host_begins(agent, 1, gpus="0", spec="on,mem=10G")
    first = train(agent, 1, 0)
    shims.append(first)
    fill_begins(agent, 2)
    started_at_us = host(agent).started_at_us
    first.kill()
    until(lambda: not agent.agent.node.trainings)

    host_begins(agent, 1, gpus="1", spec="observe", restart_count=1)
    now = host(agent)
    assert (now.gpus, now.mode, now.lend_bytes) == ([uuid_of(1)], "observe", None)
    assert now.started_at_us > started_at_us
    assert ended(agent) == [([uuid_of(0)], started_at_us)]
    [told] = agent.events("host_ends")
    assert told["job_id"] == 1 and "started again" in told["text"]
    assert agent.agent.node.jobs.fills[2].evicted
    assert len(agent.events("host_begins")) == 2

    # The GPU that it had before is another's; that is no reason to end what runs now.
    host_begins(agent, 5, gpus="0")
    assert sorted(agent.agent.node.jobs.hosts) == [1, 5]
    assert agent.slurm("step", job_id=1, step_id=0, user_id=0).verb == "host"


def test_the_count_of_restarts_tells_runs_apart_while_an_old_process_stays(
    agent: RunningAgent, shims: list[FakeShim]
) -> None:
    host_begins(agent, 1)
    shims.append(train(agent, 1))
    host_begins(agent, 1, restart_count=1)
    assert len(ended(agent)) == 1


@pytest.mark.parametrize(("gpus", "later"), [("1", False), ("0", True)])
def test_runs_are_told_apart_where_slurm_does_not_count_restarts(
    agent: RunningAgent, gpus: str, later: bool
) -> None:
    """As Slurm 22.05: by other GPUs, or since no process has been there for long."""
    host_begins(agent, 1, restart_count="")
    if later:
        began_a_minute_ago(agent)
    host_begins(agent, 1, gpus=gpus, restart_count="")
    assert len(ended(agent)) == 1
    assert host(agent).gpus == [uuid_of(int(gpus))]


@pytest.mark.parametrize("with_process", [False, True])
def test_a_begin_that_is_told_twice_changes_nothing(
    agent: RunningAgent, shims: list[FakeShim], with_process: bool
) -> None:
    host_begins(agent, 1)
    if with_process:
        shims.append(train(agent, 1))
        began_a_minute_ago(agent)
    before = host(agent)
    host_begins(agent, 1, spec="observe")
    assert host(agent) is before
    assert ended(agent) == []
    assert len(agent.events("host_begins")) == 1


def test_a_training_that_comes_back_without_gpus_holds_its_old_ones_no_longer(
    agent: RunningAgent,
) -> None:
    host_begins(agent, 1)
    agent.slurm("job_begin", job_id=1, kind="other", restart_count=1, spec="", gpus="")
    assert agent.agent.node.jobs.hosts == {}


def test_which_run_it_is_survives_a_restart_of_the_agent(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    with running(settings) as agent:
        host_begins(agent, 1, restart_count=3)
    with running(settings, FakeGpus()) as agent:
        host_begins(agent, 1, restart_count=3)
        assert ended(agent) == []
        host_begins(agent, 1, restart_count=4)
        assert len(ended(agent)) == 1


def test_a_state_file_of_an_agent_that_knew_no_runs_is_taken_over(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    with running(settings) as agent:
        host_begins(agent, 1)
    path = tmp_path / "state/sfilld-n1.json"
    state = json.loads(path.read_text())
    del state["hosts"][0]["restart_count"]
    path.write_text(json.dumps(state))
    with running(settings, FakeGpus()) as agent:
        assert host(agent).restart_count == 0
