"""What the bench adds to a sandbox's jobs: code that jobs can read, and the commit under test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from deploy.sandbox.jobs import Jobs

REPOSITORY = Path(__file__).resolve().parents[2]


def prepare(jobs: Jobs) -> None:
    """Copies the bench's and the examples' code to where the jobs' user can read it."""
    code = jobs.folder / "code"
    for part in ("tests/bench", "deploy/examples", "deploy/sandbox/simgpu"):
        shutil.copytree(REPOSITORY / part, code / part, dirs_exist_ok=True)
        (code / part).parent.joinpath("__init__.py").touch()
    subprocess.run(["chmod", "-R", "a+rwX", str(jobs.folder)], check=True)


def submit(
    jobs: Jobs, name: str, options: list[str], module: str, *arguments: str, setup: str = ""
) -> int:
    """Submits `python -m module arguments`, after the shell lines of `setup`; the job id."""
    code = jobs.folder / "code"
    setup = f"cd '{code}'\nexport PYTHONPATH='{code}'\n{setup}"
    python = os.environ.get("SFILL_BENCH_PYTHON", sys.executable)
    return jobs.submit(name, options, [python, "-u", "-m", module, *arguments], setup)


def commit() -> str:
    """The commit under test, with `+` when the tree differs; SFILL_COMMIT where git is not."""
    if "SFILL_COMMIT" in os.environ:
        return os.environ["SFILL_COMMIT"]
    git = ["git", "-C", str(REPOSITORY)]
    name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True)
    return name.stdout.strip() + ("+" if changed.stdout.strip() else "")
