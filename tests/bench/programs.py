"""Programs that the bench starts itself: one process group each, with a log, ended for sure."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

GRACE_S = 3.0


class ProgramError(Exception):
    """A program did not do what was asked of it; the text says why, with the end of its log."""


class Program:
    """One started program."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._sink: IO[bytes] = self.log.open("wb")
        self._process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=self._sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    @property
    def code(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._process.poll()

    def tail(self) -> str:
        """The end of what it wrote."""
        return self.log.read_text(errors="replace")[-1500:]

    def end(self, grace_s: float = 0.0) -> None:
        """Waits `grace_s`, then SIGTERM, then SIGKILL, to all that it started."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(grace_s, 0.001))
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)
        self._sink.close()


class Programs:
    """All programs of one cell; leaving the block ends them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Program] = []

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Program:
        """Starts one more."""
        program = Program(name, command, environment, self.folder)
        self.started.append(program)
        return program

    def wait(
        self, condition: Callable[[], bool], seconds: float, what: str, essential: Sequence[Program]
    ) -> None:
        """Until the condition holds; ProgramError when time is up or an essential program ended."""
        limit = time.monotonic() + seconds
        while not condition():
            for program in essential:
                if program.ended and not condition():
                    message = f"{program.name} ended with {program.code}, before {what}"
                    raise ProgramError(f"{message}:\n{program.tail()}")
            if time.monotonic() > limit:
                tails = "\n".join(f"-- {p.name}\n{p.tail()}" for p in self.started)
                raise ProgramError(f"waited {seconds:.0f} s in vain for {what}\n{tails}")
            time.sleep(0.05)

    def __enter__(self) -> Programs:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for program in reversed(self.started):
            program.end()
