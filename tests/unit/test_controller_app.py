"""Only root and SlurmUser are heard, a node only for itself, and nothing is lost on the way."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from sqlalchemy import func, select
from werkzeug.test import TestResponse

from db.engine import Database
from db.models import BubbleUse, Event
from db.wire import munge
from db.wire.messages import Report, ReportAnswer, SwitchRequest
from slurm_plugin.cluster.interface import Job
from slurm_plugin.controller.app import make_app
from slurm_plugin.controller.service import Controller
from slurm_plugin.settings import ControllerSettings
from tests.unit.fake_slurm import FakeSlurm
from tests.unit.ledger_records import bubble_use, fill_job, gpu, host_job, report
from tests.unit.munge_daemon import munge_socket

__all__ = ["munge_socket"]


class Bench:
    """A controller, its HTTP interface and a Slurm in memory; no thread runs."""

    def __init__(self, folder: Path, munge_socket: str, **values: object) -> None:
        self.socket = munge_socket
        self.slurm = FakeSlurm.with_twins("f1", "f2")
        self.slurm.hosts = {"n1": ("127.0.0.1",), "n2": ("192.0.2.7",)}
        self.path = folder / "one.db"
        self.settings = ControllerSettings.model_validate(
            {
                "database_url": f"sqlite:///{self.path}",
                "munge_socket": munge_socket,
                "database_timeout_s": 0.05,
                "raise_after_s": 0,
                "slurm_user_id": os.getuid(),
            }
            | values
        )
        self.controller = Controller(self.settings, self.slurm)
        self.controller.store.open()
        self.http: FlaskClient = make_app(self.controller).test_client()

    def post(self, sent: Report, credential: str | None = None) -> TestResponse:
        body = sent.model_dump_json().encode()
        if credential is None:
            credential = self.sign(body)
        return self.http.post(
            "/v1/report", data=body, headers={"Authorization": f"Munge {credential}"}
        )

    def sign(self, body: bytes) -> str:
        return munge.encode(hashlib.sha256(body).hexdigest().encode(), self.socket)

    def answer(self, sent: Report) -> ReportAnswer:
        reply = self.post(sent)
        assert reply.status_code == 200, reply.text
        return ReportAnswer.model_validate_json(reply.data)

    def switch(self, off: bool, reason: str = "") -> TestResponse:
        message = SwitchRequest(off=off, by="anybody", reason=reason)
        return self.http.post(
            "/v1/switch", data=munge.encode(message.model_dump_json().encode(), self.socket)
        )

    def events(self) -> list[Event]:
        with Database(f"sqlite:///{self.path}").reading() as session:
            return list(session.scalars(select(Event)))


@pytest.fixture
def bench(tmp_path: Path, munge_socket: str) -> Iterator[Bench]:
    made = Bench(tmp_path, munge_socket)
    yield made
    made.controller.store.database.close()


def test_a_report_is_stored_and_acknowledged(bench: Bench) -> None:
    answer = bench.answer(report(1, [host_job(), fill_job(), bubble_use(1)]))
    assert answer == ReportAnswer(accepted_sequence=1, off=False)
    assert bench.answer(report(1, [bubble_use(1)])).accepted_sequence == 1
    with Database(f"sqlite:///{bench.path}").reading() as session:
        assert session.scalar(select(func.count()).select_from(BubbleUse)) == 1


def test_a_credential_counts_once_and_for_its_own_body_only(bench: Bench) -> None:
    sent = report()
    credential = bench.sign(sent.model_dump_json().encode())
    assert bench.post(sent, credential).status_code == 200
    replayed = bench.post(sent, credential)
    assert replayed.status_code == 401 and "eplayed" in replayed.json["error"]  # type: ignore[index]
    other = bench.post(report(off=True), bench.sign(b"another body"))
    assert other.status_code == 401 and "another body" in other.json["error"]  # type: ignore[index]


def test_without_credential_nobody_is_heard(bench: Bench) -> None:
    assert bench.http.post("/v1/report", data=b"{}").status_code == 401
    assert bench.http.post("/v1/switch", data=b"").status_code == 401
    assert bench.http.post("/v1/switch", data=b"MUNGE:nonsense").status_code == 401
    assert bench.post(report(), "nonsense").status_code == 401


def test_an_ordinary_user_is_refused(
    bench: Bench, munge_socket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = munge.decode

    def as_user(credential: str, socket: str | None = None) -> munge.Credential:
        found = real(credential, socket)
        return munge.Credential(1000, 1000, found.payload, found.host)

    monkeypatch.setattr(munge, "decode", as_user)
    reply = bench.switch(off=True)
    assert reply.status_code == 403 and "1000" in reply.json["error"]  # type: ignore[index]
    assert not bench.controller.store.off
    assert bench.post(report()).status_code == 403


def test_a_node_reports_only_for_itself(bench: Bench, tmp_path: Path, munge_socket: str) -> None:
    reply = bench.post(report(node="n2"))
    assert reply.status_code == 403
    assert "may not report for n2" in reply.json["error"]  # type: ignore[index]
    assert bench.post(report(node="n9")).status_code == 403  # a node that Slurm does not know
    here = munge.decode(munge.encode(b"", munge_socket), munge_socket).host
    (tmp_path / "other").mkdir()
    allowed = Bench(tmp_path / "other", munge_socket, node_addresses={"n2": [here]})
    assert allowed.post(report(node="n2")).status_code == 200


def test_addresses_that_are_known_hold_while_slurmctld_is_away(bench: Bench) -> None:
    bench.answer(report())
    bench.slurm.away = True
    bench.answer(report())
    assert bench.post(report(node="n2")).status_code == 403


def test_bad_input_gets_one_sentence(bench: Bench) -> None:
    body = b'{"node": "n1"}'
    reply = bench.http.post(
        "/v1/report", data=body, headers={"Authorization": f"Munge {bench.sign(body)}"}
    )
    assert reply.status_code == 400
    assert reply.json == {"error": "twin: Field required"}
    assert bench.http.get("/nowhere").status_code == 404


def test_off_holds_for_the_agents_at_once_and_over_a_restart(
    bench: Bench, munge_socket: str
) -> None:
    assert bench.switch(off=True, reason="maintenance").json == {"off": True}
    assert bench.answer(report()).off
    again = Controller(bench.settings, bench.slurm)
    assert again.store.off  # not yet read: fill fails closed
    assert again.store.open() and again.store.off
    assert bench.switch(off=False).json == {"off": False}
    assert not bench.answer(report()).off
    off, on = bench.events()
    assert (off.what, on.what) == ("off", "on")
    assert "maintenance" in off.text and f"uid {os.getuid()}" in off.text


def test_with_the_database_locked_supply_goes_on_and_nothing_is_acknowledged(bench: Bench) -> None:
    bench.answer(report(1, [bubble_use(1)]))
    other = sqlite3.connect(bench.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    lent = gpu(host_job_id=1, host_mode="on", lendable_slots=6)
    assert bench.answer(report(2, [bubble_use(2)], gpus=[lent])).accepted_sequence == 1
    bench.controller.publisher.round()
    assert bench.slurm.nodes["f1"].count == 6
    assert not bench.http.get("/v1/health").json["database"]  # type: ignore[index]
    other.execute("ROLLBACK")
    other.close()
    bench.controller.store._retry_at_s = 0.0
    assert bench.answer(report(2, [bubble_use(2)], gpus=[lent])).accepted_sequence == 2


def remove_database(bench: Bench) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{bench.path}{suffix}").unlink(missing_ok=True)


def test_a_database_that_is_deleted_is_made_anew_and_what_is_acknowledged_is_in_it(
    bench: Bench,
) -> None:
    assert bench.answer(report(1, [bubble_use(1)])).accepted_sequence == 1
    remove_database(bench)
    # A writer takes its time where the machine is busy: the batch is sent again until it counts.
    while bench.answer(report(2, [bubble_use(2)])).accepted_sequence < 2:
        pass
    with Database(f"sqlite:///{bench.path}", read_only=True).reading() as session:
        assert session.scalar(select(func.count()).select_from(BubbleUse)) == 1
    (lost,) = bench.events()
    assert lost.what == "lost" and "batches 1 to 1 " in lost.text
    assert bench.http.get("/v1/health").json["database"]  # type: ignore[index]


def test_the_switch_outlives_the_database(bench: Bench, munge_socket: str) -> None:
    assert bench.switch(off=True).json == {"off": True}
    remove_database(bench)
    while bench.answer(report(1, [bubble_use(1)])).accepted_sequence < 1:
        pass
    again = Controller(bench.settings, bench.slurm)
    assert again.store.open() and again.store.off
    assert [event.what for event in bench.events()] == ["off"]
    remove_database(bench)
    assert bench.switch(off=False).json == {"off": False}
    assert not bench.answer(report()).off


def test_off_holds_even_when_it_cannot_be_stored_and_on_does_not(bench: Bench) -> None:
    other = sqlite3.connect(bench.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    reply = bench.switch(off=True)
    assert reply.status_code == 503 and "filling is off" in reply.json["error"]  # type: ignore[index]
    assert bench.controller.store.off
    bench.controller.store._retry_at_s = 0.0
    assert bench.switch(off=False).status_code == 503
    assert bench.controller.store.off
    other.execute("ROLLBACK")
    other.close()


def test_evicted_jobs_are_requeued_and_the_agent_is_told(bench: Bench) -> None:
    bench.slurm.jobs[20] = Job(20, "RUNNING", batch=True, requeue=True)
    assert bench.answer(report(requeue=[20])).requeued == []
    bench.controller.requeuer.step()
    assert bench.answer(report(requeue=[20])).requeued == [20]


def test_health_and_metrics_say_what_is_lent(bench: Bench) -> None:
    bench.answer(report(gpus=[gpu(host_job_id=1, host_mode="on", lendable_slots=6)]))
    bench.controller.publisher.round()
    bench.controller.publisher.round()
    health = bench.http.get("/v1/health").json
    assert health is not None
    assert health["database"] and health["slurm"] and health["nodes"] == 1
    text = bench.http.get("/metrics").text
    assert 'sfill_twin_slots{twin="f1"} 6' in text
    assert 'sfill_gpu_lendable_slots{node="n1",gpu="GPU-a"} 6' in text
    assert all(line.startswith(("#", "sfill_")) for line in text.splitlines())


def test_ended_jobs_get_their_figures_as_a_comment(bench: Bench) -> None:
    ended = fill_job(ended_at_us=1_900_000_000_000_000, end_reason="done")
    host = host_job(
        ended_at_us=1_900_000_000_000_000,
        bubble_us=40_000_000,
        filled_us=10_000_000,
        calibrated_slowdown=0.004,
    )
    bench.answer(report(1, [host, ended]))
    comments = bench.controller.comments
    comments.step()
    assert bench.slurm.comments == {}  # the last window may still come
    comments._waiting = dict.fromkeys(comments._waiting, (0.0, 0))
    comments.step()
    assert bench.slurm.comments[10] == (
        '{"sfill":{"role":"host","mode":"on","bubble_share":0.4,"filled_share":0.25,'
        '"intrusion":0.0,"slowdown":0.004}}'
    )
    assert '"role":"fill","starts":1' in bench.slurm.comments[20]
    comments.step()
    assert len(bench.slurm.done("set_admin_comment")) == 2


def test_of_a_job_that_nobody_watched_the_comment_claims_no_bubbles(bench: Bench) -> None:
    bench.answer(report(1, [host_job(ended_at_us=1_900_000_000_000_000, watched_us=0)]))
    comments = bench.controller.comments
    comments._waiting = dict.fromkeys(comments._waiting, (0.0, 0))
    comments.step()
    assert '"bubble_share":null' in bench.slurm.comments[10]


def test_without_accounting_no_comment_is_tried(bench: Bench) -> None:
    bench.slurm.accounting = False
    bench.answer(report(1, [fill_job(ended_at_us=5)]))
    comments = bench.controller.comments
    comments._waiting = dict.fromkeys(comments._waiting, (0.0, 0))
    comments.step()
    assert bench.slurm.done("set_admin_comment") == [] and comments._waiting == {}


def test_a_locked_database_holds_up_no_answer_and_its_batch_is_stored_once(
    tmp_path: Path, munge_socket: str
) -> None:
    bench = Bench(tmp_path, munge_socket, database_timeout_s=5.0)
    sent = report(1, [bubble_use(1)])
    lock = sqlite3.connect(bench.path, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    answers = [bench.answer(sent) for _ in range(3)]
    assert time.monotonic() - began < 1.0
    assert [answer.accepted_sequence for answer in answers] == [0, 0, 0]
    bench.controller.store._off = True
    assert bench.answer(sent).off
    lock.execute("ROLLBACK")
    lock.close()
    while bench.answer(sent).accepted_sequence < 1:
        assert time.monotonic() - began < 10
    bench.controller.stop()
    with Database(f"sqlite:///{bench.path}").reading() as session:
        assert session.scalar(select(func.count()).select_from(BubbleUse)) == 1


def test_a_thread_goes_on_after_an_unforeseen_error_and_health_tells_of_it(
    tmp_path: Path, munge_socket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, munge_socket)
    step, errors = bench.controller.requeuer.step, [ValueError("one"), ValueError("one")]

    def failing() -> None:
        if errors:
            raise errors.pop()
        step()

    monkeypatch.setattr(bench.controller.requeuer, "step", failing)
    bench.controller.start()
    try:
        bench.slurm.jobs[20] = Job(20, "RUNNING", batch=True, requeue=True, nodes=("f1",))
        bench.controller.requeuer.want("n1", "f1", [20])
        end = time.monotonic() + 10
        while not bench.slurm.done("requeue") and time.monotonic() < end:
            time.sleep(0.05)
    finally:
        bench.controller.stop()
    assert bench.slurm.done("requeue") == [("requeue", 20)]
    health = bench.http.get("/v1/health").json
    assert health is not None and health["faults"] == [
        "requeue: an error of sfillctld's: ValueError('one')"
    ]
