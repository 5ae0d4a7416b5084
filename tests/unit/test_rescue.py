"""A training that runs short of memory gets what fills hold, and never sees an error of theirs."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

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
from tests.unit.sharing_lab import SharingLab, result
from tests.unit.shim_lab import interposer, simulated_gpu

OUT_OF_MEMORY = 2
GPU_MB = 2048
# On a GPU of 2 GiB: training has 256 MiB for its context, fill 256 and the 768 that it takes.
GROWTH = ["alloc:1200", "async:1200", "managed:1200"]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RunningAgent]:
    interposer()
    simulated_gpu()
    with running(settings_for(tmp_path, rescue_wait_s=2)) as started:
        yield started


@pytest.fixture
def lab(tmp_path: Path, agent: RunningAgent) -> Iterator[SharingLab]:
    started = SharingLab(tmp_path / "lab", agent, GPU_MB)
    yield started
    started.stop()


def share(
    agent: RunningAgent, lab: SharingLab, *steps: str
) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    """A training, and a fill beside it that holds 768 MiB. SIGUSR1: the training goes on."""
    host_begins(agent, 1, spec="on,slowdown=20%")
    training = lab.start(1, "monitor", 0.5, "wait", *steps)
    [gpu] = agent.agent.node.gpus.values()
    until(lambda: gpu.ready_ns, 20)
    assert fill_begins(agent, 2, "mem=2G").verb == "ok"
    fill = lab.start(2, "gate", 30, "alloc:768")
    until(lambda: held(agent) > 768 << 20 and not waits(agent), 20)
    return training, fill


def held(agent: RunningAgent) -> int:
    fills = agent.agent.node.fills.values()
    return sum(int(fill.memory.view.gpus[0].memory_bytes) for fill in fills)


def waits(agent: RunningAgent) -> bool:
    """Memory counts from before its allocation, which waits for the gate."""
    fills = agent.agent.node.fills.values()
    return any(fill.memory.view.gpus[0].wants for fill in fills)


@pytest.mark.parametrize("growth", GROWTH)
def test_training_that_grows_into_a_fills_memory_ends_as_without_fill(
    tmp_path: Path, agent: RunningAgent, lab: SharingLab, growth: str
) -> None:
    alone = SharingLab(tmp_path / "alone", None, GPU_MB)
    expected = result(alone.start(0, "", 0.5, growth))
    training, fill = share(agent, lab, growth)
    training.send_signal(signal.SIGUSR1)
    found = result(training)
    assert found["results"][1:] == expected["results"] == [0]
    assert found["sum"] == expected["sum"]
    assert fill.wait(5) == -signal.SIGKILL
    [event] = agent.events("rescue")
    assert "fill job(s) 2 left" in event["text"] and event["job_id"] == 1
    [evicted] = agent.events("evicted")
    assert "training job 1 needed its memory" in evicted["text"]
    assert agent.agent.node.requeue == {2}


def test_training_counts_memory_that_fill_would_give_back_as_free(
    agent: RunningAgent, lab: SharingLab
) -> None:
    training, fill = share(agent, lab, "info")
    [gpu] = agent.agent.node.gpus.values()
    agent.gpus.on_gpu[gpu.uuid] = [
        GpuProcess(training.pid, 256 << 20),
        GpuProcess(fill.pid, 1024 << 20),  # as the simulated driver counts it
    ]
    until(lambda: gpu.fill_nvml_bytes)
    training.send_signal(signal.SIGUSR1)
    [_, [free, total]] = result(training)["results"]
    assert total == GPU_MB
    assert free == GPU_MB - 256 - 1  # its own context, and the page it works on
    assert fill.poll() is None


def test_error_passes_at_once_where_no_fill_is(agent: RunningAgent, lab: SharingLab) -> None:
    host_begins(agent, 1)
    found = result(lab.start(1, "monitor", 0.5, "alloc:3000"))
    assert found["results"] == [OUT_OF_MEMORY]
    assert found["took_ms"][0] < 50
    assert agent.events("rescue") == []


def test_error_passes_in_time_when_the_agent_hangs(agent: RunningAgent, lab: SharingLab) -> None:
    training, _ = share(agent, lab, "alloc:1200")
    agent._loop.call_soon_threadsafe(time.sleep, 3)
    time.sleep(0.1)
    training.send_signal(signal.SIGUSR1)
    found = result(training)
    assert found["results"][1] == OUT_OF_MEMORY
    assert 1900 < found["took_ms"][1] < 2800


def test_error_passes_when_the_agent_is_gone(agent: RunningAgent, lab: SharingLab) -> None:
    training, _ = share(agent, lab, "alloc:1200")
    agent.stop()
    training.send_signal(signal.SIGUSR1)
    found = result(training)
    assert found["results"][1] == OUT_OF_MEMORY
    assert found["took_ms"][1] < 200


class TestAgentsSide:
    """The agent by itself, with shims that a test plays."""

    @pytest.fixture
    def gpus(self) -> FakeGpus:
        return FakeGpus()

    @pytest.fixture
    def alone(self, tmp_path: Path, gpus: FakeGpus) -> Iterator[RunningAgent]:
        with running(settings_for(tmp_path / "alone", rescue_wait_s=1), gpus) as started:
            yield started

    def ask(self, shim: FakeShim, alone: RunningAgent, size: int, minor: int = 0) -> str:
        shim.connect(alone.settings.socket_path)
        shim.peer.send("rescue", uuid=uuid_of(minor), bytes=size)
        return shim.peer.receive().verb

    def test_room_for_growth_follows_the_peak(self, alone: RunningAgent, gpus: FakeGpus) -> None:
        host_begins(alone, 1)
        training = train(alone, 1)
        node = alone.agent.node
        [gpu] = node.gpus.values()
        gpus.on_gpu[gpu.uuid] = [GpuProcess(training.process.pid, 4 * GIB)]
        until(lambda: gpu.training_bytes == 4 * GIB)
        assert node.report_of(gpu).lendable_slots == 18
        assert fill_begins(alone, 2, "mem=4G").verb == "ok"
        gate = FakeShim(2)
        gate.attach(alone, role="gate")
        until(lambda: training.training_board().fill_present)
        # Training wants 12 GiB more: the fill goes, and only what is left then is lent again.
        assert self.ask(training, alone, 12 * GIB) == "ok"
        assert gate.process.wait(1) == -signal.SIGKILL
        assert node.jobs.hosts[1].peak_bytes[gpu.uuid] == 16 * GIB
        assert alone.slurm("job_end", job_id=2).verb == "ok"
        assert node.report_of(gpu).lendable_slots == 24 - 16 - 2
        gpus.on_gpu[gpu.uuid] = [GpuProcess(training.process.pid, 16 * GIB)]
        gpus.free[gpu.uuid] = 8 * GIB
        until(lambda: gpu.training_bytes == 16 * GIB)
        assert node.report_of(gpu).lendable_slots == 24 - 16 - 2
        training.close()
        gate.close()

    def test_nobody_but_the_training_of_that_gpu_can_have_fills_killed(
        self, alone: RunningAgent
    ) -> None:
        host_begins(alone, 1)
        training = train(alone, 1)
        assert fill_begins(alone, 2, "mem=4G").verb == "ok"
        gate, stranger = FakeShim(2), FakeShim(3)
        gate.attach(alone, role="gate")
        other = FakeShim(2)
        for asker in (stranger, other):
            assert self.ask(asker, alone, GIB) == "error"
        assert self.ask(training, alone, 25 * GIB) == "none"  # more than the GPU has
        time.sleep(0.1)
        assert gate.process.poll() is None
        for shim in (training, gate, stranger, other):
            shim.close()

    def test_memory_of_a_fill_that_just_ended_is_worth_a_second_try(
        self, alone: RunningAgent
    ) -> None:
        host_begins(alone, 1)
        training = train(alone, 1)
        assert self.ask(training, alone, GIB) == "none"
        assert fill_begins(alone, 2, "mem=4G").verb == "ok"
        gate = FakeShim(2)
        gate.attach(alone, role="gate")
        gate.kill()
        until(lambda: not alone.agent.node.fills)
        assert self.ask(training, alone, GIB) == "ok"
        time.sleep(1.1)
        assert self.ask(training, alone, GIB) == "none"
        training.close()
        gate.close()
