"""A machine with simulated GPUs in a folder, and processes that use it."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from deploy.sandbox.simgpu.log_file import GpuLog, log_path, read_log

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "simgpu"


@cache
def build() -> Path:
    """Builds the simulated GPU; the folder with lib/ and bin/."""
    made = subprocess.run(
        ["make", "-C", str(ROOT / "deploy/sandbox/simgpu")], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    return BUILD


class Machine:
    """GPUs with the minor numbers 0 to gpus - 1; settings as the driver's environment."""

    def __init__(self, folder: Path, gpus: int = 1, **settings: int) -> None:
        self.built = build()
        self.state = folder / "state"
        self.nodes = folder / "dev"
        self.nodes.mkdir()
        for minor in range(gpus):
            (self.nodes / f"nvidia{minor}").touch()
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "SLURM_"))},
            "SIMGPU_DIR": str(self.state),
            "SIMGPU_DEV": str(self.nodes),
            "SIMGPU_LIBRARY": str(self.built / "lib/libcuda.so.1"),
            "LD_LIBRARY_PATH": str(self.built / "lib"),
            "PYTHONPATH": str(ROOT),
            **{f"SIMGPU_{key.upper()}": str(value) for key, value in settings.items()},
        }

    def start(self, code: str, job: int = 0, **environment: str) -> subprocess.Popen[str]:
        """Starts a Python process that runs the code with `gpu` bound to a Session."""
        command = [sys.executable, "-m", "deploy.sandbox.simgpu.session", code]
        return self._start(command, job, environment)

    def program(
        self, name: str, *arguments: object, job: int = 0, **environment: str
    ) -> subprocess.Popen[str]:
        """Starts one of the simulated programs."""
        command = [str(self.built / "bin" / name), *map(str, arguments)]
        return self._start(command, job, environment)

    def _start(
        self, command: list[str], job: int, environment: dict[str, str]
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env={**self.environment, **environment, **({"SLURM_JOB_ID": str(job)} if job else {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def run(self, code: str, job: int = 0, **environment: str) -> str:
        """Runs code to its end and returns what it printed."""
        return finish(self.start(code, job, **environment))

    def log(self, gpu: int = 0) -> GpuLog:
        """What happened on a GPU."""
        return read_log(log_path(self.state, gpu))


def finish(process: "subprocess.Popen[str]", timeout: float = 60) -> str:
    """Waits for a process that must succeed; what it printed."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err
    return out


def wait_line(process: "subprocess.Popen[str]", line: str) -> None:
    """Waits until the process prints this line."""
    assert process.stdout is not None
    for text in process.stdout:
        if text.strip() == line:
            return
    raise AssertionError(f"ended without printing {line!r}: {process.communicate()[1]}")
