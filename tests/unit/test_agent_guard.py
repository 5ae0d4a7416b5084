"""Processes on a GPU that no board speaks for."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import gpu_faults, guard
from agent.board import Closed
from agent.guard import GuardThread
from agent.job_of_process import JobFinder
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


def test_a_process_that_cannot_be_judged_shuts_fill_out(
    agent: RunningAgent,
    gpus: FakeGpus,
    shims: list[FakeShim],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training, gate = shims
    gpu = agent.agent.node.gpus[uuid_of(0)]
    page = gate.pages[uuid_of(0)]
    until(lambda: page.view.fills[0].allowed)

    def failing(_: int) -> None:
        raise RuntimeError("nobody foresaw this")

    with monkeypatch.context() as broken:
        broken.setattr(agent.agent._finder, "job_of", failing)
        gpus.on_gpu[uuid_of(0)] = [GpuProcess(4242, GIB)]
        until(lambda: not page.view.fills[0].allowed)
        assert page.view.fills[0].reason == Closed.UNKNOWN
        scanned_ns = gpu.scanned_ns
        assert fill_begins(agent, 3).verb == "refused"
        time.sleep(1)
        assert gpu.scanned_ns == scanned_ns  # such a look is none
    until(lambda: agent.events("unknown"))
    assert gpu.unknown == 1
    gpus.on_gpu[uuid_of(0)] = []
    until(lambda: page.view.fills[0].allowed)
    told = [event["text"].partition(": ")[2] or event["text"] for event in agent.events("gpu")]
    assert told == ["the guard cannot judge it (RuntimeError)", f"GPU {uuid_of(0)} is back"]
    assert training.process.poll() is None


def test_a_process_whose_cgroup_is_no_text_shuts_fill_out(
    tmp_path: Path,
    agent: RunningAgent,
    gpus: FakeGpus,
    shims: list[FakeShim],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "proc" / "4242").mkdir(parents=True)
    cgroup = b"0::/user.slice/user-1000.slice/user@1000.service/\xff\n"
    (tmp_path / "proc" / "4242" / "cgroup").write_bytes(cgroup)
    monkeypatch.setattr(agent.agent._guard, "_finder", JobFinder(proc=tmp_path / "proc"))
    gpus.on_gpu[uuid_of(0)] = [GpuProcess(4242, GIB)]
    gpu = agent.agent.node.gpus[uuid_of(0)]
    until(lambda: gpu.policy.memory.view.unknown_training == 1)
    assert fill_begins(agent, 3).verb == "refused"
    assert gpu.fault == ""


def test_the_guards_thread_outlives_an_error(
    agent: RunningAgent,
    gpus: FakeGpus,
    shims: list[FakeShim],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = threading.Event()

    def failing(*_: object) -> bool:
        failed.set()
        raise RuntimeError("nobody foresaw this")

    with monkeypatch.context() as broken:
        broken.setattr(GuardThread, "_is_due", failing)
        assert failed.wait(5)
    gpus.on_gpu[uuid_of(0)] = [GpuProcess(1, GIB)]
    until(lambda: agent.agent.node.gpus[uuid_of(0)].unknown == 1)


def test_while_nvml_does_not_answer_fill_is_shut_out_and_what_it_saw_before_that_is_not_believed(
    agent: RunningAgent, gpus: FakeGpus, shims: list[FakeShim]
) -> None:
    page = shims[1].pages[uuid_of(0)]
    until(lambda: page.view.fills[0].allowed)
    gpus.answers.clear()
    try:
        until(lambda: not page.view.fills[0].allowed, 6.0)
        assert page.view.fills[0].reason == Closed.UNKNOWN
        [event] = agent.events("gpu")
        assert "NVML has said nothing for 3.1 s" in event["text"]
        assert fill_begins(agent, 3).verb == "refused"
    finally:
        gpus.answers.set()
    until(lambda: page.view.fills[0].allowed)
    assert [event["text"] for event in agent.events("gpu")][1:] == [f"GPU {uuid_of(0)} is back"]


class SlowGpus(FakeGpus):
    """Each question takes its time and is answered."""

    seconds = 0.0

    def free_bytes(self, uuid: str) -> int:
        time.sleep(self.seconds)
        return super().free_bytes(uuid)


@pytest.mark.parametrize(
    ("count", "seconds", "opens"),
    # Silent are 2 s, and the oldest picture is of 4 s.
    [(7, 0.35, True), (2, 1.0, True), (1, 1.3, True), (4, 1.4, False), (1, 2.6, False)],
)
def test_a_slow_but_steady_nvml_neither_flaps_nor_floods_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, seconds: float, opens: bool
) -> None:
    monkeypatch.setattr(guard, "_SILENT_S", 2.0)
    gpus = SlowGpus(count)
    with running(settings_for(tmp_path, guard_interval_s=0.2), gpus) as agent:
        host_begins(agent, 1)
        shims = [train(agent, 1)]
        try:
            assert fill_begins(agent, 2).verb == "ok"
            shims.append(gate := FakeShim(2))
            gate.attach(agent, role="gate")
            gate.take_pushes(0.1)
            page = gate.pages[uuid_of(0)]
            until(lambda: page.view.fills[0].allowed)
            gpus.seconds = seconds
            time.sleep(3 * seconds)  # it becomes slow, and a hiccup then is no flap
            seen = []
            end = time.monotonic() + 9
            while time.monotonic() < end:
                seen.append(bool(page.view.fills[0].allowed))
                time.sleep(0.01)
            changes = [b for a, b in itertools.pairwise(seen) if a != b]
            assert (changes, seen[-1]) == ([] if opens or not seen[0] else [False], opens)
            assert len(agent.events("gpu")) <= 2 * count
        finally:
            gpus.seconds = 0
            for shim in shims:
                shim.close()


def test_a_fault_that_comes_and_goes_is_told_of_rarely_and_what_holds_is_told_last(
    agent: RunningAgent, gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_faults, "_EACH_NS", 1_500_000_000)
    gpu = agent.agent.node.gpus[uuid_of(0)]
    until(lambda: gpu.scanned_ns)
    faults = agent.agent._guard._faults
    for _ in range(10):
        faults.note(gpu, "it fails")
        faults.note(gpu, "")
    faults.note(gpu, "it is broken")
    told = [event["text"].removeprefix(f"GPU {uuid_of(0)}") for event in agent.events("gpu")]
    assert told == [": it fails", " is back", ": it fails", " is back"]
    until(lambda: len(agent.events("gpu")) == 5)
    assert agent.events("gpu")[-1]["text"].endswith(": it is broken (the last of 17 changes)")


def test_after_a_restart_fill_stays_shut_until_the_gpu_was_looked_at(
    tmp_path: Path, gpus: FakeGpus
) -> None:
    settings = settings_for(tmp_path, guard_interval_s=0.35)
    with running(settings, gpus) as before:
        host_begins(before, 1)
        training = train(before, 1)
        assert fill_begins(before, 2).verb == "ok"
        gate = FakeShim(2)
        gate.attach(before, role="gate")
        gate.take_pushes(0.1)
        until(lambda: gate.pages[uuid_of(0)].view.fills[0].allowed)
    hookless = FakeShim(1)  # it came to the GPU while no agent ran
    gpus.on_gpu[uuid_of(0)] = [GpuProcess(hookless.process.pid, GIB)]
    gpus.answers.clear()
    try:
        with running(settings, gpus) as agent:
            training.attach(agent, again=True)
            training.peer.send("gpu", uuid=uuid_of(0))
            gate.attach(agent, role="gate", again=True)
            gate.take_pushes(0.1)
            page, gpu = gate.pages[uuid_of(0)], agent.agent.node.gpus[uuid_of(0)]
            until(lambda: gpu.ready_ns)
            end = time.monotonic() + 1
            while time.monotonic() < end:
                assert not page.view.fills[0].allowed
                time.sleep(0.01)
            assert not gpu.fault  # NVML is not yet called silent
            assert page.view.fills[0].reason == Closed.UNKNOWN
            gpus.answers.set()
            until(lambda: page.view.unknown_training == 1)
            assert not page.view.fills[0].allowed
            gpus.on_gpu[uuid_of(0)] = []
            until(lambda: page.view.fills[0].allowed)
    finally:
        gpus.answers.set()
        for shim in (training, gate, hookless):
            shim.close()
