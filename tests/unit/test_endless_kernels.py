"""A fill kernel that does not end is found, its job evicted, and what training waited recorded."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.agent_peers import (
    FakeGpus,
    FakeShim,
    RunningAgent,
    fill_begins,
    gate_on_gpu,
    host_begins,
    running,
    settings_for,
    train,
    until,
)
from tests.unit.sharing_lab import SharingLab, result
from tests.unit.shim_lab import interposer, simulated_gpu

ENDLESS_S = 0.4


@pytest.fixture
def gpus() -> FakeGpus:
    return FakeGpus()


@pytest.fixture
def agent(tmp_path: Path, gpus: FakeGpus) -> Iterator[RunningAgent]:
    interposer()
    simulated_gpu()
    settings = settings_for(
        tmp_path, endless_s=ENDLESS_S, evict_grace_s=30, evict_kill_s=0.3, evict_wait_s=0.3
    )
    with running(settings, gpus) as started:
        yield started


@pytest.fixture
def lab(tmp_path: Path, agent: RunningAgent) -> Iterator[SharingLab]:
    started = SharingLab(tmp_path / "lab", agent, 2048)
    yield started
    started.stop()


def test_endless_kernel_is_evicted_and_what_training_waited_is_in_the_ledger(
    tmp_path: Path, agent: RunningAgent, lab: SharingLab
) -> None:
    expected = result(SharingLab(tmp_path / "alone", None, 2048).start(0, "", 1))
    host_begins(agent, 1, spec="on,slowdown=20%")
    training = lab.start(1, "monitor", 1, "wait")
    node = agent.agent.node
    [gpu] = node.gpus.values()
    until(lambda: gpu.ready_ns, 20)
    assert fill_begins(agent, 2, "mem=2G").verb == "ok"
    fill = lab.start(2, "gate", 1, "spin:60000")
    until(lambda: node.jobs.fills[2].evicted, 20)
    assert fill.wait(5) == -signal.SIGTERM
    training.send_signal(signal.SIGUSR1)
    assert result(training)["sum"] == expected["sum"]
    [evicted] = agent.events("evicted")
    assert f"a kernel had {ENDLESS_S} s of the GPU and did not end" in evicted["text"]
    assert node.requeue == {2}
    [estimated] = agent.events("estimated")
    assert "entered by estimate" in estimated["text"]
    # The simulated GPU does not preempt: training stood for all of it, and half counts.
    assert node.jobs.hosts[1].intrusion_us > ENDLESS_S * 1e6
    last = max(agent.records("bubble_use"), key=lambda use: use["intrusion_us"])
    assert last["fill_job_id"] == 2 and last["host_job_id"] == 1
    assert 1.5 * ENDLESS_S * 1e6 < last["intrusion_us"] <= last["used_us"] < 10e6


def gate_of(agent: RunningAgent, job_id: int) -> FakeShim:
    """A fill process whose board says that an operation was released just now and is not done."""
    assert fill_begins(agent, job_id).verb == "ok"
    gate = gate_on_gpu(agent, job_id)
    face = gate.fill_board().gpus[0]
    face.released, face.in_flight_ns, face.last_release_ns = 1, 1000, time.monotonic_ns()
    return gate


def test_work_that_moves_is_left_alone_and_so_is_a_stopped_process(agent: RunningAgent) -> None:
    host_begins(agent, 1)
    training = train(agent, 1)
    moving, stopped = gate_of(agent, 2), gate_of(agent, 3)
    stopped.process.send_signal(signal.SIGSTOP)
    end = time.monotonic() + 3 * ENDLESS_S
    while time.monotonic() < end:
        moving.fill_board().gpus[0].released += 1
        time.sleep(0.05)
    fills = agent.agent.node.jobs.fills
    assert not fills[2].evicted and not fills[3].evicted
    stopped.process.send_signal(signal.SIGCONT)
    until(lambda: fills[3].evicted)
    for shim in (training, moving, stopped):
        shim.close()


def test_busy_time_of_the_training_counts_half(agent: RunningAgent) -> None:
    host_begins(agent, 1)
    training = train(agent, 1)  # its board has no open bubble: busy
    began = time.monotonic()
    gate = gate_of(agent, 2)
    until(lambda: agent.agent.node.jobs.fills[2].evicted)
    assert 1.8 * ENDLESS_S < time.monotonic() - began < 4 * ENDLESS_S
    for shim in (training, gate):
        shim.close()


def test_gpu_lends_nothing_while_a_killed_process_stays_on_it(
    agent: RunningAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a driver can't let go of a process: signals do nothing."""
    monkeypatch.setattr("agent.eviction.signal_member", lambda *_: False)
    host_begins(agent, 1)
    training = train(agent, 1)
    node = agent.agent.node
    [gpu] = node.gpus.values()
    assert node.report_of(gpu).lendable_slots > 0
    gate = gate_of(agent, 2)
    until(lambda: agent.events("stuck"), 10)
    assert "was killed but is still on the GPU" in agent.events("stuck")[0]["text"]
    assert agent.slurm("job_end", job_id=2).verb == "ok"
    assert node.report_of(gpu).lendable_slots == 0
    answer = fill_begins(agent, 3)
    assert answer.verb == "refused" and "still on the GPU" in answer.get("reason")
    gate.kill()
    until(lambda: len(agent.events("stuck")) == 2)
    assert node.report_of(gpu).lendable_slots > 0
    for shim in (training, gate):
        shim.close()
