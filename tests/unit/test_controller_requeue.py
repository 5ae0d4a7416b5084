"""An evicted fill job goes back into the queue once, and soon starts elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from db.engine import Database
from db.models import Event
from db.schema import upgrade
from slurm_plugin.cluster.interface import Job
from slurm_plugin.controller.journal import Journal
from slurm_plugin.controller.requeue import CANCEL_REASON, NO_REQUEUE_REASON, Requeuer
from tests.unit.fake_slurm import FakeSlurm

RUNNING = Job(20, "RUNNING", batch=True, requeue=True, nodes=("f1",))


class Bench:
    def __init__(self, folder: Path) -> None:
        self.slurm = FakeSlurm(jobs={20: RUNNING})
        self.database = Database(f"sqlite:///{folder / 'one.db'}")
        upgrade(self.database)
        self.journal = Journal(self.database)
        self.requeuer = Requeuer(self.slurm, self.journal, delay_s=2)

    def state(self, state: str) -> None:
        self.slurm.jobs[20] = replace(self.slurm.jobs[20], state=state)

    def done(self) -> list[tuple[object, ...]]:
        return self.slurm.done("requeue", "start_after", "cancel")

    def events(self) -> list[str]:
        assert self.journal.store()
        with self.database.reading() as session:
            return [event.what for event in session.scalars(select(Event))]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_batch_fill_is_requeued_once_and_may_start_two_seconds_later(bench: Bench) -> None:
    assert bench.requeuer.want("n1", "f1", [20]) == []
    bench.requeuer.step()
    assert bench.requeuer.want("n1", "f1", [20]) == [20]
    bench.requeuer.step()  # its node is still being cleaned
    assert bench.done() == [("requeue", 20)]
    bench.state("PENDING")
    bench.requeuer.step()
    bench.requeuer.step()
    assert bench.done() == [("requeue", 20), ("start_after", 20, 2)]
    assert bench.requeuer.waiting == 0
    assert bench.events() == ["requeued"]


def test_the_agent_may_ask_as_often_as_it_likes(bench: Bench) -> None:
    for _ in range(5):
        bench.requeuer.want("n1", "f1", [20])
        bench.requeuer.step()
    assert bench.done() == [("requeue", 20)]


def test_a_second_eviction_of_the_same_job_is_a_new_one(bench: Bench) -> None:
    bench.requeuer.want("n1", "f1", [20])
    bench.requeuer.step()
    bench.state("PENDING")
    bench.requeuer.step()
    assert bench.requeuer.want("n1", "f1", []) == []
    bench.state("RUNNING")
    assert bench.requeuer.want("n1", "f1", [20]) == []
    bench.requeuer.step()
    assert bench.done().count(("requeue", 20)) == 2


def test_the_same_job_on_another_node_is_another_eviction(bench: Bench) -> None:
    bench.requeuer.want("n1", "f1", [20])
    bench.requeuer.step()
    bench.state("PENDING")
    bench.requeuer.step()
    bench.slurm.jobs[20] = replace(RUNNING, nodes=("f2", "f3"))
    bench.requeuer.want("n2", "f2", [20])
    bench.requeuer.step()
    assert bench.done().count(("requeue", 20)) == 2


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (replace(RUNNING, batch=False), CANCEL_REASON),
        (replace(RUNNING, requeue=False), NO_REQUEUE_REASON),
    ],
    ids=["srun", "no"],
)
def test_what_cannot_be_requeued_is_cancelled_with_a_reason(
    bench: Bench, job: Job, reason: str
) -> None:
    bench.slurm.jobs[20] = job
    bench.requeuer.want("n1", "f1", [20])
    bench.requeuer.step()
    assert bench.done() == [("cancel", 20, reason)]
    assert bench.requeuer.want("n1", "f1", [20]) == [20]
    assert bench.events() == ["cancelled"]


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "TIMEOUT"])
def test_a_job_that_has_ended_by_itself_is_left_alone(bench: Bench, state: str) -> None:
    bench.state(state)
    bench.requeuer.want("n1", "f1", [20])
    bench.requeuer.step()
    assert bench.done() == []
    assert bench.requeuer.want("n1", "f1", [20]) == [20]


def test_a_job_that_runs_elsewhere_by_now_is_left_alone(bench: Bench) -> None:
    bench.requeuer.want("n2", "f2", [20])
    bench.requeuer.step()
    assert bench.done() == []
    assert bench.requeuer.want("n2", "f2", [20]) == [20]


def test_a_job_that_slurm_forgot_is_dealt_with(bench: Bench) -> None:
    bench.requeuer.want("n1", "f1", [21])
    bench.requeuer.step()
    assert bench.requeuer.want("n1", "f1", [21]) == [21] and bench.done() == []


def test_a_job_that_is_pending_already_only_gets_its_time(bench: Bench) -> None:
    bench.state("PENDING")
    bench.requeuer.want("n1", "f1", [20])
    bench.requeuer.step()
    assert bench.done() == [("start_after", 20, 2)]


def test_a_job_that_is_just_completing_is_awaited(bench: Bench) -> None:
    bench.state("COMPLETING")
    bench.requeuer.want("n1", "f1", [20])
    bench.requeuer.step()
    assert bench.requeuer.want("n1", "f1", [20]) == [] and bench.done() == []
    bench.state("FAILED")
    bench.requeuer.step()
    assert bench.done() == [("requeue", 20)]


def test_without_slurmctld_it_is_tried_until_it_works(bench: Bench) -> None:
    bench.slurm.away = True
    bench.requeuer.want("n1", "f1", [20])
    for _ in range(3):
        bench.requeuer.step()
    assert bench.requeuer.want("n1", "f1", [20]) == []
    bench.slurm.away = False
    bench.requeuer.step()
    assert bench.requeuer.want("n1", "f1", [20]) == [20]
    assert bench.events() == ["requeue_trouble", "requeued"]


def test_a_job_that_cannot_be_read_keeps_no_other_waiting(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.slurm.jobs[21] = replace(RUNNING, job_id=21)
    read = bench.slurm.job

    def job(job_id: int) -> Job | None:
        if job_id == 20:
            raise ValueError("invalid literal")
        return read(job_id)

    monkeypatch.setattr(bench.slurm, "job", job)
    bench.requeuer.want("n1", "f1", [20, 21])
    bench.requeuer.step()
    bench.requeuer.step()
    assert bench.done() == [("requeue", 21)]
    assert bench.events() == ["requeue_trouble", "requeued"]


def test_fills_that_are_evicted_together_do_not_start_together(bench: Bench) -> None:
    pending = {n: replace(RUNNING, job_id=n, state="PENDING") for n in (20, 21, 22, 23)}
    bench.slurm.jobs = dict(pending)
    bench.requeuer.want("n1", "f1", [20, 21, 22])
    bench.requeuer.want("n2", "f2", [23])
    bench.requeuer.step()
    assert bench.done() == [
        ("start_after", 20, 2),
        ("start_after", 21, 5),
        ("start_after", 22, 8),
        ("start_after", 23, 2),
    ]
