"""A booted sandbox as the tests see it: commands as a user, jobs, daemons, files for jobs."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deploy.sandbox import daemons, services
from deploy.sandbox.layout import Sandbox

USERS = ("sfilluser1", "sfilluser2")
UNFINISHED = frozenset({"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED"})
POLL_S = 0.05


@dataclass(frozen=True)
class Cluster:
    """One sandbox; `files` is a folder that both test users may write to."""

    sandbox: Sandbox
    files: Path
    # Job ids in order of submission, so that a failing test can show their output.
    submitted: list[int] = field(default_factory=list)

    def run(
        self, *command: str, user: str = "root", timeout_s: float = 20.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as `user` in the sandbox's environment; a time-out counts as 124."""
        script = f". {self.sandbox.folder}/env; exec {shlex.join(command)}"
        try:
            return subprocess.run(
                [*_become(user), "bash", "-c", script],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                cwd=self.files,
                env=_environment_of(user),
            )
        except subprocess.TimeoutExpired as error:
            seen = f"timed out after {timeout_s} s\n{_text(error.stdout)}{_text(error.stderr)}"
            return subprocess.CompletedProcess(command, 124, "", seen)

    def check(self, *command: str, user: str = "root", timeout_s: float = 20.0) -> str:
        """Standard output of a command that must succeed."""
        answer = self.run(*command, user=user, timeout_s=timeout_s)
        assert answer.returncode == 0, f"{shlex.join(command)}: {answer.stdout}{answer.stderr}"
        return answer.stdout

    def submit(self, *options: str, script: str, user: str = USERS[0]) -> int:
        """Submit `script` (the body of a shell script) with sbatch as `user`; the job id."""
        number = len(self.submitted)
        file = self.files / f"job-{number}.sh"
        file.write_text(f"#!/bin/bash\n{script}\n")
        file.chmod(0o755)
        output = f"--output={self.files}/%j.out"
        append = "--open-mode=append"
        answer = self.check("sbatch", "--parsable", output, append, *options, str(file), user=user)
        job_id = int(answer.split(";")[0])
        self.submitted.append(job_id)
        return job_id

    def output(self, job_id: int) -> str:
        """What the job has written so far, over all its starts."""
        file = self.files / f"{job_id}.out"
        return file.read_text(errors="replace") if file.exists() else ""

    def job(self, job_id: int) -> dict[str, str]:
        """The job's record as `scontrol show job` prints it, by field."""
        answer = self.run("scontrol", "-o", "show", "job", str(job_id))
        pairs = (word.partition("=") for word in answer.stdout.split())
        return {name: value for name, _, value in pairs}

    def state(self, job_id: int) -> str:
        """RUNNING, PENDING, ...; empty when Slurm has forgotten the job."""
        return self.job(job_id).get("JobState", "")

    def wait_state(self, job_id: int, *states: str, timeout_s: float = 20.0) -> None:
        """Until the job is in one of `states`."""
        self.wait(
            lambda: self.state(job_id) in states,
            timeout_s,
            lambda: (
                f"job {job_id} to be {' or '.join(states)}; it is {self.job(job_id)}, and "
                f"wrote:\n{self.output(job_id)}"
            ),
        )

    def wait_end(self, job_id: int, timeout_s: float = 30.0) -> str:
        """Until the job has ended; its final state."""
        self.wait(
            lambda: self.state(job_id) not in UNFINISHED,
            timeout_s,
            lambda: f"job {job_id} to end; it is {self.job(job_id)}",
        )
        return self.state(job_id)

    def wait(
        self,
        condition: Callable[[], bool],
        timeout_s: float,
        what: str | Callable[[], str],
    ) -> float:
        """Until `condition` holds; the seconds it took. Fails, naming `what`, when it does not."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > timeout_s:
                text = what if isinstance(what, str) else what()
                raise AssertionError(f"waited {timeout_s} s in vain for {text}")
            time.sleep(POLL_S)
        return time.monotonic() - began

    def cancel_all(self) -> None:
        """End every job and wait until the nodes are free."""
        jobs = self.check("squeue", "-h", "-a", "-o", "%A").split()
        if jobs:
            self.run("scancel", *jobs)
            self.wait(lambda: not self.check("squeue", "-h", "-a").strip(), 30.0, "jobs to end")

    def node_state(self, node: str) -> str:
        """As `sinfo` names it: idle, mixed, drained, ..."""
        return self.check("sinfo", "-h", "-N", "-n", node, "-o", "%T").split()[0]

    def supply(self, twin: str) -> int:
        """Slots the twin lends according to Slurm; 0 when it is drained."""
        record = self.check("scontrol", "-o", "show", "node", twin)
        words = dict(word.partition("=")[::2] for word in record.split())
        if "DRAIN" in words["State"]:
            return 0
        return int(words["Gres"].partition("fill:")[2].split(",")[0].split("(")[0])

    def sfill_json(self, *arguments: str) -> object:
        """What an `sfill ... --json` command says."""
        parsed: object = json.loads(self.check("sfill", *arguments, "--json"))
        return parsed

    def pid(self, daemon: str) -> int:
        """Process id of a daemon (deploy/sandbox/daemons.py has the names)."""
        pid = services.pid_of(self.sandbox, daemon)
        assert pid is not None, f"{daemon} is not running"
        return pid

    def kill(self, daemon: str, signal: int) -> None:
        """Send a signal to a daemon and wait until it is gone."""
        pid = self.pid(daemon)
        os.kill(pid, signal)
        self.wait(lambda: not services.is_alive(pid), 10.0, f"{daemon} to be gone")

    def start(self, daemon: str) -> None:
        """Start a daemon that was stopped."""
        assert services.pid_of(self.sandbox, daemon) is None, f"{daemon} runs already"
        daemons.start(self.sandbox, daemon)

    def restart(self, daemon: str) -> None:
        """Stop a daemon in an orderly way and start it again."""
        services.stop(self.sandbox, daemon)
        daemons.start(self.sandbox, daemon)


def program(name: str, *arguments: str | int | float) -> str:
    """A shell line that replaces the shell by one of the sandbox's programs."""
    words: Sequence[str] = [name, *map(str, arguments)]
    return f"exec {shlex.join(words)}"


def _become(user: str) -> list[str]:
    if user == "root":
        return []
    entry = pwd.getpwnam(user)
    return ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups"]


def _environment_of(user: str) -> dict[str, str]:
    """A fresh login's environment: nothing of the test run's own gets into jobs."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": pwd.getpwnam(user).pw_dir,
        "USER": user,
        "LANG": "C.UTF-8",
    }


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""
