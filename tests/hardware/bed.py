"""Where the C programs of a measurement run: a real GPU, or the simulated one for a dry run.

A program is plain, a training (role monitor) or a fill (role gate) of an agent that the
measurement plays itself; no Slurm. The C programs are compiled when they are missing or older than
their source.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from agent.policy import Tuning
from tests.hardware.faults import first_gpu
from tests.unit.lending_agent import TUNING, UUID, LendingAgent

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
PROGRAMS = BUILD / "hardware-programs"
FLAGS = ("-O2", "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wshadow")
TRAINING, FILL = 1, 2


class ChildError(Exception):
    """A program of the measurement ended badly or not at all; the message is its last words."""


def compiled(*sources: str, target: str | None = None, flags: Sequence[str] = ()) -> Path:
    """tests/hardware/SOURCE.c ... as a program; a carried one is taken where no compiler is."""
    folder = Path(__file__).parent
    program = PROGRAMS / (target or sources[0])
    files = [folder / f"{source}.c" for source in sources]
    newest = max(file.stat().st_mtime for file in (*files, *folder.glob("*.h")))
    fresh = program.exists() and program.stat().st_mtime >= newest
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not fresh and (compiler or not program.exists()):
        PROGRAMS.mkdir(parents=True, exist_ok=True)
        command = [compiler or "cc", *FLAGS, "-o", str(program), *map(str, files), *flags]
        subprocess.run([*command, "-ldl", "-pthread"], check=True)
    return program


class Bed:
    """A GPU, a folder for sockets and the like, and the environment of programs on it."""

    def __init__(self, *, simulated: bool, gpu: str | None = None, build: Path = BUILD) -> None:
        self.simulated = simulated
        self.uuid = UUID if simulated else (gpu or first_gpu())
        self._build = build
        # In memory: the driver cannot pin pages of a file on a disk for the GPU to write.
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self._temporary = tempfile.TemporaryDirectory(prefix="sfill-hw-", dir=shared)
        self.folder = Path(self._temporary.name)
        self._agents = 0
        if simulated:
            (self.folder / "state").mkdir()
            (self.folder / "dev").mkdir()
            (self.folder / "dev" / "nvidia0").touch()

    def __enter__(self) -> Bed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._temporary.cleanup()

    @property
    def state(self) -> Path:
        """The simulated GPU's state and log."""
        return self.folder / "state"

    def agent(
        self,
        *,
        tuning: Tuning = TUNING,
        ignore_training: bool = False,
        memory_limit_bytes: int = 4 << 30,
    ) -> LendingAgent:
        """A new agent of this GPU."""
        self._agents += 1
        return LendingAgent(
            self.socket(self._agents),
            tuning=tuning,
            ignore_training=ignore_training,
            memory_limit_bytes=memory_limit_bytes,
            uuid=self.uuid,
        )

    def socket(self, number: int) -> Path:
        return self.folder / f"agent-{number}.sock"

    def environment(self, role: str | None = None) -> dict[str, str]:
        """Of a program under the newest agent with that role; without a role, plain."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SFILL_", "LD_PRELOAD", "SLURM_"))
        }
        if self.simulated:
            environment |= {
                "LD_LIBRARY_PATH": str(self._build / "simgpu" / "lib"),
                "SIMGPU_DIR": str(self.state),
                "SIMGPU_DEV": str(self.folder / "dev"),
            }
        else:
            environment["CUDA_VISIBLE_DEVICES"] = self.uuid
        if role is not None:
            environment |= {
                "LD_PRELOAD": str(self._build / "shim" / "libspecinf.so"),
                "SFILL_SOCKET": str(self.socket(self._agents)),
                "SFILL_ROLE": role,
                "SFILL_ATTACH_MS": "5000",
                "SLURM_JOB_ID": str(TRAINING if role == "monitor" else FILL),
            }
        return environment


def spoken(command: Sequence[str], environment: dict[str, str], seconds: float) -> dict[str, Any]:
    """Runs a program to its end; the JSON object that is its last line."""
    try:
        done = subprocess.run(
            list(command),
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise ChildError(f"{Path(command[0]).name} did not end within {seconds:.0f} s") from error
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ChildError(f"{Path(command[0]).name}: exit code {done.returncode}: {last}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def write_json(folder: Path, name: str, result: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(result, indent=1) + "\n")
