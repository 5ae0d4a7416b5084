"""The agent's main loop stands still while jobs begin, end and die: what is on record then."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import agent.processes
import agent.standstill
from agent.board import Closed
from agent.jobs import HostJob
from agent.nvml import GpuProcess
from agent.processes import WatchedProcess
from agent.shim_verbs import PROTOCOL_VERSION
from agent.standstill import MainLoop
from db.wire.messages import HostMode, ShareMode
from tests.unit.agent_peers import (
    GIB,
    FakeGpus,
    FakeShim,
    Peer,
    RunningAgent,
    fill_begins,
    host_begins,
    running,
    settings_for,
    train,
    until,
    uuid_of,
)

STOOD_S = 2.5
SECOND_NS = 1_000_000_000


class BlindGpus(FakeGpus):
    """NVML that answers only while it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def processes(self, uuid: str) -> list[GpuProcess]:
        self.may_answer.wait(20)
        return super().processes(uuid)


@pytest.fixture
def gpus() -> BlindGpus:
    return BlindGpus()


@pytest.fixture
def agent_(tmp_path: Path, gpus: BlindGpus) -> Iterator[RunningAgent]:
    settings = settings_for(
        tmp_path, window_s=1, evict_grace_s=1.5, evict_kill_s=0.5, endless_s=2, restart_grace_s=1
    )
    with running(settings, gpus) as started:
        time.sleep(1)  # its own start asks for patience as well
        yield started
        gpus.may_answer.set()


class Standstill:
    """The main loop does nothing from now on for STOOD_S."""

    def __init__(self, agent: RunningAgent) -> None:
        self._agent = agent
        began = threading.Event()

        def stand() -> None:
            began.set()
            time.sleep(STOOD_S)

        agent._loop.call_soon_threadsafe(stand)
        assert began.wait(5)
        self.began_ns = time.monotonic_ns()

    def over(self) -> None:
        """Waits until the agent has noticed it, and has read what came in meanwhile."""
        until(lambda: self._agent.events("stood_still"))
        assert self._agent.slurm("status").verb == "status"


def say_and_hang_up(agent: RunningAgent, verb: str, **fields: object) -> int:
    """As a hook that gives up waiting; the time that it says, in UTC microseconds."""
    at_us = time.time_ns() // 1000
    with Peer(agent.settings.socket_path) as hook:
        hook.send(verb, -1, **fields, at_us=at_us)
    return at_us


def begin_and_hang_up(agent: RunningAgent, job_id: int, kind: str, gpus: str = "0") -> int:
    return say_and_hang_up(
        agent,
        "job_begin",
        job_id=job_id,
        user_id=0,
        user="sfilluser1",
        kind=kind,
        spec="on" if kind == "host" else "mem=4G",
        gpus=gpus,
        restart_count=0,
    )


def gate_beside(agent: RunningAgent, shims: list[FakeShim]) -> FakeShim:
    """A training of job 1 and a fill, job 2, beside it."""
    host_begins(agent, 1)
    shims.append(train(agent, 1))
    assert fill_begins(agent, 2).verb == "ok"
    gate = FakeShim(2)
    shims.append(gate)
    gate.attach(agent, role="gate")
    gate.take_pushes(0.1)
    return gate


def own_windows(agent: RunningAgent, job_id: int) -> list[dict[str, int]]:
    rows = agent.records("window")
    return [row for row in rows if (row["host_job_id"], row["fill_job_id"]) == (job_id, None)]


def ended_record(agent: RunningAgent, job_id: int) -> dict[str, int]:
    """The last record of a host job, which has ended."""

    def found() -> list[dict[str, int]]:
        rows = agent.records("host_job")
        return [row for row in rows if row["job_id"] == job_id and row["ended_at_us"]]

    until(found)
    [record] = found()
    return record


def test_a_training_that_ends_meanwhile_is_on_record_for_as_long_as_it_showed_life(
    agent_: RunningAgent, shims: list[FakeShim]
) -> None:
    host_begins(agent_, 1)
    shims.append(train(agent_, 1))
    attached_ns = time.monotonic_ns()
    board = shims[0].training_board()
    stood = Standstill(agent_)
    time.sleep(0.5)
    # Its last launch, a bubble that began right after it, and the end within that.
    board.slots_used = 1
    board.slots[0].last_issue_ns = sign_ns = time.monotonic_ns()
    board.gpus[0].bubble_begin_ns, board.gpus[0].bubble_seq = sign_ns - 1000, 1
    time.sleep(0.1)
    shims[0].kill()
    at_us = say_and_hang_up(agent_, "job_end", job_id=1)
    stood.over()
    watched_us = (sign_ns - attached_ns) / 1000
    assert sum(row["window_us"] for row in own_windows(agent_, 1)) == pytest.approx(
        watched_us, abs=200_000
    )
    assert sum(row["bubble_us"] for row in own_windows(agent_, 1)) < 1000
    ended = ended_record(agent_, 1)
    assert ended["ended_at_us"] == at_us
    assert ended["watched_us"] == pytest.approx(watched_us, abs=200_000)
    [told] = agent_.events("ended_unseen")
    assert told["job_id"] == 1
    [told] = agent_.events("stood_still")
    assert f"stood still for {STOOD_S}" in told["text"]
    assert "its main loop was stuck" in told["text"]


def test_a_training_that_begins_meanwhile_begins_when_its_prolog_said_and_goes_unwatched(
    agent_: RunningAgent, gpus: BlindGpus, shims: list[FakeShim]
) -> None:
    host_begins(agent_, 1)
    shims.append(train(agent_, 1))
    stood = Standstill(agent_)
    shims[0].kill()
    ended_at_us = say_and_hang_up(agent_, "job_end", job_id=1)
    began_at_us = begin_and_hang_up(agent_, 7, "host")
    newcomer = FakeShim(7)
    shims.append(newcomer)
    newcomer.connect(agent_.settings.socket_path)
    newcomer.peer.send("attach", version=PROTOCOL_VERSION, role="monitor")
    newcomer.peer.socket.close()
    gpus.on_gpu[uuid_of(0)] = [GpuProcess(newcomer.process.pid, GIB)]
    stood.over()
    hosts = agent_.agent.node.jobs.hosts
    assert {job_id: host.started_at_us for job_id, host in hosts.items()} == {7: began_at_us}
    assert ended_record(agent_, 1)["ended_at_us"] == ended_at_us
    assert [event["job_id"] for event in agent_.events("attached")] == [1]
    until(lambda: agent_.events("unknown"))
    [told] = agent_.events("unknown")
    assert (told["job_id"], told["user"]) == (7, "sfilluser1")
    agent_.slurm("job_end", job_id=7)
    assert ended_record(agent_, 7)["watched_us"] == 0


def test_an_unknown_process_is_told_of_under_the_job_that_it_is_of(
    agent_: RunningAgent, gpus: BlindGpus, shims: list[FakeShim]
) -> None:
    host_begins(agent_, 1)
    shims += [train(agent_, 1), FakeShim(5)]
    until(lambda: shims[1].process.poll() is None)
    gpus.on_gpu[uuid_of(0)] = [GpuProcess(shims[1].process.pid, GIB), GpuProcess(1, GIB)]
    until(lambda: len(agent_.events("unknown")) == 2)
    assert {event["job_id"] for event in agent_.events("unknown")} == {5, None}


def test_the_time_of_a_standstill_is_cut_into_windows_of_the_usual_length(
    agent_: RunningAgent, shims: list[FakeShim]
) -> None:
    host_begins(agent_, 1)
    shims.append(train(agent_, 1))
    Standstill(agent_).over()
    until(lambda: sum(row["window_us"] for row in own_windows(agent_, 1)) > STOOD_S * 1e6)
    assert max(row["window_us"] for row in own_windows(agent_, 1)) < 2_100_000


def test_a_standstill_is_no_time_that_an_evicted_fill_was_given(
    agent_: RunningAgent, shims: list[FakeShim]
) -> None:
    gate = gate_beside(agent_, shims)
    with Peer(agent_.settings.socket_path) as epilog:
        epilog.send("job_end", -1, job_id=1)
        until(lambda: agent_.events("evicted"))
        Standstill(agent_).over()
        time.sleep(0.3)
        assert agent_.events("killed") == []
        assert gate.process.poll() is None
        gate.process.wait(5)  # it stays for too long now
        assert epilog.answer().verb == "ok"


def test_work_that_was_not_looked_at_for_a_while_is_not_endless(
    agent_: RunningAgent, shims: list[FakeShim]
) -> None:
    gate = gate_beside(agent_, shims)
    face = gate.fill_board().gpus[0]
    face.uuid, face.released, face.last_release_ns = uuid_of(0).encode(), 1, time.monotonic_ns()
    face.in_flight_ns = 1000
    gate.fill_board().gpus_used = 1
    shims[0].training_board().gpus[0].bubble_seq = 1  # or only half of the time would count
    time.sleep(0.2)
    Standstill(agent_).over()
    time.sleep(0.3)
    assert agent_.events("evicted") == []
    until(lambda: agent_.events("evicted"), 10)  # nobody stands still any more


def test_work_that_stood_when_its_process_died_is_charged_up_to_the_standstill(
    agent_: RunningAgent, shims: list[FakeShim]
) -> None:
    gate = gate_beside(agent_, shims)
    board = shims[0].training_board()
    board.gpus[0].bubble_seq = 2  # training is at work, beside it
    released_ns = time.monotonic_ns()
    face = gate.fill_board().gpus[0]
    face.uuid, face.released, face.last_release_ns = uuid_of(0).encode(), 1, released_ns
    face.in_flight_ns = 1000
    gate.fill_board().gpus_used = 1
    time.sleep(0.5)
    stood = Standstill(agent_)
    time.sleep(0.2)
    gate.kill()
    stood.over()
    until(lambda: agent_.events("estimated"))
    [use] = agent_.records("bubble_use")
    seen_us = (stood.began_ns - released_ns) / 1000
    assert use["intrusion_us"] == pytest.approx(seen_us, abs=150_000)
    assert use["gpu_time_us"] == pytest.approx(seen_us, abs=150_000)


def test_a_training_that_waits_no_longer_has_no_fill_killed(
    agent_: RunningAgent, shims: list[FakeShim]
) -> None:
    gate = gate_beside(agent_, shims)
    stood = Standstill(agent_)
    shims[0].connect(agent_.settings.socket_path)
    shims[0].peer.send("rescue", uuid=uuid_of(0), bytes=GIB)
    shims[0].peer.socket.close()
    stood.over()
    time.sleep(0.3)
    assert gate.process.poll() is None
    assert agent_.events("evicted") == agent_.events("rescue") == []


def test_a_fills_process_that_nobody_answered_may_attach_yet(
    agent_: RunningAgent, gpus: BlindGpus, shims: list[FakeShim]
) -> None:
    gate_beside(agent_, shims)
    stood = Standstill(agent_)
    late = FakeShim(2)
    shims.append(late)
    gpus.on_gpu[uuid_of(0)] = [GpuProcess(late.process.pid, GIB)]
    stood.over()
    time.sleep(0.6)  # a gate asks again every half second
    assert late.process.poll() is None
    assert late.attach(agent_, role="gate").verb == "gate"


def test_gates_stay_shut_until_somebody_has_looked_at_the_gpu_again(
    agent_: RunningAgent, gpus: BlindGpus, shims: list[FakeShim]
) -> None:
    gate = gate_beside(agent_, shims)
    page = gate.pages[uuid_of(0)]
    until(lambda: page.view.fills[0].allowed)
    stood = Standstill(agent_)
    beats = page.view.heartbeat
    gpus.may_answer.clear()
    # What the heartbeat makes valid again is shut already.
    until(lambda: page.view.heartbeat > beats + 25 or agent_.events("stood_still"), 10)
    assert not page.view.fills[0].allowed
    stood.over()
    time.sleep(0.3)
    assert (page.view.fills[0].allowed, page.view.fills[0].reason) == (0, Closed.UNKNOWN)
    gpus.may_answer.set()
    until(lambda: page.view.fills[0].allowed)


def test_a_fill_whose_prolog_gave_up_is_not_admitted(
    agent_: RunningAgent, shims: list[FakeShim]
) -> None:
    host_begins(agent_, 1)
    shims.append(train(agent_, 1))
    stood = Standstill(agent_)
    begin_and_hang_up(agent_, 2, "fill")
    stood.over()
    assert agent_.agent.node.jobs.fills == {}
    assert agent_.slurm("step", job_id=2).verb == "refused"


def test_a_training_that_went_on_without_an_answer_does_not_come_to_share_by_mps(
    tmp_path: Path,
) -> None:
    settings = settings_for(tmp_path, share="mps", mps_for="any", mps_program="/bin/true")
    with running(settings) as started:
        stood = Standstill(started)
        begin_and_hang_up(started, 1, "host")
        stood.over()
        host = started.agent.node.jobs.hosts[1]
        assert host.share_mode == ShareMode.TIMESLICE
        assert host.share_reason == "the agent did not answer its prolog in time"


def test_a_time_that_cannot_be_is_not_believed(agent_: RunningAgent) -> None:
    for job_id, wrong_us in ((1, 5), (2, time.time_ns() // 1000 + 3600 * 1_000_000)):
        before_us = time.time_ns() // 1000
        agent_.slurm(
            "job_begin", job_id=job_id, user_id=0, user="a", kind="host", gpus="0", at_us=wrong_us
        )
        started_us = agent_.agent.node.jobs.hosts[job_id].started_at_us
        assert before_us <= started_us <= time.time_ns() // 1000


def test_a_suspended_machine_is_a_standstill_that_the_loops_own_clock_does_not_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    suspended_s = [0]
    monkeypatch.setattr(agent.standstill, "_suspended_ns", lambda: suspended_s[0] * SECOND_NS)
    seen: list[float] = []
    loop = MainLoop()
    loop.on_stood = lambda stood: seen.append(stood.seconds)
    loop.look()
    suspended_s[0] = 30
    loop.look()
    loop.look()
    assert seen == [pytest.approx(30, abs=0.5)]
    assert loop.woke_ns > 0


def test_cost_is_a_part_of_the_time_that_the_job_turned_out_to_have(tmp_path: Path) -> None:
    job = HostJob(1, 0, "a", "", HostMode.ON, "", ["GPU-a"], None, 0.01, started_at_us=1_000_000)
    job.calibrated_us, job.calibrated_slowdown = (
        100_000,
        0.002,
    )  # of 50 s, half of them a standstill
    job.ends(11_000_000)
    assert job.calibrated_slowdown == pytest.approx(0.01)


def test_who_asked_is_known_when_he_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Before Linux 6.5 a socket does not give its peer's pidfd.
    monkeypatch.setattr(agent.processes, "_SO_PEERPIDFD", 9999)
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        ask = f"import socket; socket.socket(1, socket.SOCK_SEQPACKET).connect({path!r})"
        subprocess.run([sys.executable, "-c", ask], check=True)
        connection, _ = listener.accept()
        with connection:
            process = WatchedProcess.of_peer(connection)
    assert (process.user_id, process.alive()) == (0, False)
