"""Boards are written by users' processes: whatever stands there, others are not concerned."""

from __future__ import annotations

import logging
import mmap
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.attachments import Training
from agent.clock import now_ns
from db.wire.messages import Report
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

DAY_NS = 24 * 3600 * 1_000_000_000


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RunningAgent]:
    with running(settings_for(tmp_path), FakeGpus(2)) as started:
        yield started


def gate_of(agent: RunningAgent, job_id: int) -> FakeShim:
    gate = FakeShim(job_id)
    assert gate.attach(agent, role="gate").verb == "gate"
    return gate


def write_use(gate: FakeShim, board_id: int, *, gpu: int = 0, claimed_ns: int = 1000) -> None:
    board = gate.fill_board()
    use = board.uses[board.use_head % len(board.uses)]
    use.host_board_id = board_id
    use.first_release_ns = use.bubble_begin_ns = now_ns()
    use.last_done_ns = use.bubble_end_ns = now_ns() + DAY_NS
    use.gpu_time_ns = use.intrusion_ns = claimed_ns
    use.kernels = 1
    use.gpu = gpu
    board.use_head += 1


def test_a_board_keeps_the_id_it_was_given(agent: RunningAgent, shims: list[FakeShim]) -> None:
    host_begins(agent, 1)
    training = train(agent, 1)
    shims.append(training)
    given = int(training.training_board().head.board_id)
    training.training_board().head.board_id = given + 7
    fill_begins(agent, 2)
    gate = gate_of(agent, 2)
    shims.append(gate)
    gate.take_pushes()
    assert list(gate.boards) == [str(given)]
    assert list(agent.agent.node.trainings) == [given]
    page = gate.pages[uuid_of(0)].view
    assert list(page.boards[: page.boards_count]) == [given]


def test_sections_that_change_for_ever_grow_nothing(
    agent: RunningAgent, shims: list[FakeShim]
) -> None:
    host_begins(agent, 1)
    training = train(agent, 1)
    shims.append(training)
    board = training.training_board()
    board.gpus_used = 3
    [attached] = agent.agent.node.trainings.values()
    for turn in range(20):  # read at every step of the way: one section first, then two others
        board.gpus[1].uuid = f"GPU-{turn}-1".encode()
        board.gpus[2].uuid = f"GPU-{turn}-2".encode() if turn else b""
        attached.read_sections()
    assert len(attached.sections) <= 3


def test_a_training_that_names_the_gpu_of_another_job_does_not_count_there(
    agent: RunningAgent, shims: list[FakeShim]
) -> None:
    host_begins(agent, 1, gpus="0")
    shims.append(train(agent, 1, minor=0))
    host_begins(agent, 2, gpus="1")
    stranger = train(agent, 2, minor=1)
    shims.append(stranger)
    stranger.peer.send("gpu", uuid=uuid_of(0))
    until(lambda: any(uuid_of(0) in each.gpus for each in list_of(agent, 2)))
    node = agent.agent.node
    assert [each.job.job_id for each in node.trainings_on(uuid_of(0))] == [1]
    assert [each.job.job_id for each in node.trainings_on(uuid_of(1))] == [2]


def list_of(agent: RunningAgent, job_id: int) -> list[Training]:
    return [each for each in agent.agent.node.trainings.values() if each.job.job_id == job_id]


def test_a_fill_books_on_nobody_but_its_host(agent: RunningAgent, shims: list[FakeShim]) -> None:
    host_begins(agent, 1, gpus="0")
    first = train(agent, 1, minor=0)
    host_begins(agent, 2, gpus="1", spec="observe")
    second = train(agent, 2, minor=1)
    fill_begins(agent, 3)
    gate = gate_of(agent, 3)
    shims += [first, second, gate]
    write_use(gate, int(second.training_board().head.board_id))
    write_use(gate, 12345)
    until(lambda: len(agent.records("bubble_use")) == 2)
    gate.fill_board().gpus[1].uuid = uuid_of(1).encode()
    write_use(gate, int(second.training_board().head.board_id), gpu=1)
    write_use(gate, int(first.training_board().head.board_id), gpu=99)
    write_use(gate, int(first.training_board().head.board_id))
    until(lambda: len(agent.records("bubble_use")) == 3)
    booked = {(use["host_job_id"], use["gpu"]) for use in agent.records("bubble_use")}
    assert booked == {(1, uuid_of(0))}


def test_a_fill_can_claim_no_more_time_than_it_was_there(
    agent: RunningAgent, shims: list[FakeShim]
) -> None:
    began = now_ns()
    host_begins(agent, 1)
    training = train(agent, 1)
    fill_begins(agent, 2)
    gate = gate_of(agent, 2)
    shims += [training, gate]
    for _ in range(100):
        write_use(gate, int(training.training_board().head.board_id), claimed_ns=1 << 63)
    until(lambda: len(agent.records("bubble_use")) == 100)
    passed_us = (now_ns() - began) / 1000
    for what in ("gpu_time_us", "intrusion_us"):
        assert 0 <= sum(use[what] for use in agent.records("bubble_use")) <= passed_us
    assert agent.agent.node.jobs.hosts[1].intrusion_us <= passed_us


@pytest.mark.parametrize("made_up", [0, (1 << 64) - 1, "another's", "the next"])
def test_who_attaches_again_cannot_choose_an_id(
    agent: RunningAgent, shims: list[FakeShim], made_up: int | str
) -> None:
    host_begins(agent, 1, gpus="0")
    first = train(agent, 1, minor=0)
    host_begins(agent, 2, gpus="1")
    second = train(agent, 2, minor=1)
    shims += [first, second]
    others = int(first.training_board().head.board_id)
    number = {"another's": others, "the next": others + 2}.get(str(made_up), made_up)
    second.training_board().head.board_id = number
    answer = second.attach(agent, again=True)
    assert answer.verb == "monitor"
    assert int(answer.get("board_id")) not in (0, others, (1 << 64) - 1)
    assert os.fstat(first.descriptor).st_size == os.fstat(second.descriptor).st_size
    until(lambda: len(agent.agent.node.trainings) == 2)
    assert sorted(each.job.job_id for each in agent.agent.node.trainings.values()) == [1, 2]


@pytest.mark.parametrize("role", ["training", "fill"])
def test_random_bytes_in_a_board_bring_up_no_error_and_leave_others_alone(
    agent: RunningAgent,
    shims: list[FakeShim],
    role: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    host_begins(agent, 1, gpus="0")
    noisy = train(agent, 1, minor=0)
    host_begins(agent, 2, gpus="1")
    quiet = train(agent, 2, minor=1)
    fill_begins(agent, 3, spec="mem=2G")
    fill_begins(agent, 4, spec="mem=2G")
    gates = [gate_of(agent, 3), gate_of(agent, 4)]
    shims += [noisy, quiet, *gates]
    fills = agent.agent.node.jobs.fills
    beside_noisy = gates[0] if fills[3].gpu == uuid_of(0) else gates[1]
    beside_quiet = gates[1] if beside_noisy is gates[0] else gates[0]
    beside_quiet.take_pushes(0.1)
    page = beside_quiet.pages[uuid_of(1)]
    until(lambda: page.view.fills[0].allowed)

    source = random.Random(1)
    target = noisy if role == "training" else beside_noisy
    with mmap.mmap(target.descriptor, os.fstat(target.descriptor).st_size) as board:
        for turn in range(60):
            board[:] = source.randbytes(len(board)) if turn % 2 else bytes(len(board))
            time.sleep(0.01)
    until(lambda: page.view.fills[0].allowed and page.view.boards_count == 1)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []
    assert {use["host_job_id"] for use in agent.records("bubble_use")} <= {1}
    for record in agent.records("window"):
        assert 0 <= record["bubble_us"] <= record["window_us"] + 1
    assert agent.agent._report is not None
    Report.model_validate_json(agent.agent._report.model_dump_json())
