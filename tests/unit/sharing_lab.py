"""A training and fills on one simulated GPU under a running agent, as Slurm would start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent_peers import (
    RunningAgent,
    fill_begins,
    host_begins,
    running,
    settings_for,
    until,
)
from tests.unit.shim_lab import interposer, simulated_gpu

MEMORY_PROGRAM = Path(__file__).with_name("memory_program.py")
CUDA_PROGRAM = Path(__file__).with_name("cuda_program.py")


class SharingLab:
    """Starts a program with a job id, a role and the interposer; without an agent, plain.

    `memory_mb` is the GPU's, None: as large as the simulated driver makes it. Each program has
    256 MiB for its context, as that driver counts it.
    """

    def __init__(
        self,
        folder: Path,
        agent: RunningAgent | None,
        memory_mb: int | None = None,
        program: Path = MEMORY_PROGRAM,
    ) -> None:
        self._folder = folder
        self._agent = agent
        self._memory_mb = memory_mb
        self._program = program
        self._started: list[subprocess.Popen[str]] = []
        (folder / "gpu").mkdir(parents=True)
        (folder / "dev").mkdir()
        try:
            os.mknod(folder / "dev" / "nvidia0", 0o20666, os.makedev(240, 0))
        except PermissionError:
            pytest.skip("needs root to make device nodes")

    def start(
        self, job_id: int, role: str, *arguments: object, program: Path | None = None
    ) -> subprocess.Popen[str]:
        """`program`: another than the lab's; a Python script, or what the kernel can run."""
        chosen = program or self._program
        command = [sys.executable] if chosen.suffix == ".py" else []
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(simulated_gpu()),
            "SIMGPU_DIR": str(self._folder / "gpu"),
            "SIMGPU_DEV": str(self._folder / "dev"),
        }
        if self._memory_mb is not None:
            environment["SIMGPU_MEMORY_MB"] = str(self._memory_mb)
        if self._agent is not None:
            environment |= {
                "SLURM_JOB_ID": str(job_id),
                "SLURM_STEP_ID": "0",
                "SFILL_ROLE": role,
                "SFILL_SOCKET": self._agent.settings.socket_path,
                "SFILL_ATTACH_MS": "5000",
                "SFILL_LOG": "1",
                "LD_PRELOAD": str(interposer()),
            }
        process = subprocess.Popen(
            [*command, str(chosen), *map(str, arguments)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def stop(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


CONTEXT_MB = 512
"""What a gate counts for a context."""
OUT_OF_MEMORY = 2


@contextmanager
def agent_of_fills(folder: Path) -> Iterator[RunningAgent]:
    """An agent, once all that programs of its jobs need is built."""
    interposer()
    simulated_gpu()
    with running(settings_for(folder)) as started:
        yield started


@contextmanager
def lab_of(agent: RunningAgent, folder: Path, *given: Any) -> Iterator[SharingLab]:
    """A lab under an agent, its programs ended with it."""
    started = SharingLab(folder, agent, *given)
    yield started
    started.stop()


def lend(agent: RunningAgent, lab: SharingLab, spec: str) -> None:
    """A training that leaves its GPU idle, and a fill job admitted beside it."""
    host_begins(agent, 1, spec="on,slowdown=20%")
    lab.start(1, "monitor", 60, "wait")
    [gpu] = agent.agent.node.gpus.values()
    until(lambda: gpu.ready_ns, 20)
    assert fill_begins(agent, 2, spec).verb == "ok"


def result(process: subprocess.Popen[str], seconds: float = 30) -> dict[str, Any]:
    """What the program printed; the test fails when it failed."""
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out)
    return found
