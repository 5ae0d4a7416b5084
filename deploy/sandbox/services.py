"""Starts and stops the sandbox's daemons: a process, its pid file and its log each."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from deploy.sandbox.layout import Sandbox, SandboxError

TAG = "SFILL_SANDBOX_DAEMON"
"""Every daemon carries DIR under this name, and hands it on to slurmstepd: `down` finds leftovers
by it. Users' jobs never see it."""

POLL_S = 0.03


def start(
    sandbox: Sandbox, name: str, command: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start daemon `name` in a session of its own; what it prints goes to DIR/log/NAME.out."""
    with (sandbox.log / f"{name}.out").open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
            env={**environment, TAG: str(sandbox.folder)},
        )
    pid_file(sandbox, name).write_text(f"{process.pid}\n")
    # The kernel shows the new program's environment a moment after exec has closed our pipe.
    wait_until(lambda: process.poll() is not None or _tag_of(process.pid) is not None, 1.0)
    return process


def pid_file(sandbox: Sandbox, name: str) -> Path:
    """Ours, kept apart from those that the daemons write themselves."""
    return sandbox.run / f"{name}.started"


def pid_of(sandbox: Sandbox, name: str) -> int | None:
    """The process of daemon `name` if it is alive and still this sandbox's."""
    try:
        pid = int(pid_file(sandbox, name).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return pid if is_alive(pid) and _tag_of(pid) == str(sandbox.folder) else None


def stop(sandbox: Sandbox, name: str, grace_s: float = 5.0) -> None:
    """End daemon `name`: TERM, and KILL after `grace_s`. Nothing happens if it is gone already."""
    pid = pid_of(sandbox, name)
    if pid is not None:
        end_process(pid, grace_s)
    pid_file(sandbox, name).unlink(missing_ok=True)


def end_process(pid: int, grace_s: float) -> None:
    """TERM, wait, KILL."""
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        if wait_until(lambda: not is_alive(pid), wait_s):
            return


def is_alive(pid: int) -> bool:
    """False for zombies too: they hold nothing any more."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def leftovers(folder: Path) -> list[int]:
    """Processes that still carry this sandbox's tag."""
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _tag_of(int(entry.name)) == str(folder)
    ]


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether `condition` came true within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def wait_for(sandbox: Sandbox, name: str, condition: Callable[[], bool], timeout_s: float) -> None:
    """Wait for daemon `name` to serve; SandboxError with the end of its output if it doesn't."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        dead = pid_of(sandbox, name) is None
        if dead or time.monotonic() > deadline:
            what = "ended" if dead else f"did not serve within {timeout_s:.0f} s"
            raise SandboxError(f"{name} {what}; the end of its output:\n{_tail(sandbox, name)}")
        time.sleep(POLL_S)


def _tail(sandbox: Sandbox, name: str) -> str:
    lines: list[str] = []
    for suffix in ("out", "log"):
        file = sandbox.log / f"{name}.{suffix}"
        if file.exists():
            lines += file.read_text(errors="replace").splitlines()[-8:]
    return "\n".join(lines)


def _tag_of(pid: int) -> str | None:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    prefix = f"{TAG}=".encode()
    for entry in environment.split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode()
    return None
