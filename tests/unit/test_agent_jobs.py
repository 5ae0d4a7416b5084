"""Admission, refusal, eviction and the end of jobs, as Slurm's side sees them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.nvml import GpuError, GpuProcess
from tests.unit.agent_peers import (
    GIB,
    FakeGpus,
    FakeShim,
    Peer,
    RunningAgent,
    fill_begins,
    gate_on_gpu,
    host_begins,
    running,
    settings_for,
    train,
    until,
    uuid_of,
)


@pytest.fixture
def gpus() -> FakeGpus:
    return FakeGpus(2)


@pytest.fixture
def agent(tmp_path: Path, gpus: FakeGpus) -> Iterator[RunningAgent]:
    settings = settings_for(tmp_path, evict_grace_s=0.2, evict_kill_s=0.2, evict_wait_s=3)
    with running(settings, gpus) as started:
        yield started


def lendable(agent: RunningAgent, minor: int = 0) -> int:
    node = agent.agent.node
    return node.report_of(node.gpus[uuid_of(minor)]).lendable_slots


def test_nothing_is_lent_before_a_monitor_is_ready(agent: RunningAgent) -> None:
    host_begins(agent, 1)
    answer = fill_begins(agent, 2)
    assert answer.verb == "refused"
    assert "no monitored process" in answer.get("reason")
    assert lendable(agent) == 0


def test_nothing_is_lent_during_warm_up(tmp_path: Path, shims: list[FakeShim]) -> None:
    with running(settings_for(tmp_path, warm_up_s=0.5)) as agent:
        host_begins(agent, 1)
        shims.append(train(agent, 1))
        assert "warming up" in fill_begins(agent, 2).get("reason")
        until(lambda: lendable(agent) > 0)
        assert fill_begins(agent, 2).verb == "ok"


def test_observed_job_never_lends(agent: RunningAgent, shims: list[FakeShim]) -> None:
    host_begins(agent, 1, spec="")
    shims.append(train(agent, 1))
    answer = fill_begins(agent, 2)
    assert answer.verb == "refused"
    assert "observe" in answer.get("reason")


def test_room_is_the_host_limit_less_what_is_admitted(
    agent: RunningAgent, shims: list[FakeShim]
) -> None:
    host_begins(agent, 1, spec="on,mem=10G")
    shims.append(train(agent, 1))
    assert lendable(agent) == 10
    assert fill_begins(agent, 2, "mem=6G").verb == "ok"
    assert lendable(agent) == 4
    refused = fill_begins(agent, 3, "mem=6G")
    assert "6144 MiB" in refused.get("reason") and "4096 MiB" in refused.get("reason")
    assert agent.slurm("job_end", job_id=2).verb == "ok"
    assert lendable(agent) == 10


def test_reserve_is_kept_free(agent: RunningAgent, gpus: FakeGpus, shims: list[FakeShim]) -> None:
    host_begins(agent, 1)
    shims.append(train(agent, 1))
    assert lendable(agent) == 18
    gpus.free[uuid_of(0)] = 5 * GIB
    until(lambda: lendable(agent) == 3)


def test_fill_gets_the_gpu_with_most_bubble_time(
    agent: RunningAgent, shims: list[FakeShim]
) -> None:
    host_begins(agent, 1, gpus="0-1")
    shims += [train(agent, 1, 0), train(agent, 1, 1)]
    agent.agent.node.gpus[uuid_of(1)].bubble_share = 0.5
    fill_begins(agent, 2)
    assert agent.agent.node.jobs.fills[2].gpu == uuid_of(1)
    step = agent.slurm("step", job_id=2, step_id=0, user_id=0)
    assert step.verb == "fill"
    assert step.get("cuda_visible_devices") == uuid_of(1)


def test_step_of_host_refused_and_other_jobs(agent: RunningAgent) -> None:
    host_begins(agent, 1, spec="observe")
    fill_begins(agent, 2)
    assert agent.slurm("step", job_id=1, step_id=0, user_id=0).get("mode") == "observe"
    assert agent.slurm("step", job_id=2, step_id=0, user_id=0).verb == "refused"
    assert agent.slurm("step", job_id=3, step_id=0, user_id=0).verb == "none"


def test_a_training_to_whose_prolog_slurm_names_no_gpu_is_told_of(agent: RunningAgent) -> None:
    said = {"user_id": os.getuid(), "user": "ann", "kind": "other", "gpus": "", "spec": ""}
    assert agent.slurm("job_begin", job_id=3, **said).verb == "ok"
    assert agent.events("unwatched") == []
    assert agent.slurm("job_begin", job_id=4, **{**said, "spec": "on"}).verb == "ok"
    [told] = agent.events("unwatched")
    assert (told["job_id"], told["user"]) == (4, "ann") and "names no GPU" in told["text"]
    assert agent.slurm("step", job_id=4, step_id=0, user_id=os.getuid()).verb == "none"


def test_unreadable_host_spec_only_watches(agent: RunningAgent) -> None:
    assert host_begins(agent, 1, spec="on,mem=banana").verb == "ok"
    host = agent.agent.node.jobs.hosts[1]
    assert host.mode == "observe"
    assert "mem=banana" in host.mode_reason


def test_admission_is_told_twice_and_counts_once(
    agent: RunningAgent, shims: list[FakeShim]
) -> None:
    host_begins(agent, 1, spec="on,mem=10G")
    shims.append(train(agent, 1))
    fill_begins(agent, 2, "mem=6G")
    assert fill_begins(agent, 2, "mem=6G").verb == "ok"
    assert lendable(agent) == 4


def test_end_of_host_evicts_and_asks_for_requeue(
    agent: RunningAgent, gpus: FakeGpus, shims: list[FakeShim]
) -> None:
    host_begins(agent, 1)
    training = train(agent, 1)
    shims.append(training)
    fill_begins(agent, 2)
    gate = FakeShim(2)
    shims.append(gate)
    gate.attach(agent, role="gate")
    gate.take_pushes(0.1)
    gpus.on_gpu[uuid_of(0)] = [GpuProcess(gate.process.pid, GIB)]
    page = gate.pages[uuid_of(0)]
    until(lambda: page.view.fills[0].allowed)

    with Peer(agent.settings.socket_path) as epilog:
        epilog.send("job_end", job_id=1)
        until(lambda: not page.view.fills[0].allowed, 0.1)
        assert agent.agent.node.requeue == {2}
        assert "evict" in [each.verb for each in gate.take_pushes(0.1)]
        assert epilog.receive(0.9).verb == "wait"  # or the epilog takes it for stopped
        # The fill ignores it: after the grace it is killed, and only then the epilog goes on.
        gate.process.wait(3)
        gpus.on_gpu[uuid_of(0)] = []
        assert epilog.answer().verb == "ok"
    [killed] = agent.events("killed")
    assert killed["job_id"] == 2
    report = agent.agent._report
    assert report is not None and report.requeue == [2]


def test_fill_that_ends_by_itself_is_not_requeued(
    agent: RunningAgent, shims: list[FakeShim]
) -> None:
    host_begins(agent, 1)
    shims.append(train(agent, 1))
    fill_begins(agent, 2)
    agent.slurm("job_end", job_id=1)
    agent.slurm("job_end", job_id=2)
    assert agent.agent.node.requeue == set()


def test_new_training_finds_no_fill_of_an_old_one(
    agent: RunningAgent, shims: list[FakeShim]
) -> None:
    host_begins(agent, 1)
    shims.append(train(agent, 1))
    fill_begins(agent, 2)
    host_begins(agent, 5)
    assert agent.agent.node.jobs.fills[2].evicted
    assert list(agent.agent.node.jobs.hosts) == [5]


def test_gpu_off_the_bus_lends_nothing_and_comes_back(
    agent: RunningAgent, gpus: FakeGpus, shims: list[FakeShim]
) -> None:
    host_begins(agent, 1)
    shims.append(train(agent, 1))
    assert lendable(agent) > 0
    gpus.fault = GpuError("GPU is lost", lost=True)
    until(lambda: lendable(agent) == 0)
    assert agent.events("gpu")
    gpus.fault = None
    until(lambda: lendable(agent) > 0)


def test_training_that_needs_memory_gets_it_back(
    agent: RunningAgent, gpus: FakeGpus, shims: list[FakeShim]
) -> None:
    host_begins(agent, 1)
    shims.append(train(agent, 1))
    fill_begins(agent, 2)
    gpus.free[uuid_of(0)] = 100 << 20
    until(lambda: agent.agent.node.jobs.fills[2].evicted)


def test_malformed_packets_are_answered_with_an_error(agent: RunningAgent) -> None:
    for verb, fields in (
        ("job_begin", {"job_id": "x", "kind": "host"}),
        ("job_begin", {"job_id": "1", "kind": "what"}),
        ("dance", {}),
    ):
        answer = agent.slurm(verb, **fields)
        assert answer.verb == "error"
        assert answer.get("reason")
    with Peer(agent.settings.socket_path) as peer:
        peer.socket.send(b"\xff\xfe")
        assert peer.receive().verb == "error"
        peer.socket.send(b"x" * 5000)
        assert peer.receive().verb == "error"


def test_status_fits_one_packet_and_is_json(tmp_path: Path) -> None:
    with running(settings_for(tmp_path), FakeGpus(60)) as agent:
        answer = agent.slurm("status")
        state = json.loads(answer.get("json"))
        assert state["node"] == "n1"
        assert state["gpus"]
        assert state["cut"] is True


def test_job_without_a_word_of_its_end_is_given_up(tmp_path: Path) -> None:
    with running(settings_for(tmp_path, forget_after_s=5)) as agent:
        host_begins(agent, 1)
        assert 1 in agent.agent.node.jobs.hosts
        until(lambda: 1 not in agent.agent.node.jobs.hosts, 12)
        [event] = agent.events("host_ends")
        assert "given up" in event["text"]


def test_a_fill_whose_end_was_told_while_no_agent_ran_gives_its_slots_back_soon(
    tmp_path: Path, shims: list[FakeShim]
) -> None:
    settings = settings_for(tmp_path, forget_after_s=600, forget_batch_after_s=2)
    with running(settings) as agent:
        host_begins(agent, 1)
        shims.append(train(agent, 1))
        fill_begins(agent, 2, "mem=4G")
        assert 2 in agent.agent.node.jobs.fills
        until(lambda: 2 not in agent.agent.node.jobs.fills, 8)
        assert 1 in agent.agent.node.jobs.hosts
        [event] = agent.events("fill_ends")
        assert "given up" in event["text"]


def test_memory_that_fills_hold_already_is_not_counted_twice(
    tmp_path: Path, shims: list[FakeShim]
) -> None:
    gpus = FakeGpus()
    with running(settings_for(tmp_path, guard=False), gpus) as agent:
        host_begins(agent, 1)
        shims.append(train(agent, 1))
        fill_begins(agent, 2, "mem=4G")
        assert lendable(agent) == 14
        gate = gate_on_gpu(agent, 2)
        shims.append(gate)
        # First what NVML says: a look in between must not find the fill's memory and the old rest.
        gpus.free[uuid_of(0)] = 17 * GIB
        gate.fill_board().gpus[0].memory_bytes = 3 * GIB
        gpu = agent.agent.node.gpus[uuid_of(0)]
        # A look that had asked NVML before may still read the board after.
        until(lambda: (gpu.free_bytes, gpu.fill_used_bytes) == (17 * GIB, {2: 3 * GIB}))
        assert lendable(agent) == 14


def test_memory_that_a_fill_says_it_holds_makes_no_room_for_others(
    tmp_path: Path, shims: list[FakeShim]
) -> None:
    with running(settings_for(tmp_path, guard=False)) as agent:
        host_begins(agent, 1)
        shims.append(train(agent, 1))
        fill_begins(agent, 2, "mem=4G")
        gate = gate_on_gpu(agent, 2)
        shims.append(gate)
        gate.fill_board().gpus[0].memory_bytes = 1 << 60
        gpu = agent.agent.node.gpus[uuid_of(0)]
        until(lambda: gpu.fill_used_bytes)
        assert gpu.fill_used_bytes == {2: 4 * GIB}
        assert lendable(agent) < 20
