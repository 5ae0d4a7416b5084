"""No unforeseen error ends a timer of the agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.eviction import Eviction
from agent.job_of_process import JobFinder
from agent.mps import Mps
from agent.node import Node
from agent.slurm_verbs import SlurmVerbs
from agent.standstill import MainLoop, Standstill
from agent.timers import every
from tests.unit.agent_peers import (
    fill_begins,
    gate_on_gpu,
    host_begins,
    running,
    settings_for,
    train,
    until,
)


class Failing:
    """Takes a function's place for so many calls, then lets it do its work."""

    def __init__(self, calls: int, function: Callable[..., object]) -> None:
        self.left = calls
        self._function = function

    def __call__(self, *arguments: object) -> object:
        if self.left:
            self.left -= 1
            raise RuntimeError("nobody foresaw this")
        return self._function(*arguments)


def test_a_turn_that_fails_is_followed_by_the_next() -> None:
    turns: list[str] = []

    def plain() -> None:
        turns.append("plain")
        raise RuntimeError

    async def waiting() -> None:
        await asyncio.sleep(0)
        turns.append("waiting")
        raise RuntimeError

    async def both() -> None:
        timers = [asyncio.create_task(every(0.001, turn)) for turn in (plain, waiting)]
        await asyncio.sleep(0)
        assert turns == []  # not at once
        while min(turns.count("plain"), turns.count("waiting")) < 3:
            await asyncio.sleep(0.001)
        for timer in timers:
            timer.cancel()

    asyncio.run(asyncio.wait_for(both(), 5))


@pytest.mark.parametrize(
    ("kind", "function"), [(JobFinder, "processes_of_jobs"), (SlurmVerbs, "give_up")]
)
def test_jobs_are_given_up_though_a_look_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type, function: str
) -> None:
    failing = Failing(1, getattr(kind, function))
    monkeypatch.setattr(kind, function, lambda *arguments: failing(*arguments))
    with running(settings_for(tmp_path, forget_after_s=5)) as agent:
        host_begins(agent, 1)
        host_begins(agent, 2)
        until(lambda: not agent.agent.node.jobs.hosts, 20)
        assert failing.left == 0


def test_boards_are_read_though_a_tick_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(3, Node.read_boards)
    monkeypatch.setattr(Node, "read_boards", lambda node: failing(node))
    with running(settings_for(tmp_path)):
        until(lambda: failing.left == 0)


def test_mps_daemons_are_asked_though_a_look_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Mps] = []

    async def failing(mps: Mps) -> None:
        looks.append(mps)
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr("agent.mps.LOOK_S", 0.01)
    monkeypatch.setattr(Mps, "look", failing)
    with running(settings_for(tmp_path)):
        until(lambda: len(looks) > 2)


def test_a_fill_is_killed_though_its_first_signal_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(1, JobFinder.processes_of_jobs)
    settings = settings_for(tmp_path, evict_grace_s=0.2, evict_kill_s=0.2)
    with running(settings) as agent:
        host_begins(agent, 1)
        training = train(agent, 1)
        assert fill_begins(agent, 2).verb == "ok"
        gate = gate_on_gpu(agent, 2)
        monkeypatch.setattr(JobFinder, "processes_of_jobs", lambda finder: failing(finder))
        assert agent.slurm("job_end", job_id=1).verb == "ok"
        gate.process.wait(5)
        [event] = agent.events("killed")
        assert "SIGKILL" in event["text"]
        training.close()
        gate.close()


def test_an_epilog_is_answered_though_an_error_ended_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_: object) -> bool:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr(Eviction, "wait", failing)
    with running(settings_for(tmp_path)) as agent:
        host_begins(agent, 1)
        assert agent.slurm("job_end", job_id=1).verb == "ok"


def test_an_error_after_a_standstill_ends_no_turn_of_the_main_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Standstill] = []

    def failing(stood: Standstill) -> None:
        told.append(stood)
        raise RuntimeError("nobody foresaw this")

    loop = MainLoop()
    loop.on_stood = failing
    loop.look()
    monkeypatch.setattr("agent.standstill.now_ns", lambda: time.monotonic_ns() + 5_000_000_000)
    loop.look()
    assert len(told) == 1
