"""An MPS control daemon of the bench's own, in a folder of its own, stopped whatever happens."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType

CONTROL = "nvidia-cuda-mps-control"
START_S = 10.0
ASK_S = 5.0
QUIT_S = 8.0


def is_there() -> bool:
    """Whether the machine has MPS's control program."""
    return shutil.which(CONTROL) is not None


def is_alive(pid: int) -> bool:
    """Whether a process of that number is there and no zombie."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


class MpsDaemon:
    """Runs while the block does; clients need `environment`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "mps"
        self.environment = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self._folder / "log"),
        }

    def ask(self, command: str) -> str | None:
        """The daemon's answer to one of its commands; None when there is none."""
        try:
            done = subprocess.run(
                [CONTROL],
                input=command + "\n",
                env={**os.environ, **self.environment},
                capture_output=True,
                text=True,
                timeout=ASK_S,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    def _processes(self) -> list[int]:
        """The daemon and its servers, as far as they can be told."""
        found = [
            int(word) for word in (self.ask("get_server_list") or "").split() if word.isdigit()
        ]
        with contextlib.suppress(OSError, ValueError):
            found.append(int((self._folder / "pipe" / f"{CONTROL}.pid").read_text()))
        return found

    def __enter__(self) -> MpsDaemon:
        shutil.rmtree(self._folder, ignore_errors=True)
        for name in ("pipe", "log"):
            (self._folder / name).mkdir(parents=True)
        with (self._folder / "log" / "start.log").open("wb") as said:
            subprocess.run(
                [CONTROL, "-d"],
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                timeout=START_S,
            )
        limit = time.monotonic() + START_S
        while self.ask("get_server_list") is None:
            if time.monotonic() > limit:
                self._stop()
                raise RuntimeError(f"{CONTROL} did not start; its log: {self.log()}")
            time.sleep(0.1)
        return self

    def log(self) -> str:
        """The end of what the daemon wrote."""
        files = sorted((self._folder / "log").glob("*.log"))
        return "\n".join(file.read_text(errors="replace")[-800:] for file in files)

    def _stop(self) -> None:
        processes = self._processes()
        self.ask("quit -t 2")
        limit = time.monotonic() + QUIT_S
        while any(map(is_alive, processes)) and time.monotonic() < limit:
            time.sleep(0.1)
        for pid in filter(is_alive, processes):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()
