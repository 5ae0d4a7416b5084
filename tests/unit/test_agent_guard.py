"""Processes on a GPU that no board speaks for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.board import Closed
from agent.nvml import GpuProcess
from tests.unit.agent_peers import (
    GIB,
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


@pytest.fixture
def gpus() -> FakeGpus:
    return FakeGpus()


@pytest.fixture
def agent(tmp_path: Path, gpus: FakeGpus) -> Iterator[RunningAgent]:
    with running(settings_for(tmp_path, guard_interval_s=0.35), gpus) as started:
        yield started


@pytest.fixture
def shims(agent: RunningAgent) -> Iterator[list[FakeShim]]:
    host_begins(agent, 1)
    made = [train(agent, 1)]
    assert fill_begins(agent, 2).verb == "ok"
    gate = FakeShim(2)
    made.append(gate)
    gate.attach(agent, role="gate")
    gate.take_pushes(0.1)
    yield made
    for shim in made:
        shim.close()


def test_fill_that_dropped_the_interposer_is_killed_within_a_second(
    agent: RunningAgent, gpus: FakeGpus, shims: list[FakeShim]
) -> None:
    escaped = FakeShim(2)
    shims.append(escaped)
    until(lambda: escaped.process.poll() is None)
    gpus.on_gpu[uuid_of(0)] = [GpuProcess(escaped.process.pid, GIB)]
    began = time.monotonic()
    escaped.process.wait(2)
    assert time.monotonic() - began < 1.0
    [event] = agent.events("escaped")
    assert event["job_id"] == 2
    assert event["user"] == "sfilluser2"


def test_gated_and_watched_processes_are_left_alone(
    agent: RunningAgent, gpus: FakeGpus, shims: list[FakeShim]
) -> None:
    training, gate = shims
    pids = (training.process.pid, gate.process.pid)
    gpus.on_gpu[uuid_of(0)] = [GpuProcess(pid, GIB) for pid in pids]
    gpu = agent.agent.node.gpus[uuid_of(0)]
    until(lambda: gpu.fill_used_bytes == {2: GIB})
    time.sleep(1)
    assert training.process.poll() is None and gate.process.poll() is None
    assert gpu.unknown == 0


def test_training_without_a_board_shuts_the_gate(
    agent: RunningAgent, gpus: FakeGpus, shims: list[FakeShim]
) -> None:
    hookless = FakeShim(1)
    shims.append(hookless)
    page = shims[1].pages[uuid_of(0)]
    until(lambda: page.view.fills[0].allowed)
    gpus.on_gpu[uuid_of(0)] = [GpuProcess(hookless.process.pid, GIB)]
    until(lambda: page.view.unknown_training == 1)
    assert page.view.fills[0].allowed == 0
    assert page.view.fills[0].reason == Closed.UNKNOWN
    assert hookless.process.poll() is None
    gpus.on_gpu[uuid_of(0)] = []
    until(lambda: page.view.fills[0].allowed)


def test_after_a_restart_a_training_that_has_yet_to_attach_is_told_of_only_if_it_does_not_come(
    tmp_path: Path, gpus: FakeGpus
) -> None:
    gpu_has = gpus.on_gpu
    with running(settings_for(tmp_path, restart_grace_s=1.5), gpus) as agent:
        gpu = agent.agent.node.gpus[uuid_of(0)]
        gpu_has[uuid_of(0)] = [GpuProcess(1, GIB)]
        until(lambda: gpu.unknown == 1)  # which shuts the gate
        gpu_has[uuid_of(0)] = []  # as a process that has attached again
        until(lambda: gpu.unknown == 0)
        assert agent.events("unknown") == []
        gpu_has[uuid_of(0)] = [GpuProcess(1, GIB)]
        until(lambda: gpu.unknown == 1)
        assert agent.events("unknown") == []
        until(lambda: agent.events("unknown"))  # it has stayed for too long
        time.sleep(0.5)
        assert len(agent.events("unknown")) == 1


def test_process_of_no_job_shuts_the_gate(
    agent: RunningAgent, gpus: FakeGpus, shims: list[FakeShim]
) -> None:
    page = shims[1].pages[uuid_of(0)]
    gpus.on_gpu[uuid_of(0)] = [GpuProcess(1, GIB)]
    until(lambda: page.view.unknown_training == 1)
