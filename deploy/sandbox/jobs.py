"""Jobs on a sandbox's Slurm: submit as an ordinary user, wait, cancel.

The demo and the benches use this; everything goes through Slurm's own commands.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

UNFINISHED = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED")


class JobError(Exception):
    """A job did not do what was asked of it; the text says why."""


@dataclass(frozen=True)
class Jobs:
    """Jobs of one user that keep their scripts and logs in one folder.

    sandbox: folder of a running sandbox; folder: made if missing, writable by the user.
    """

    sandbox: Path
    folder: Path
    user: str

    def slurm(self, *command: str, as_user: bool = False, check: bool = True) -> str:
        """Runs a command in the sandbox's environment; its standard output, stripped.

        Raises JobError with the command's message when it fails and `check` is set.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        words = shlex.join(command)
        script = f"cd {shlex.quote(str(self.folder))} && . {self.sandbox}/env && timeout 30 {words}"
        shell = ["bash", "-c", script]
        if as_user:
            who = [f"--reuid={self.user}", f"--regid={self.user}", "--init-groups"]
            shell = ["setpriv", *who, *shell]
        done = subprocess.run(shell, capture_output=True, text=True)
        if check and done.returncode != 0:
            raise JobError(f"{words}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout.strip()

    def submit(
        self, name: str, options: Sequence[str], command: Sequence[str], setup: str = ""
    ) -> int:
        """sbatch of a script that runs `setup` (shell lines), then `command`; the job id."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o777)
        script = self.folder / f"{name}.sh"
        script.write_text(f"#!/bin/bash\n{setup}\nexec {shlex.join(command)}\n")
        script.chmod(0o755)
        answer = self.slurm(
            "sbatch",
            "--parsable",
            f"--job-name={name}",
            f"--output={self.log(name)}",
            "--open-mode=append",
            *options,
            str(script),
            as_user=True,
        )
        return int(answer.split(";")[0].split()[-1])

    def log(self, name: str) -> Path:
        """Where a job of this name writes."""
        return self.folder / f"{name}.log"

    def state(self, job_id: int) -> str:
        """Slurm's state of a job, e.g. RUNNING; empty when Slurm knows it no longer."""
        text = self.slurm("scontrol", "show", "job", str(job_id), "-o", check=False)
        for word in text.split():
            if word.startswith("JobState="):
                return word.partition("=")[2]
        return ""

    def wait_ended(self, job_id: int, seconds: float, name: str) -> None:
        """Waits for COMPLETED; JobError with the end of the job's log otherwise."""
        self.wait(lambda: self.state(job_id) not in UNFINISHED, seconds, f"job {name} to end")
        state = self.state(job_id)
        if state != "COMPLETED":
            log = self.log(name)
            tail = log.read_text()[-2000:] if log.exists() else "(it wrote nothing)"
            raise JobError(f"job {name} ended {state or 'unknown to Slurm'}:\n{tail}")

    def wait_for_output(
        self, job_id: int, name: str, condition: Callable[[], bool], seconds: float = 90
    ) -> None:
        """Waits until a job has got somewhere; JobError with its log when it ends before that."""

        def there_or_ended() -> bool:
            return condition() or self.state(job_id) not in UNFINISHED

        self.wait(there_or_ended, seconds, f"job {name} to get going")
        if not condition():
            log = self.log(name)
            tail = log.read_text()[-2000:] if log.exists() else "(it wrote nothing)"
            raise JobError(f"job {name} ended {self.state(job_id)} too early:\n{tail}")

    def wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Polls until the condition holds; JobError naming `what` when it does not in time."""
        limit = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > limit:
                raise JobError(f"waited {seconds:.0f} s in vain for {what}")
            time.sleep(0.2)

    def cancel(self, *job_ids: int) -> None:
        """scancel; a job that has ended already is no fault."""
        for job_id in job_ids:
            self.slurm("scancel", str(job_id), check=False)
