"""sfilld as a process of its own, with the simulated NVML: kill -9, escapes, what it costs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.packet import Packet
from tests.unit.agent_peers import ROOT, Peer, until
from tests.unit.shim_lab import interposer, simulated_gpu

KERNELS_OF_AN_ITEM = 20  # of siminfer


class Site:
    """A node with two simulated GPUs and sfilld on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "sfilld-n1.sock"
        self.spool = folder / "spool"
        self._programs = simulated_gpu().parent / "bin"
        self._started: list[subprocess.Popen[bytes]] = []
        for name in ("gpu", "dev"):
            (folder / name).mkdir()
        for minor in range(2):
            os.mknod(folder / f"dev/nvidia{minor}", 0o20666, os.makedev(240, minor))
        self._config = folder / "sfill.toml"
        self._config.write_text(
            f"""[agent]
node = "n1"
twin = "f1"
socket = "{folder}/sfilld-%n.sock"
state_dir = "{folder}/state"
spool_dir = "{self.spool}"
controller_url = ""
warm_up_s = 0
devices = "none"
window_s = 1
job_from_environment = true
"""
        )
        self.start_agent()

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "LD_LIBRARY_PATH": str(simulated_gpu()),
            "SIMGPU_DIR": str(self.folder / "gpu"),
            "SIMGPU_DEV": str(self.folder / "dev"),
        }

    def start_agent(self) -> None:
        self.socket.unlink(missing_ok=True)
        command = [sys.executable, "-m", "agent.main", "--config", str(self._config)]
        self.agent = subprocess.Popen(command, env=self._environment())
        self._started.append(self.agent)
        until(self.socket.exists, 10)

    def start(
        self,
        program: str,
        job_id: int,
        *arguments: object,
        gated: bool = True,
        visible: str = "",
    ) -> subprocess.Popen[bytes]:
        """A program in a job; not `gated`: it has dropped LD_PRELOAD."""
        environment = {
            **self._environment(),
            "SLURM_JOB_ID": str(job_id),
            "SFILL_ROLE": "monitor" if program == "simtrain" else "gate",
            "SFILL_SOCKET": str(self.socket),
        }
        if visible:
            environment["CUDA_VISIBLE_DEVICES"] = visible
        if gated:
            environment["LD_PRELOAD"] = str(interposer())
        command = [str(self._programs / program), *map(str, arguments)]
        output = (self.folder / f"{program}-{len(self._started)}.out").open("wb")
        process = subprocess.Popen(command, env=environment, stdout=output)
        self._started.append(process)
        return process

    def ask(self, verb: str, **fields: object) -> Packet:
        with Peer(str(self.socket)) as peer:
            peer.send(verb, -1, **fields)
            return peer.receive(15)

    def begin(self, kind: str, job_id: int, **more: object) -> Packet:
        known = {"user_id": os.getuid(), "user": "sfilluser1", "account": "a", "node": "n1"}
        return self.ask("job_begin", job_id=job_id, kind=kind, **known, **more)

    def gpu(self, minor: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask("status").get("json"))["gpus"][minor]
        return found

    def done(self, name: str) -> int:
        """Items that a siminfer has told of in its progress file."""
        try:
            return int(json.loads((self.folder / name).read_text())["done"])
        except (OSError, ValueError):
            return 0

    def records(self, kind: str) -> list[dict[str, Any]]:
        found = []
        for path in sorted(self.spool.glob("*.batches")):
            for line in path.read_text().splitlines():
                batch = json.loads(line.partition("\t")[0])
                found += [each for each in batch["records"] if each["kind"] == kind]
        return found

    def lending(self) -> subprocess.Popen[bytes]:
        """A training job that lends, and a fill job admitted beside it."""
        self.begin("host", 1, spec="on,slowdown=20%", gpus="0")
        training = self.start("simtrain", 1, "--compute-us", 10_000, "--stall-ms", 30)
        until(lambda: self.gpu()["lendable_slots"] > 0, 10)
        assert self.begin("fill", 2, spec="mem=2G").verb == "ok"
        return training

    def stop(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    if os.geteuid() != 0:
        pytest.skip("needs root to make device nodes")
    if shutil.which("make") is None or shutil.which("gcc") is None:
        pytest.skip("needs make and gcc")
    started = Site(tmp_path)
    yield started
    started.stop()


def test_killed_agent_stops_fill_not_training_and_a_new_one_goes_on(site: Site) -> None:
    training = site.lending()
    fill = site.start("siminfer", 2, "--items", 1200, "--progress", site.folder / "progress")

    def done() -> int:
        return site.done("progress")

    until(lambda: done() > 20, 20)
    site.agent.send_signal(signal.SIGKILL)
    site.agent.wait()
    time.sleep(1)
    at_stop = done()
    time.sleep(1)
    assert done() <= at_stop + 1  # what was released before may still be told
    assert training.poll() is None and fill.poll() is None
    site.start_agent()
    until(lambda: done() > at_stop + 20, 20)
    until(lambda: any("after a restart" in each["text"] for each in site.records("event")))
    assert fill.wait(20) == 0

    def recorded() -> int:
        return sum(int(each["kernels"]) for each in site.records("bubble_use"))

    until(lambda: recorded() == KERNELS_OF_AN_ITEM * 1200, 5)  # of both agents, each once


def test_fill_without_the_interposer_is_killed_within_a_second(site: Site) -> None:
    training = site.lending()
    time.sleep(3.1)  # after its start the agent is patient with processes without a board
    escaped = site.start("siminfer", 2, gated=False)
    began = time.monotonic()
    assert escaped.wait(3) == -signal.SIGKILL
    assert time.monotonic() - began < 1.3  # its own start included
    until(lambda: [each for each in site.records("event") if each["what"] == "escaped"])
    assert training.poll() is None


def test_training_without_the_interposer_shuts_the_gate(site: Site) -> None:
    site.lending()
    until(lambda: site.gpu()["lendable_slots"] > 0)
    hookless = site.start("simtrain", 1, gated=False)
    until(lambda: site.gpu()["unknown"] == 1)
    assert site.gpu()["lendable_slots"] == 0
    hookless.kill()
    hookless.wait()
    until(lambda: site.gpu()["unknown"] == 0)


def test_two_fills_share_the_bubbles_of_a_gpu(site: Site) -> None:
    site.lending()
    assert site.begin("fill", 3, spec="mem=2G").verb == "ok"
    for job_id in (2, 3):
        site.start("siminfer", job_id, "--progress", site.folder / f"progress-{job_id}")
    until(lambda: min(site.done("progress-2"), site.done("progress-3")) > 20, 15)
    until(lambda: {each["fill_job_id"] for each in site.records("bubble_use")} == {2, 3})


def test_training_on_two_gpus_lends_both(site: Site) -> None:
    site.begin("host", 1, spec="on,slowdown=20%", gpus="0-1")
    site.start("simtrain", 1, "--compute-us", 10_000, "--stall-ms", 30, "--devices", 2)
    until(lambda: min(site.gpu(0)["lendable_slots"], site.gpu(1)["lendable_slots"]) > 0, 10)
    for job_id in (2, 3):
        assert site.begin("fill", job_id, spec="mem=2G").verb == "ok"
    gpus = {}
    for job_id in (2, 3):
        answer = site.ask("step", job_id=job_id, step_id=0, user_id=0)
        gpus[job_id] = answer.get("cuda_visible_devices")
    assert len(set(gpus.values())) == 2
    for job_id, uuid in gpus.items():
        progress = site.folder / f"progress-{job_id}"
        site.start("siminfer", job_id, "--progress", progress, visible=uuid)
    until(lambda: min(site.done("progress-2"), site.done("progress-3")) > 20, 15)
    until(lambda: len({each["gpu"] for each in site.records("bubble_use")}) == 2)
    for use in site.records("bubble_use"):
        assert use["gpu"] == gpus[use["fill_job_id"]]


def test_agent_costs_little_while_filling(site: Site) -> None:
    site.lending()
    site.start("siminfer", 2)
    until(lambda: len(site.records("bubble_use")) > 30, 20)
    before, began = cpu_s(site.agent.pid), time.monotonic()
    time.sleep(4)
    share = (cpu_s(site.agent.pid) - before) / (time.monotonic() - began)
    assert share < 0.05  # the goal is 0.02 on a quiet machine


def cpu_s(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
