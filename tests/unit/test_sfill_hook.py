"""sfill-hook, which prolog and epilog call: what it tells the agent, and that it never fails."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[2] / "slurm_plugin"
# Stands for scontrol, scancel and squeue: notes how it was called; squeue prints the file `job`.
STUB = """#!/bin/sh
here=$(dirname "$0")
echo "$(basename "$0") $*" >> "$here/calls"
[ "$1" != requeue ] || [ ! -e "$here/no-requeue" ] || exit 1
[ "$(basename "$0")" != squeue ] || cat "$here/job"
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = tmp_path_factory.mktemp("build")
    target = build / "spank/sfill-hook"
    command = ["make", "-s", "-C", str(PLUGIN / "spank"), f"BUILD={build}", str(target)]
    subprocess.run(command, check=True)
    return target


class Agent:
    """Listens as the agent does; answers every message alike, after a while."""

    def __init__(
        self, path: Path, answer: str | None, delay_s: float = 0.0, waits: int = 0
    ) -> None:
        self.messages: list[str] = []
        self._answer, self._delay_s, self._waits = answer, delay_s, waits
        self.silent_from = 1 << 30  # messages that are answered
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(str(path))
        self._socket.listen(8)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        kept = []  # a silent agent keeps its callers waiting
        while True:
            connection, _ = self._socket.accept()
            kept.append(connection)
            self.messages.append(connection.recv(4096).decode())
            for _ in range(self._waits):
                time.sleep(0.25)
                connection.send(b"wait")
            if self._answer is not None and len(self.messages) <= self.silent_from:
                time.sleep(self._delay_s)
                with contextlib.suppress(BrokenPipeError):  # it gave up waiting
                    connection.send(self._answer.encode())

    def message(self) -> tuple[str, dict[str, str]]:
        (text,) = self.messages
        verb, *lines = text.splitlines()
        keys = dict(line.split("=", 1) for line in lines)
        # By the clock of this machine, just now: whatever is sent later than said is noticed.
        assert 0 <= time.time() - int(keys.pop("at_us")) / 1e6 < 10
        return verb, keys


class Node:
    def __init__(self, folder: Path, hook: Path) -> None:
        self.folder, self.hook = folder, hook
        folder.mkdir(exist_ok=True)
        for name in ("scontrol", "scancel", "squeue"):
            (folder / name).write_text(STUB)
            (folder / name).chmod(0o755)
        (folder / "job").write_text("7   7   PENDING   1   \n")
        line = (
            f"required /lib/spank_fill.so socket={folder}/agent-%n.sock scontrol={folder}/scontrol"
        )
        (folder / "plugstack.conf").write_text(f"# spank_fill.so no=1\n{line} max_mem=64G\n")

    def agent(self, answer: str | None, delay_s: float = 0.0, waits: int = 0) -> Agent:
        return Agent(self.folder / "agent-n1.sock", answer, delay_s, waits)

    def run(self, verb: str, **variables: str) -> float:
        """Runs the hook as slurmd would; seconds it took."""
        environment = {
            "PATH": "/usr/bin:/bin",
            "SLURM_CONF": f"{self.folder}/slurm.conf",
            "SLURMD_NODENAME": "n1",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_UID": "1000",
            "SLURM_JOB_USER": "sfilluser1",
            "SLURM_JOB_PARTITION": "train",
            **variables,
        }
        began = time.monotonic()
        done = subprocess.run([self.hook, verb], env=environment, timeout=30)
        assert done.returncode == 0
        return time.monotonic() - began

    def record(self) -> str | None:
        file = self.folder / "jobs/7.n1"
        return file.read_text() if file.exists() else None

    def calls(self, last: str) -> list[str]:
        """Calls of the stubs, once one that begins with `last` is among them."""
        file, limit = self.folder / "calls", time.monotonic() + 10
        while time.monotonic() < limit:
            seen = file.read_text().splitlines() if file.exists() else []
            if any(call.startswith(last) for call in seen):
                return seen
            time.sleep(0.02)
        raise AssertionError(f"no call of {last}: {seen}")


@pytest.fixture
def node(tmp_path: Path, built: Path) -> Iterator[Node]:
    yield Node(tmp_path, built)


FILL = {"SLURM_JOB_PARTITION": "fill", "SPANK_FILL_SPEC": "mem=2048", "SPANK_FILL_BATCH": "1"}
HOST = {"SLURM_JOB_GPUS": "0,2", "SPANK_FILL_HOST_SPEC": "on,slowdown=0.50"}


def test_a_fill_is_told_with_its_canonical_spec(node: Node) -> None:
    agent = node.agent("ok")
    node.run("begin", **FILL, SLURM_JOB_RESTART_COUNT="3")
    verb, keys = agent.message()
    assert verb == "job_begin"
    assert keys == {
        "job_id": "7",
        "user_id": "1000",
        "user": "sfilluser1",
        "account": "",
        "node": "n1",
        "kind": "fill",
        "spec": "mem=2G",
        "gpus": "",
        "restart_count": "3",
        "batch": "1",
    }
    assert node.record() == "fill 1\n"
    assert not (node.folder / "calls").exists()


@pytest.mark.parametrize(
    ("variables", "kind", "spec", "gpus"),
    [
        (HOST, "host", "on,slowdown=0.5%", "0,2"),
        ({"SLURM_JOB_GPUS": "1"}, "host", "", "1"),
        ({}, "other", "", ""),
        ({"SPANK_FILL_HOST_SPEC": "on"}, "other", "on", ""),
        # What a user's own client could send.
        ({**HOST, "SPANK_FILL_HOST_SPEC": "on,mem=65G"}, "host", "", "0,2"),
        ({**HOST, "SPANK_FILL_HOST_SPEC": "on\nkind=fill"}, "host", "", "0,2"),
        ({"SPANK_FILL_SPEC": "mem=1G"}, "other", "", ""),
        ({**FILL, "SPANK_FILL_SPEC": "mem=banana"}, "fill", "", ""),
    ],
)
def test_the_kind_comes_from_slurm_and_the_spec_only_if_it_is_one(
    node: Node, variables: dict[str, str], kind: str, spec: str, gpus: str
) -> None:
    agent = node.agent("ok")
    node.run("begin", **variables)
    _, keys = agent.message()
    assert (keys["kind"], keys["spec"], keys["gpus"]) == (kind, spec, gpus)


def test_a_refused_batch_fill_is_requeued_to_start_two_seconds_later(node: Node) -> None:
    node.agent("refused\nreason=no room")
    node.run("begin", **FILL)
    calls = [call for call in node.calls("scontrol update") if not call.startswith("squeue")]
    assert calls[0] == "scontrol requeue 7"
    assert calls[-1] == "scontrol update JobId=7 EligibleTime=now+2seconds"
    assert node.record() == "fill 1\n"


def test_a_refused_fill_waits_as_long_as_the_agent_says(node: Node) -> None:
    node.agent("refused\nreason=its training shares by MPS\nretry_s=120")
    node.run("begin", **FILL)
    assert node.calls("scontrol update")[-1].endswith("EligibleTime=now+120seconds")


def test_a_training_waits_for_mps_to_serve_and_no_longer_than_the_agent_says(node: Node) -> None:
    agent = node.agent("ok\nwait_ms=600", delay_s=0.4)
    assert 0.8 <= node.run("begin", **HOST) < 1.4
    assert [text.splitlines()[:2] for text in agent.messages] == [
        ["job_begin", "job_id=7"],
        ["ready", "job_id=7"],
    ]
    slow = Node(node.folder / "slow", node.hook)
    slow.agent("ok\nwait_ms=300", delay_s=0.9)
    assert slow.run("begin", **HOST) < 1.7
    assert slow.record() == "host 1\n"


@pytest.mark.parametrize("batch", ["0", "1"])
def test_what_can_not_be_requeued_is_cancelled_with_the_reason(node: Node, batch: str) -> None:
    node.agent("refused\nreason=no room")
    (node.folder / "no-requeue").touch()
    (node.folder / "job").write_text("7   7   RUNNING   0   \n")
    node.run("begin", **{**FILL, "SPANK_FILL_BATCH": batch})
    calls = node.calls("scancel")
    assert calls[-1] == "scancel 7"
    assert any(call.startswith("scontrol notify 7") and "no room" in call for call in calls)


def test_of_an_array_one_task_is_requeued(node: Node) -> None:
    """The number alone, which the last task has as its own, means all of them."""
    node.agent("refused\nreason=no room")
    (node.folder / "job").write_text("9  7_0  RUNNING  1  \n7  7_1  PENDING  1  \n")
    node.run("begin", **FILL)
    assert node.calls("scontrol update")[-1].startswith("scontrol update JobId=7_1 ")
    assert "scontrol requeue 7_1" in node.calls("scontrol requeue")


def test_without_an_agent_a_fill_waits_longer_and_training_goes_on(node: Node) -> None:
    assert node.run("begin", **HOST) < 0.5
    assert node.record() == "host 0\n"
    assert not (node.folder / "calls").exists()
    assert node.run("begin", **FILL) < 0.5
    assert node.calls("scontrol update")[-1].endswith("EligibleTime=now+30seconds")


@pytest.mark.parametrize(
    ("verb", "variables", "bound_s"),
    [
        ("begin", {}, 0.2),
        ("begin", HOST, 1.0),
        ("begin", FILL, 2.0),
        ("end", {}, 1.0),
        ("end", FILL, 1.0),
    ],
)
def test_a_silent_agent_is_waited_for_no_longer_than_the_bound(
    node: Node, verb: str, variables: dict[str, str], bound_s: float
) -> None:
    node.agent(None)
    took = node.run(verb, **variables)
    assert bound_s * 0.9 < took < bound_s + 0.5


def test_the_epilog_waits_until_fills_are_off_the_gpus(node: Node) -> None:
    (node.folder / "jobs").mkdir()
    (node.folder / "jobs/7.n1").write_text("host 1\n")
    agent = node.agent("ok", waits=6)
    assert node.run("end", **HOST) >= 1.5
    assert agent.message() == ("job_end", {"job_id": "7"})
    assert node.record() is None


@pytest.mark.parametrize("waits", [0, 2], ids=["from the start", "while it is waited for"])
def test_an_agent_that_stands_still_holds_up_no_jobs_end(node: Node, waits: int) -> None:
    (node.folder / "jobs").mkdir()
    (node.folder / "jobs/7.n1").write_text("host 1\n")
    node.agent(None, waits=waits)
    assert 0.9 < node.run("end", **HOST) - 0.25 * waits < 1.5
    assert node.record() is None


def test_an_agent_that_stands_still_while_mps_starts_holds_up_no_training(node: Node) -> None:
    agent = node.agent("ok\nwait_ms=6000")
    agent.silent_from = 1
    assert node.run("begin", **HOST) < 1.5
    assert agent.messages[1].startswith("ready")


def test_the_epilog_reaches_an_agent_that_is_being_restarted(node: Node) -> None:
    (node.folder / "jobs").mkdir()
    (node.folder / "jobs/7.n1").write_text("host 1\n")
    agents: list[Agent] = []
    starting = threading.Timer(1.0, lambda: agents.append(node.agent("ok")))
    starting.start()
    node.run("end", **HOST)
    assert agents[0].message() == ("job_end", {"job_id": "7"})


def test_the_epilog_does_not_wait_for_an_agent_that_never_knew_the_job(node: Node) -> None:
    (node.folder / "jobs").mkdir()
    (node.folder / "jobs/7.n1").write_text("host 0\n")
    assert node.run("end", **HOST) < 0.5


@pytest.mark.parametrize("script", ["prolog", "epilog"])
def test_prolog_and_epilog_call_the_hook_and_succeed_without_it(
    node: Node, built: Path, tmp_path: Path, script: str
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "lib").mkdir()
    copy = tmp_path / "etc" / script
    shutil.copy(PLUGIN / script, copy)
    environment = {**os.environ, "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
    assert subprocess.run([copy], env=environment).returncode == 0
    agent = node.agent("ok")
    shutil.copy(built, tmp_path / "lib/sfill-hook")
    environment["SLURM_CONF"] = f"{tmp_path}/slurm.conf"
    assert subprocess.run([copy], env=environment).returncode == 0
    assert agent.message()[0] == {"prolog": "job_begin", "epilog": "job_end"}[script]
