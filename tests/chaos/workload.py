"""The jobs of a chaos run: on a simulated GPU the sandbox's programs, on a real one examples."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.cluster.cluster import USERS, Cluster, program

REPOSITORY = Path(__file__).resolve().parents[2]
FILL_KERNEL_US = 400
FIRST_ITERATIONS = 30
LOSS_TOLERANCE = 0.02  # bf16 sums change their order from run to run
REFERENCE_S = 300.0


class Workload(Protocol):
    """How jobs are submitted, which processes are the fill's, and what the training must print."""

    @property
    def fill_program(self) -> str:
        """A word of the command line of a fill's processes."""
        ...

    def submit_training(self, cluster: Cluster, seconds: int) -> int:
        """The host job's id."""
        ...

    def submit_fill(self, cluster: Cluster) -> int:
        """A fill job's id."""
        ...

    def check_output(self, cluster: Cluster, job: int) -> dict[str, Any]:
        """Whether the training computed what it would have computed without us: `ok` and why."""
        ...


def iterations_ms(output: str) -> list[float]:
    """Times of the iterations that a training's output tells."""
    lines = (line.split() for line in output.splitlines())
    return [float(words[2]) for words in lines if words[:1] == ["iteration"] and len(words) >= 3]


def report_of(output: str) -> dict[str, Any]:
    """The JSON in a training's last line; empty when it did not get there."""
    last = output.strip().rpartition("\n")[2]
    found: dict[str, Any] = json.loads(last) if last.startswith("{") else {}
    return found


@dataclass(frozen=True)
class Simulated:
    """simtrain and siminfer. The loss of simtrain comes from what it got back from the GPU."""

    fill_program: str = "siminfer"

    def submit_training(self, cluster: Cluster, seconds: int) -> int:
        command = program("simtrain", "--seconds", seconds, "--stall-ms", 40, "--kernel-us", 2000)
        return cluster.submit(
            "--gres=gpu:1", "--fill-host=on", "-w", "n1", script=command, user=USERS[0]
        )

    def submit_fill(self, cluster: Cluster) -> int:
        command = program("siminfer", "--kernel-us", FILL_KERNEL_US)
        return cluster.submit("--fill=mem=4G", script=command, user=USERS[1])

    def check_output(self, cluster: Cluster, job: int) -> dict[str, Any]:
        report = report_of(cluster.output(job))
        expected = self._alone(cluster, int(report.get("iterations", 0)))
        ok = bool(report) and not report["stopped"] and report["loss"] == expected.get("loss")
        return {"ok": ok, "report": report, "loss_alone": expected.get("loss")}

    def _alone(self, cluster: Cluster, iterations: int) -> dict[str, Any]:
        """The same training on a GPU of its own, with kernels that take no time."""
        if not iterations:
            return {}
        state = cluster.files / "alone"
        shutil.rmtree(state, ignore_errors=True)
        (state / "dev").mkdir(parents=True)
        (state / "dev/nvidia0").touch()
        gpu = cluster.sandbox.folder / "gpu"
        environment = {
            "PATH": os.environ["PATH"],
            "SIMGPU_DIR": str(state),
            "SIMGPU_DEV": str(state / "dev"),
            "LD_LIBRARY_PATH": str(gpu / "lib"),
        }
        words = ["--iterations", str(iterations), "--stall-ms", "0", "--kernel-us", "1"]
        done = subprocess.run(
            [str(gpu / "bin/simtrain"), *words, "--kernels", "1"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=REFERENCE_S,
        )
        return report_of(done.stdout)


@dataclass(frozen=True)
class Real:
    """The examples for torch."""

    fill_program: str = "infer_decode"

    def submit_training(self, cluster: Cluster, seconds: int) -> int:
        script = self._script(cluster, "train_host_stall", "--seconds", str(seconds))
        return cluster.submit(
            "--gres=gpu:1", "--fill-host=on", "-w", "n1", script=script, user=USERS[0]
        )

    def submit_fill(self, cluster: Cluster) -> int:
        script = self._script(cluster, "infer_decode", "--tokens", "100000000")
        return cluster.submit("--fill=mem=16G", script=script, user=USERS[1])

    def check_output(self, cluster: Cluster, job: int) -> dict[str, Any]:
        """The first losses are those of a training alone; all are numbers."""
        script = self._script(
            cluster, "train_host_stall", "--iterations", str(FIRST_ITERATIONS), "--stall-ms", "0"
        )
        alone = cluster.submit(
            "--gres=gpu:1", "--fill-host=off", "-w", "n1", script=script, user=USERS[0]
        )
        cluster.wait_end(alone, REFERENCE_S)
        expected, found = _losses(cluster.output(alone)), _losses(cluster.output(job))
        apart = [abs(a - b) for a, b in zip(expected, found, strict=False)]
        ok = (
            len(expected) == FIRST_ITERATIONS <= len(found)
            and all(map(math.isfinite, found))
            and max(apart) <= LOSS_TOLERANCE
            and bool(report_of(cluster.output(job)))
        )
        return {"ok": ok, "iterations": len(found), "most_apart": max(apart, default=None)}

    def _script(self, cluster: Cluster, module: str, *arguments: str) -> str:
        code = cluster.files / "code"
        if not code.exists():
            shutil.copytree(REPOSITORY / "deploy/examples", code / "deploy/examples")
            (code / "deploy/__init__.py").touch()
            subprocess.run(["chmod", "-R", "a+rX", str(code)], check=True)
        python = os.environ.get("SFILL_BENCH_PYTHON", sys.executable)
        setup = f"cd '{code}'\nexport PYTHONPATH='{code}'\n"
        return setup + program(python, "-u", "-m", f"deploy.examples.{module}", *arguments)


def _losses(output: str) -> list[float]:
    lines = (line.split() for line in output.splitlines())
    return [float(words[3]) for words in lines if words[:1] == ["iteration"] and len(words) == 4]
