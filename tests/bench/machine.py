"""Looks at the machine without loading CUDA: which GPUs, driver and programs are there."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

from tests.bench import mps
from tests.bench.cells import Machine

DRY_RUN_GPUS = 2


def ask(*command: str) -> list[str]:
    """The lines that a program prints; none when it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def is_up(sandbox: Path | None) -> bool:
    """Whether a sandbox was booted there."""
    return sandbox is not None and (sandbox / "env").exists()


def look(sandbox: Path | None, python: str, dry_run: bool) -> Machine:
    """This machine; in a dry run its CPU stands for two GPUs."""
    if dry_run:
        cpu = platform.processor() or "cpu"
        return Machine(cpu, "none", DRY_RUN_GPUS, slurm=is_up(sandbox), mps=mps.is_there())
    lines = ask("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    name, _, driver = lines[0].partition(", ") if lines else ("", "", "")
    cuda = ask(python, "-c", "import torch; print(torch.version.cuda)") if lines else []
    return Machine(
        gpu=name,
        driver=driver,
        gpus=len(lines),
        cuda=cuda[-1] if cuda else "",
        slurm=is_up(sandbox),
        mps=mps.is_there(),
    )
