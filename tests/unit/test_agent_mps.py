"""Sharing by MPS: the daemon of a host job, who may fill beside it, and what happens when it fails.

The control daemon is a stand-in (stand_in_mps.py); tests/hardware tries the real one.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.board import POLICY_MPS
from agent.packet import Packet
from agent.settings import AgentSettings
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
from tests.unit.stand_in_mps import StandInMps, is_there, process_of

QUICK = {"evict_grace_s": 0.2, "evict_kill_s": 0.2, "evict_wait_s": 3, "mps_start_s": 3}


@pytest.fixture
def mps(tmp_path: Path) -> Iterator[StandInMps]:
    stand_in = StandInMps(tmp_path)
    yield stand_in
    for file in tmp_path.glob("mps-n1/*/pipe/*.pid"):  # what a failed test left
        os.kill(int(file.read_text()), signal.SIGKILL)


def sharing(folder: Path, mps: StandInMps, **given: Any) -> AgentSettings:
    values = {"share": "mps", "mps_program": str(mps.program), **QUICK, **given}
    return settings_for(folder, **values)


def begin(agent: RunningAgent, job_id: int, spec: str = "on", gpus: str = "0") -> None:
    """As the prolog does: the training's first step comes after this."""
    answer = host_begins(agent, job_id, gpus, spec)
    if answer.fields.get("wait_ms"):
        assert agent.slurm("ready", job_id=job_id).verb == "ok"


def step(agent: RunningAgent, job_id: int) -> Packet:
    return agent.slurm("step", job_id=job_id, step_id=0, user_id=0)


def pipe_of(agent: RunningAgent, job_id: int) -> Path:
    return Path(step(agent, job_id).get("mps_pipe"))


def fill_of(
    agent: RunningAgent, job_id: int, user_id: int, account: str = "a", spec: str = "mem=4G"
) -> Packet:
    fields = {"user": "other", "node": "f1", "gpus": "", "restart_count": 0, "batch": 1}
    return agent.slurm(
        "job_begin",
        job_id=job_id,
        user_id=user_id,
        account=account,
        kind="fill",
        spec=spec,
        **fields,
    )


def why(agent: RunningAgent, job_id: int) -> tuple[str, str]:
    """The mode of a host job and its reason; the ledger has heard of it."""
    host = agent.agent.node.jobs.hosts[job_id]
    told = (host.share_mode.value, host.share_reason)
    until(lambda: told in [heard(each) for each in agent.records("host_job")])
    return told


def heard(record: dict[str, Any]) -> tuple[str, str]:
    return record["share_mode"], record["share_reason"]


def flag(agent: RunningAgent) -> bool:
    page = agent.agent.node.gpus[uuid_of(0)].policy.memory.view
    return bool(page.flags & POLICY_MPS)


def test_a_training_gets_a_daemon_of_its_own_for_its_gpus_and_as_long_as_it_runs(
    tmp_path: Path, mps: StandInMps
) -> None:
    with running(sharing(tmp_path, mps), FakeGpus(2)) as agent:
        begin(agent, 1, gpus="1")
        assert why(agent, 1) == ("mps", "the node's setting")
        pipe = pipe_of(agent, 1)
        daemon = process_of(pipe)
        assert is_there(daemon)
        assert mps.calls("begins") == [f"begins {uuid_of(1)} -d"]
        assert pipe.stat().st_mode & 0o777 == 0o755
        begin(agent, 2, "on,share=timeslice", gpus="0")
        assert step(agent, 2).fields.get("mps_pipe", "") == ""
        assert why(agent, 2) == ("timeslice", "asked for")
        assert agent.slurm("job_end", job_id=1).verb == "ok"
        assert not is_there(daemon)
        assert not pipe.exists()


def test_the_gates_are_told_of_mps_while_the_training_has_it(
    tmp_path: Path, mps: StandInMps
) -> None:
    with running(sharing(tmp_path, mps)) as agent:
        begin(agent, 1)
        assert flag(agent)
        agent.slurm("job_end", job_id=1)
        assert not flag(agent)
        begin(agent, 2, "on,share=timeslice")
        assert not flag(agent)


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (("fail", "3"), "ended with 3"),
        (("mute", ""), "no server"),
        (("slow", "9"), "timed out"),
        (None, "not installed"),
    ],
)
def test_a_training_begins_by_time_slicing_where_mps_does_not_start(
    tmp_path: Path, mps: StandInMps, behaviour: tuple[str, str] | None, reason: str
) -> None:
    if behaviour is None:
        mps.program.unlink()
    else:
        mps.behave(*behaviour)
    with running(sharing(tmp_path, mps, mps_start_s=0.6)) as agent:
        begin(agent, 1)
        mode, text = why(agent, 1)
        assert mode == "timeslice"
        assert "MPS did not start" in text and reason in text
        answer = step(agent, 1)
        assert answer.verb == "host"
        assert "mps_pipe" not in answer.fields
        assert not flag(agent)
    assert not list(tmp_path.glob("mps-n1/1"))


def test_a_step_that_can_not_wait_settles_the_mode(tmp_path: Path, mps: StandInMps) -> None:
    mps.behave("slow", "0.5")
    with running(sharing(tmp_path, mps)) as agent:
        assert host_begins(agent, 1).get("wait_ms")
        assert "mps_pipe" not in step(agent, 1).fields
        agent.slurm("ready", job_id=1)
        assert why(agent, 1) == ("timeslice", "its first step began before MPS was ready")
        assert mps.calls("quit")
        assert "mps_pipe" not in step(agent, 1).fields


def test_a_restarted_agent_adopts_the_daemon(tmp_path: Path, mps: StandInMps) -> None:
    settings = sharing(tmp_path, mps)
    with running(settings) as agent:
        begin(agent, 1)
        pipe = pipe_of(agent, 1)
        daemon = process_of(pipe)
    assert is_there(daemon)
    with running(settings) as agent:
        assert pipe_of(agent, 1) == pipe
        assert flag(agent)
        assert is_there(daemon)
        assert len(mps.calls("begins")) == 1
        agent.slurm("job_end", job_id=1)
        assert not is_there(daemon)


def test_a_daemon_that_died_while_no_agent_ran_is_told(tmp_path: Path, mps: StandInMps) -> None:
    settings = sharing(tmp_path, mps)
    with running(settings) as agent:
        begin(agent, 1)
        daemon = process_of(pipe_of(agent, 1))
    os.kill(daemon, signal.SIGKILL)
    until(lambda: not is_there(daemon))
    with running(settings) as agent:
        assert "mps_pipe" not in step(agent, 1).fields
        mode, reason = why(agent, 1)
        assert mode == "timeslice" and "while no agent ran" in reason


def test_the_daemon_of_a_job_that_ended_without_an_agent_is_stopped(
    tmp_path: Path, mps: StandInMps
) -> None:
    settings = sharing(tmp_path, mps)
    with running(settings) as agent:
        begin(agent, 1)
        daemon = process_of(pipe_of(agent, 1))
    (tmp_path / "state/sfilld-n1.json").unlink()
    with running(settings):
        until(lambda: not is_there(daemon))
        until(lambda: not list(tmp_path.glob("mps-n1/*")))


def test_when_the_daemon_dies_fills_leave_and_time_slicing_goes_on(
    tmp_path: Path, mps: StandInMps, shims: list[FakeShim]
) -> None:
    with running(sharing(tmp_path, mps)) as agent:
        begin(agent, 1)
        shims.append(train(agent, 1))
        assert fill_begins(agent, 2).verb == "ok"
        os.kill(process_of(pipe_of(agent, 1)), signal.SIGKILL)
        until(lambda: why(agent, 1)[0] == "timeslice")
        assert "its MPS daemon failed" in why(agent, 1)[1]
        assert not flag(agent)
        assert agent.agent.node.jobs.fills[2].evicted
        assert shims[0].process.poll() is None
        assert "mps_pipe" not in step(agent, 1).fields


def test_a_fill_is_a_client_of_low_priority_and_leaves_its_server_before_it_is_killed(
    tmp_path: Path, mps: StandInMps, shims: list[FakeShim]
) -> None:
    with running(sharing(tmp_path, mps, mps_thread_percentage=60, evict_grace_s=0)) as agent:
        begin(agent, 1)
        shims.append(train(agent, 1))
        fill_begins(agent, 2)
        answer = step(agent, 2)
        assert answer.get("mps_pipe") == str(pipe_of(agent, 1))
        assert answer.get("mps_threads") == "60"
        gate = FakeShim(2)
        shims.append(gate)
        gate.attach(agent, role="gate")
        mps.behave("clients", f"{shims[0].process.pid} {gate.process.pid}")
        agent.slurm("job_end", job_id=1)
        assert gate.process.wait(5) != 0
        assert mps.calls("terminate_client")[0].split()[2:] == [str(gate.process.pid), "alive"]
        events = agent.events("mps_client")
        assert str(gate.process.pid) in events[0]["text"]


def test_a_daemon_that_does_not_answer_holds_up_no_kill(
    tmp_path: Path, mps: StandInMps, shims: list[FakeShim]
) -> None:
    settings = sharing(tmp_path, mps, mps_terminate_s=0.2, evict_grace_s=0, evict_wait_s=1)
    with running(settings) as agent:
        begin(agent, 1)
        daemon = process_of(pipe_of(agent, 1))
        shims.append(train(agent, 1))
        fill_begins(agent, 2)
        gate = FakeShim(2)
        shims.append(gate)
        gate.attach(agent, role="gate")
        os.kill(daemon, signal.SIGSTOP)
        agent.slurm("job_end", job_id=1)
        assert gate.process.wait(5) != 0
        until(lambda: not is_there(daemon), 15)


@pytest.mark.parametrize(
    ("rule", "user_id", "account", "may"),
    [
        ("same-user", os.getuid(), "b", True),
        ("same-user", 4242, "a", False),
        ("same-account", 4242, "a", True),
        ("same-account", os.getuid(), "b", False),
        ("same-account", os.getuid(), "", False),
        ("any", 4242, "b", True),
    ],
)
def test_the_sites_rule_says_who_may_fill_beside_a_training_under_mps(
    tmp_path: Path,
    mps: StandInMps,
    shims: list[FakeShim],
    rule: str,
    user_id: int,
    account: str,
    may: bool,
) -> None:
    with running(sharing(tmp_path, mps, mps_for=rule)) as agent:
        begin(agent, 1)
        shims.append(train(agent, 1))
        answer = fill_of(agent, 2, user_id, account)
        assert (answer.verb == "ok") == may
        if not may:
            whose = rule.removeprefix("same-")
            assert f"by MPS, which is open to fills of the {whose}" in answer.get("reason")


def test_a_fill_of_another_user_goes_to_a_gpu_that_it_may_use(
    tmp_path: Path, mps: StandInMps, shims: list[FakeShim]
) -> None:
    with running(sharing(tmp_path, mps), FakeGpus(2)) as agent:
        begin(agent, 1, gpus="0")
        begin(agent, 2, "on,share=timeslice", gpus="1")
        shims += [train(agent, 1), train(agent, 2, 1)]
        agent.agent.node.gpus[uuid_of(0)].bubble_share = 0.9
        assert fill_of(agent, 3, 4242).verb == "ok"
        assert agent.agent.node.jobs.fills[3].gpu == uuid_of(1)


def test_who_may_not_fill_here_is_sent_back_for_longer_each_time(
    tmp_path: Path, mps: StandInMps, shims: list[FakeShim]
) -> None:
    with running(sharing(tmp_path, mps)) as agent:
        begin(agent, 1)
        shims.append(train(agent, 1))
        waits = [fill_of(agent, 2, 4242).get("retry_s") for _ in range(6)]
        assert waits == ["30", "60", "120", "240", "480", "600"]
        too_large = fill_of(agent, 3, 4242, spec="mem=1000G")
        assert "retry_s" not in too_large.fields
        (event, *_) = agent.events("refused")
        assert (event["job_id"], event["user"]) == (2, "other")
        assert "by MPS" in event["text"]


@pytest.mark.parametrize(
    ("settings", "spec", "mode", "reason"),
    [
        ({"share": "timeslice"}, "on", "timeslice", "the node's setting"),
        ({"share": "timeslice"}, "on,share=mps", "mps", "asked for"),
        ({"share": "timeslice", "mps_for": "none"}, "on,share=mps", "timeslice", "not allow"),
        ({}, "on,share=timeslice", "timeslice", "asked for"),
        ({}, "observe", "timeslice", "lends nothing"),
        ({}, "on,share=banana", "timeslice", "lends nothing"),
    ],
)
def test_the_owner_may_refuse_mps_and_ask_for_it_where_the_site_allows(
    tmp_path: Path, mps: StandInMps, settings: dict[str, str], spec: str, mode: str, reason: str
) -> None:
    with running(sharing(tmp_path, mps, **settings)) as agent:
        begin(agent, 1, spec)
        told = why(agent, 1)
        assert told[0] == mode
        assert reason in told[1]
        agent.slurm("job_end", job_id=1)


def test_mps_for_no_one_and_by_default_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mps_for"):
        settings_for(tmp_path, share="mps", mps_for="none")
