"""Reports over HTTP: what they carry, and that no batch is lost or sent without need."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.board import TrainingBoard
from agent.clock import now_ns
from db.wire import munge
from db.wire.messages import Report, ReportAnswer
from tests.unit.agent_peers import (
    FakeGpus,
    FakeShim,
    fill_begins,
    host_begins,
    running,
    settings_for,
    train,
    until,
    uuid_of,
)
from tests.unit.test_agent_restart import write_use


def tell_bubble(board: TrainingBoard) -> None:
    """A bubble of 2 ms that is over, and that began after the training attached."""
    threading.Event().wait(0.01)
    now = now_ns()
    bubble = board.bubbles[board.bubble_head]
    bubble.seq, bubble.begin_ns, bubble.end_ns = 1, now - 3_000_000, now - 1_000_000
    board.bubble_head += 1


class Controller:
    """Takes reports in as sfillctld does; `answers` False: every report fails."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.stored: dict[int, list[Any]] = {}
        self.answers = True
        self.lose_answers = 0
        self.off = False
        self.requeued: list[int] = []
        self.credentials: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer = outer.take(self.path, body, self.headers["Authorization"])
                self.send_response(status)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, path: str, body: bytes, authorization: str) -> tuple[int, bytes]:
        if not self.answers or path != "/v1/report":
            return 503, b"away"
        assert authorization == f"Munge of {hashlib.sha256(body).hexdigest()}"
        report = Report.model_validate_json(body)
        self.reports.append(report)
        if report.batch is not None:
            highest = max(self.stored, default=0)
            assert report.batch.sequence <= highest + 1
            self.stored.setdefault(report.batch.sequence, list(report.batch.records))
        if self.lose_answers:
            self.lose_answers -= 1
            return 500, b"lost"
        answer = ReportAnswer(
            accepted_sequence=max(self.stored, default=0), off=self.off, requeued=self.requeued
        )
        return 200, answer.model_dump_json().encode()

    def records(self, kind: str) -> list[Any]:
        return [each for batch in list(self.stored.values()) for each in batch if each.kind == kind]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Iterator[Controller]:
    def encode(payload: bytes, socket: str | None = None) -> str:
        return f"of {payload.decode()}"

    monkeypatch.setattr(munge, "encode", encode)
    started = Controller()
    yield started
    started.close()


def test_report_shows_the_node_and_changes_are_told_at_once(
    tmp_path: Path, controller: Controller, shims: list[FakeShim]
) -> None:
    settings = settings_for(tmp_path, controller_url=controller.url, report_interval_s=5)
    with running(settings, FakeGpus(2)) as agent:
        until(lambda: controller.reports)
        first = controller.reports[0]
        assert (first.node, first.twin, first.fill_jobs, first.off) == ("n1", "f1", [], False)
        assert [gpu.lendable_slots for gpu in first.gpus] == [0, 0]
        host_begins(agent, 1, spec="on,mem=10G")
        shims.append(train(agent, 1))
        until(lambda: controller.reports[-1].gpus[0].lendable_slots == 10, 1)
        fill_begins(agent, 2, "mem=3G")
        until(lambda: controller.reports[-1].fill_jobs == [2], 1)
        gpu = controller.reports[-1].gpus[0]
        assert (gpu.used_slots, gpu.lendable_slots, gpu.host_job_id) == (3, 7, 1)


def test_records_arrive_once_over_failures_and_a_restart(
    tmp_path: Path, controller: Controller, shims: list[FakeShim]
) -> None:
    settings = settings_for(
        tmp_path, controller_url=controller.url, report_interval_s=0.05, window_s=1
    )
    with running(settings) as agent:
        host_begins(agent, 1)
        training = train(agent, 1)
        fill_begins(agent, 2)
        gate = FakeShim(2)
        shims += [training, gate]
        gate.attach(agent, role="gate")
        board_id = training.training_board().head.board_id
        write_use(gate, board_id)
        controller.lose_answers = 2
        until(lambda: len(controller.records("bubble_use")) == 1)
        controller.answers = False
        write_use(gate, board_id)
        write_use(gate, board_id)
    controller.answers = True
    with running(settings):
        until(lambda: len(controller.records("bubble_use")) == 3)
    assert sorted(each.bubble_seq for each in controller.records("bubble_use")) == [1, 3, 5]
    assert list(controller.stored) == list(range(1, len(controller.stored) + 1))
    uses = [each for each in controller.records("window") if each.fill_job_id == 2]
    assert sum(each.used_bubbles for each in uses) == 3
    assert sum(each.gpu_time_us for each in uses) == pytest.approx(3000)
    assert sum(each.kernels for each in uses) == 9
    use = controller.records("bubble_use")[0]
    assert (use.gpu, use.host_job_id, use.host_step, use.fill_job_id) == (uuid_of(0), 1, "0", 2)
    assert use.bubble_us == pytest.approx(2000, rel=0.1)
    assert use.intrusion_us == 7
    assert use.cause == "host"


def test_windows_carry_the_bubble_time_of_the_training(
    tmp_path: Path, controller: Controller, shims: list[FakeShim]
) -> None:
    settings = settings_for(
        tmp_path, controller_url=controller.url, report_interval_s=0.05, window_s=1
    )
    with running(settings) as agent:
        host_begins(agent, 1, spec="observe")
        training = train(agent, 1)
        shims.append(training)
        board = training.training_board()
        for _ in range(20):
            tell_bubble(board)
        until(lambda: sum(each.bubbles for each in controller.records("window")) == 20)
    rows = controller.records("window")
    assert sum(each.bubble_us for each in rows) == pytest.approx(40_000)
    assert all(each.fill_job_id is None and each.host_job_id == 1 for each in rows)
    assert controller.records("host_job")[-1].bubble_us == pytest.approx(40_000)


def test_controllers_off_and_requeue_are_taken_in(
    tmp_path: Path, controller: Controller, shims: list[FakeShim]
) -> None:
    settings = settings_for(tmp_path, controller_url=controller.url, report_interval_s=0.05)
    with running(settings) as agent:
        host_begins(agent, 1)
        shims.append(train(agent, 1))
        fill_begins(agent, 2)
        controller.off = True
        until(lambda: agent.agent.node.off)
        assert "off" in fill_begins(agent, 3).get("reason")
        controller.off = False
        until(lambda: not agent.agent.node.off)
        agent.slurm("job_end", job_id=1)
        until(lambda: controller.reports[-1].requeue == [2])
        controller.requeued = [2]
        until(lambda: controller.reports[-1].requeue == [])


def test_full_spool_stops_filling_and_leaves_training_alone(
    tmp_path: Path, shims: list[FakeShim]
) -> None:
    settings = settings_for(tmp_path, spool_max_bytes=64 << 10)
    with running(settings) as agent:
        host_begins(agent, 1)
        training = train(agent, 1)
        fill_begins(agent, 2)
        gate = FakeShim(2)
        shims += [training, gate]
        gate.attach(agent, role="gate")
        gate.take_pushes(0.1)
        page = gate.pages[uuid_of(0)]
        until(lambda: page.view.fills[0].allowed)
        big = json.dumps({"kind": "event", "at_us": 1, "what": "x", "text": "y" * 60_000})
        agent.agent.node.ledger.add_text(big)
        agent.agent.node.ledger.add_text(big)
        until(lambda: not page.view.fills[0].allowed)
        assert "spool" in fill_begins(agent, 3).get("reason")
        assert training.process.poll() is None
        assert len(agent.agent.node.trainings) == 1


def test_ended_host_job_has_all_its_bubbles_in_its_last_record(
    tmp_path: Path, controller: Controller, shims: list[FakeShim]
) -> None:
    settings = settings_for(tmp_path, controller_url=controller.url, report_interval_s=0.05)
    with running(settings) as agent:
        host_begins(agent, 1, spec="observe")
        training = train(agent, 1)
        shims.append(training)
        tell_bubble(training.training_board())
        agent.slurm("job_end", job_id=1)
        until(lambda: [each for each in controller.records("host_job") if each.ended_at_us])
    assert controller.records("host_job")[-1].bubble_us == pytest.approx(2000)
    assert sum(each.bubbles for each in controller.records("window")) == 1


@pytest.mark.parametrize("first", ["the process", "the job"])
def test_ended_fill_has_all_its_uses_in_windows_at_once_each_start_for_itself(
    tmp_path: Path, controller: Controller, shims: list[FakeShim], first: str
) -> None:
    def rows() -> list[Any]:
        return [each for each in controller.records("window") if each.fill_job_id == 2]

    settings = settings_for(
        tmp_path, controller_url=controller.url, report_interval_s=0.05, window_s=60
    )
    with running(settings) as agent:
        host_begins(agent, 1)
        training = train(agent, 1)
        shims.append(training)
        board_id = training.training_board().head.board_id
        for start in (1, 2):
            fill_begins(agent, 2, restart_count=start)
            gate = FakeShim(2)
            shims.append(gate)
            gate.attach(agent, role="gate")
            write_use(gate, board_id)
            if first == "the process":
                gate.kill()
                until(lambda: not agent.agent.node.fills)
                assert len(rows()) == start - 1  # it may have others
                agent.slurm("job_end", job_id=2)
            else:
                agent.slurm("job_end", job_id=2)
                write_use(gate, board_id)
                gate.kill()
            until(lambda: len(rows()) == start)  # noqa: B023 - waits here
        assert training.process.poll() is None
        [first_row, second_row] = rows()
    uses = 1 if first == "the process" else 2
    assert (first_row.used_bubbles, second_row.used_bubbles) == (uses, uses)
    # One that began with the window as well would replace the first in the database.
    assert second_row.began_at_us >= first_row.began_at_us + first_row.window_us
