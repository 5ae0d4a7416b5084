"""What the demo runs: real torch programs on a real GPU, simulated ones on a simulated GPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ITEMS = 400_000  # more than any demo gets through


@dataclass(frozen=True)
class Workload:
    """Commands of the training and the inference, and where they may be told to write."""

    simulated: bool
    train: list[str]
    infer: list[str]
    fill_memory: str

    def infer_to(self, source: Path, output: Path) -> list[str]:
        """The inference over the items in `source`, with results in `output`."""
        if self.simulated:
            return [*self.infer, f"--input={source}", f"--output={output}"]
        return [*self.infer, str(source), str(output)]


def simulated(sandbox: Path) -> Workload:
    """60 ms of kernels and a host stall of 40 ms an iteration; 100 us inference kernels."""
    programs = sandbox / "gpu" / "bin"
    return Workload(
        simulated=True,
        train=[str(programs / "simtrain"), "--seconds", "600"],
        infer=[str(programs / "siminfer"), "--seconds", "600"],
        fill_memory="4G",
    )


def real(folder: Path) -> Workload:
    """The torch examples, copied to where ordinary users can read them."""
    code = folder / "code"
    shutil.copytree(REPOSITORY / "deploy" / "examples", code, dirs_exist_ok=True)
    subprocess.run(["chmod", "-R", "a+rX", str(code)], check=True)
    python = [sys.executable, "-u"]
    return Workload(
        simulated=False,
        train=[*python, str(code / "train_host_stall.py"), "--seconds", "600"],
        infer=[*python, str(code / "infer_jsonl.py"), "--batch", "32"],
        fill_memory="16G",
    )


def write_input(path: Path) -> None:
    """Items for the inference, one JSON object a line."""
    with path.open("w", encoding="utf-8") as lines:
        for number in range(ITEMS):
            lines.write(f'{{"id": {number}, "text": "item {number}"}}\n')
    path.chmod(0o644)
