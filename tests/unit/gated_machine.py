"""A folder with a simulated GPU, a training under the monitor and fills behind the gate on it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from deploy.sandbox.simgpu.log_file import Kind, Operation, log_path, read_log
from deploy.sandbox.simgpu.truth import Truth, truth
from tests.unit.shim_lab import interposer, simulated_gpu

TRAINING, FILL = 1, 2


@dataclass
class Machine:
    """A folder with a simulated GPU, and the programs that run on it."""

    folder: Path
    build: Path

    def environment(self, role: str, job: int) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", ""),
            "SIMGPU_DIR": str(self.folder / "state"),
            "SIMGPU_DEV": str(self.folder / "dev"),
            "LD_LIBRARY_PATH": str(self.build / "simgpu" / "lib"),
            "LD_PRELOAD": str(self.build / "shim" / "libspecinf.so"),
            "SFILL_SOCKET": str(self.socket),
            "SFILL_ROLE": role,
            "SLURM_JOB_ID": str(job),
        }

    @property
    def socket(self) -> Path:
        return self.folder / "agent.sock"

    def train(self, seconds: float, *more: str) -> subprocess.Popen[bytes]:
        command = [str(self.build / "simgpu/bin/simtrain"), "--seconds", str(seconds), *more]
        environment = self.environment("monitor", TRAINING)
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)

    def infer(
        self, seconds: float, *more: str, job: int = FILL, stderr: int | None = None
    ) -> subprocess.Popen[bytes]:
        command = [str(self.build / "simgpu/bin/siminfer"), "--seconds", str(seconds), *more]
        environment = self.environment("gate", job)
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=stderr)

    def fill_work(self, *jobs: int) -> list[Operation]:
        """What ran of these fill jobs (default: FILL)."""
        log = read_log(log_path(self.folder / "state", 0))
        own = log.contexts_of(jobs=jobs or [FILL])
        return [op for op in log.operations if op.context in own and op.kind <= Kind.SET]

    def truth(self, *jobs: int) -> Truth:
        """What the driver saw while these fill jobs (default: FILL) ran, taken together."""
        log = read_log(log_path(self.folder / "state", 0))
        work = self.fill_work(*jobs)
        begin, end = min(op.start_ns for op in work), max(op.end_ns for op in work)
        both = log.contexts_of(jobs=[TRAINING]), log.contexts_of(jobs=jobs or [FILL])
        return truth(log, *both, begin, end)


def gated_machine(folder: Path) -> Machine:
    """Builds what is missing, and sets the folder up."""
    interposer()
    (folder / "state").mkdir()
    (folder / "dev").mkdir()
    (folder / "dev" / "nvidia0").touch()
    return Machine(folder, simulated_gpu().parents[1])
