"""What a fill that was killed leaves off the record is entered by estimate."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from agent.board import TrainingBoard, Use
from agent.drain import Drain
from tests.unit.agent_peers import (
    FakeShim,
    RunningAgent,
    fill_begins,
    host_begins,
    train,
    until,
    uuid_of,
)

MS = 1_000_000


def open_bubble(board: TrainingBoard, seq: int, begin_ns: int) -> None:
    section = board.gpus[0]
    section.bubble_begin_ns, section.bubble_cause, section.bubble_seq = begin_ns, 2, seq


def end_bubble(board: TrainingBoard, end_ns: int) -> None:
    section, record = board.gpus[0], board.bubbles[board.bubble_head % 1024]
    record.seq, record.begin_ns, record.end_ns = section.bubble_seq, section.bubble_begin_ns, end_ns
    record.cause = section.bubble_cause
    board.bubble_head += 1
    section.bubble_seq += 1


class Peers:
    """A training and a fill beside it."""

    def __init__(self, agent: RunningAgent) -> None:
        self.agent = agent
        host_begins(agent, 1)
        self.training = train(agent, 1)
        self.board = self.training.training_board()
        assert fill_begins(agent, 2).verb == "ok"
        self.gate = FakeShim(2)
        self.gate.attach(agent, role="gate")
        self.fill = self.gate.fill_board()
        self.fill.gpus[0].uuid = uuid_of(0).encode()
        self.fill.gpus_used = 1
        self.admitted_ns = time.monotonic_ns()

    def die(self) -> list[dict[str, Any]]:
        self.gate.kill()
        until(lambda: not self.agent.agent.node.fills)
        return self.agent.records("bubble_use")

    def close(self) -> None:
        self.training.close()
        self.gate.close()


@pytest.fixture
def peers(agent: RunningAgent) -> Iterator[Peers]:
    made = Peers(agent)
    yield made
    made.close()


def record_use(peers: Peers, kernels: int, first_ns: int, last_ns: int) -> None:
    use: Use = peers.fill.uses[peers.fill.use_head]
    [training] = peers.agent.agent.node.trainings
    use.host_board_id, use.bubble_seq, use.bubble_begin_ns = training, 1, first_ns
    use.first_release_ns, use.last_done_ns, use.kernels, use.cause = first_ns, last_ns, kernels, 1
    peers.fill.gpus[0].recorded += kernels
    peers.fill.use_head += 1


def test_operations_that_no_record_has_are_entered(peers: Peers) -> None:
    now = time.monotonic_ns()
    record_use(peers, 5, now - 9 * MS, now - 8 * MS)
    open_bubble(peers.board, 7, now - 2 * MS)
    face = peers.fill.gpus[0]
    face.released, face.last_release_ns, face.in_flight_ns = 8, now - MS, 0
    first, last = peers.die()
    assert first["kernels"] == 5
    assert (last["kernels"], last["bubble_seq"], last["cause"]) == (3, 7, "tail")
    assert last["used_us"] == pytest.approx(1000, abs=1)
    assert last["gpu_time_us"] == last["intrusion_us"] == 0  # nothing was in flight
    [event] = peers.agent.events("estimated")
    assert "3 operation(s)" in event["text"]


def test_gpu_time_that_was_measured_and_not_written_is_entered(peers: Peers) -> None:
    open_bubble(peers.board, 7, time.monotonic_ns() - 40 * MS)  # before the fill came
    time.sleep(0.05)  # nobody had the GPU for longer than he was there
    now = time.monotonic_ns()
    face = peers.fill.gpus[0]
    face.released, face.last_release_ns, face.open_gpu_ns = 8, now - MS, 38 * MS
    [use] = peers.die()
    assert use["gpu_time_us"] == pytest.approx(38_000)
    assert use["intrusion_us"] == 0
    assert "38.0 ms of GPU time" in peers.agent.events("estimated")[0]["text"]


def test_training_that_worked_before_the_last_work_was_done_is_taken_to_have_waited(
    peers: Peers,
) -> None:
    open_bubble(peers.board, 7, time.monotonic_ns())
    began = time.monotonic_ns()
    time.sleep(0.02)
    end_bubble(peers.board, began + 20 * MS)  # training is back, and busy from here on
    time.sleep(0.03)
    face = peers.fill.gpus[0]
    face.released, face.last_release_ns = 1, began
    face.open_gpu_ns, face.done_ns = 35 * MS, began + 45 * MS
    [use] = peers.die()
    assert use["gpu_time_us"] == pytest.approx(35_000)
    assert use["intrusion_us"] == pytest.approx(25_000, abs=1)


def test_nothing_is_entered_when_all_is_on_record(peers: Peers) -> None:
    now = time.monotonic_ns()
    record_use(peers, 5, now - 9 * MS, now - 8 * MS)
    face = peers.fill.gpus[0]
    face.released, face.last_release_ns = 5, now - 9 * MS
    assert len(peers.die()) == 1
    assert peers.agent.events("estimated") == []


def test_training_that_worked_beside_work_in_flight_is_taken_to_have_waited(peers: Peers) -> None:
    began = time.monotonic_ns()
    open_bubble(peers.board, 7, began)
    face = peers.fill.gpus[0]
    face.released, face.last_release_ns, face.in_flight_ns = 1, began, 500 * MS
    time.sleep(0.1)
    end_bubble(peers.board, time.monotonic_ns())  # training is back, and busy from here on
    time.sleep(0.1)
    [use] = peers.die()
    took_us = (time.monotonic_ns() - began) / 1000
    assert 190_000 < use["gpu_time_us"] <= took_us
    assert 95_000 < use["intrusion_us"] < took_us - 95_000
    assert use["bubble_us"] == pytest.approx(100_000, rel=0.5)
    assert peers.agent.agent.node.jobs.hosts[1].intrusion_us == pytest.approx(
        use["intrusion_us"], abs=1
    )


def test_work_that_ended_long_ago_is_not_charged_to_the_end(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was stopped does not see its work end: the estimate of its length bounds."""
    began = time.monotonic_ns()
    face = peers.fill.gpus[0]
    face.released, face.last_release_ns, face.in_flight_ns = 1, began, 2 * MS
    monkeypatch.setattr("agent.endless.is_stopped", lambda _: True)
    time.sleep(0.2)
    [use] = peers.die()
    assert use["gpu_time_us"] == use["intrusion_us"] == pytest.approx(3000, abs=1)


def test_absurd_numbers_of_a_board_are_entered_as_a_record_holds_them(peers: Peers) -> None:
    open_bubble(peers.board, (1 << 64) - 1, time.monotonic_ns())
    face = peers.fill.gpus[0]
    face.released, face.last_release_ns = 1 << 40, time.monotonic_ns()
    for name in ("in_flight_ns", "open_gpu_ns", "done_ns", "memory_bytes", "wait_ns"):
        setattr(face, name, (1 << 64) - 1)
    peers.fill.gpus_used = (1 << 32) - 1
    time.sleep(0.05)
    [use] = peers.die()
    assert use["kernels"] == (1 << 32) - 1
    assert use["bubble_seq"] < 1 << 63
    assert 0 <= use["gpu_time_us"] < 10_000_000
    assert peers.agent.events("unread") == []


@pytest.mark.parametrize("function", ["fill", "died", "gone"])
def test_a_process_whose_board_cannot_be_read_leaves_all_the_same(
    peers: Peers, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise ValueError("nobody foresaw this")

    node = peers.agent.agent.node
    processes = [each.process for each in node.attached]
    monkeypatch.setattr(Drain, function, failing)
    peers.gate.kill()
    peers.training.kill()
    until(lambda: not node.attached)
    assert [each.descriptor for each in processes] == [-1, -1]
    [event] = peers.agent.events("unread")
    assert "nobody foresaw this" in event["text"]
    began = time.monotonic()
    assert peers.agent.slurm("job_end", job_id=1).verb == "ok"
    assert time.monotonic() - began < 2


def test_records_that_a_fill_goes_on_losing_are_told_of_once_and_at_its_end(peers: Peers) -> None:
    [fill] = peers.agent.agent.node.fills.values()
    for _ in range(10):
        before = fill.lost
        peers.fill.use_head += 5000
        until(lambda before=before: fill.lost > before)  # type: ignore[misc]
    assert len(peers.agent.events("lost")) == 1
    peers.die()
    told = [int(event["text"].split()[0]) for event in peers.agent.events("lost")]
    assert len(told) == 2
    assert sum(told) == fill.lost
