"""A fill's memory limit holds for its job on a GPU: over all of its processes, whatever they do."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.attachments import Fill
from agent.nvml import GpuProcess
from agent.shim_verbs import PROTOCOL_VERSION
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
from tests.unit.sharing_lab import (
    CONTEXT_MB,
    OUT_OF_MEMORY,
    SharingLab,
    agent_of_fills,
    lab_of,
    lend,
    result,
)
from tests.unit.shim_lab import SHIM, run


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RunningAgent]:
    with agent_of_fills(tmp_path) as started:
        yield started


@pytest.fixture
def lab(tmp_path: Path, agent: RunningAgent) -> Iterator[SharingLab]:
    with lab_of(agent, tmp_path / "lab") as started:
        yield started


def held_mb(agent: RunningAgent) -> int:
    fills = list(agent.agent.node.fills.values())
    return sum(int(fill.memory.view.gpus[0].memory_bytes) for fill in fills) >> 20


def start_holding(agent: RunningAgent, lab: SharingLab, mb: int) -> subprocess.Popen[str]:
    """A process of the fill job that holds so much, beside its context."""
    before = held_mb(agent)
    process = lab.start(2, "gate", 60, f"alloc:{mb}")
    until(lambda: held_mb(agent) >= before + CONTEXT_MB + mb, 20)
    return process


def test_processes_of_a_job_share_its_limit(agent: RunningAgent, lab: SharingLab) -> None:
    lend(agent, lab, "mem=2G")
    start_holding(agent, lab, 600)
    found = result(lab.start(2, "gate", 0.1, "alloc:600", "alloc:300", "info"))
    # Two contexts, 600 and 300; each process has a page more for its numbers.
    free_mb = 2048 - 2 * CONTEXT_MB - 600 - 300 - 1
    assert found["results"] == [OUT_OF_MEMORY, 0, [free_mb, 2048]]


def test_a_process_that_dies_gives_its_part_back(agent: RunningAgent, lab: SharingLab) -> None:
    lend(agent, lab, "mem=2G")
    first = start_holding(agent, lab, 600)
    second = lab.start(2, "gate", 0.1, "alloc:1", "wait", "alloc:600")
    until(lambda: held_mb(agent) >= 600 + 1 + 2 * CONTEXT_MB, 20)
    first.kill()
    until(lambda: len(agent.agent.node.fills) == 1)
    second.send_signal(signal.SIGUSR1)
    assert result(second)["results"] == [0, 0, 0]


def test_a_context_that_does_not_fit_is_not_made(agent: RunningAgent, lab: SharingLab) -> None:
    lend(agent, lab, "mem=1G")
    start_holding(agent, lab, 1)
    _, error = lab.start(2, "gate", 0.1).communicate(timeout=30)
    assert f"CUDA error {OUT_OF_MEMORY}" in error
    assert "refused: the job's limit is" in error


@pytest.fixture(scope="module")
def race(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("race") / "account_race"
    sources = [str(Path(__file__).with_name("account_race.c")), str(SHIM / "account.c")]
    flags = ["-O2", "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", f"-I{SHIM}"]
    run(["gcc", *flags, "-o", str(program), *sources, "-pthread"])
    return program


@pytest.mark.parametrize("processes", [2, 4])
def test_of_those_that_ask_at_once_no_two_are_granted_what_one_may_have(
    race: Path, processes: int
) -> None:
    command = [str(race), str(processes), "500000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["together"] == 0
    assert counts["granted"] > 1000


def test_a_process_that_gets_no_account_gets_no_board(
    agent: RunningAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("no memory for another page")

    host_begins(agent, 1)
    training = train(agent, 1)
    fill_begins(agent, 2)
    with monkeypatch.context() as broken:
        broken.setattr(agent.agent.node.accounts, "join", fails)
        refused = FakeShim(2)
        assert refused.attach(agent, "gate").verb == "aside"
        assert agent.agent.node.fills == {}
        refused.close()
    served = FakeShim(2)
    assert served.attach(agent, "gate").verb == "gate"
    served.close()
    until(lambda: not agent.agent.node.fills)
    training.close()


def test_a_process_that_has_ended_holds_nothing_when_the_next_one_begins(
    agent: RunningAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the agent hears of the new one first."""
    host_begins(agent, 1)
    training = train(agent, 1)
    fill_begins(agent, 2)
    first, second = FakeShim(2), FakeShim(2)
    first.attach(agent, "gate")
    node, join, there = agent.agent.node, agent.agent.node.accounts.join, list[int]()

    def noting(fill: Fill, *, complete: bool) -> None:
        there.append(len(node.fills))
        join(fill, complete=complete)

    monkeypatch.setattr(node.accounts, "join", noting)
    second.connect(agent.settings.socket_path)
    time.sleep(0.2)  # for the connection to be taken
    agent._loop.call_soon_threadsafe(time.sleep, 0.5)  # both happen while it does not look
    time.sleep(0.1)
    second.peer.send("attach", version=PROTOCOL_VERSION, role="gate")
    time.sleep(0.1)
    first.kill()
    assert second.peer.receive().verb == "gate"
    assert there == [0]
    for shim in (first, second, training):
        shim.close()


class TestRestart:
    """An agent that begins again does not know at first what a job's processes hold."""

    @pytest.fixture
    def shims(self) -> Iterator[list[FakeShim]]:
        made: list[FakeShim] = []
        yield made
        for shim in made:
            shim.close()

    def test_nothing_is_granted_until_every_process_has_its_place(
        self, tmp_path: Path, shims: list[FakeShim]
    ) -> None:
        settings, gpus = settings_for(tmp_path, restart_grace_s=30), FakeGpus()
        with running(settings, gpus) as before:
            host_begins(before, 1)
            shims += [train(before, 1), FakeShim(2), FakeShim(2)]
            fill_begins(before, 2)
            for shim in shims[1:]:
                shim.attach(before, "gate")
                shim.take_pushes()
                section = shim.fill_board().gpus[0]
                section.uuid, section.memory_bytes = uuid_of(0).encode(), 3 << 20
                shim.fill_board().gpus_used = 1
                assert shim.accounts[uuid_of(0)].view.complete == 1
        gpus.on_gpu[uuid_of(0)] = [GpuProcess(shim.process.pid, None) for shim in shims]
        with running(settings, gpus) as after:
            first, late = shims[1:]
            first.attach(after, "gate", again=True)
            first.take_pushes()
            [gpu] = after.agent.node.gpus.values()
            until(lambda: gpu.scanned_ns)
            first.take_pushes()
            page = first.accounts[uuid_of(0)]
            assert page.view.complete == 0
            late.attach(after, "gate", again=True)
            until(lambda: page.view.complete == 1)
            assert [place.bytes >> 20 for place in page.view.places[:3]] == [3, 3, 0]
