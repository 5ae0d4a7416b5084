"""One MPS control daemon (`nvidia-cuda-mps-control`), as a program that is started, asked, stopped.

Everything here may wait and is called from threads. A daemon outlives the agent that started it:
training depends on it, so it detaches (`-d`) and is found again by the pid file in its folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from agent.proc_files import fields_of_stat

_LOOK_AGAIN_S = 0.05
_ASK_S = 2.0
_LOG_BYTES = 300


class MpsError(Exception):
    """The daemon does not start or does not answer; the text is one sentence."""


@dataclass(frozen=True)
class MpsDaemon:
    """A daemon for the GPUs of one host job.

    `folder` is the daemon's own, owned by the agent's user; `several_users` lets clients of
    different users be served at once (`-M`).
    """

    program: str
    folder: Path
    gpus: tuple[str, ...]
    several_users: bool

    @property
    def pipe(self) -> Path:
        """What clients are told in CUDA_MPS_PIPE_DIRECTORY."""
        return self.folder / "pipe"

    def start(self, user_id: int, seconds: float) -> None:
        """Starts the daemon, and a server ahead of the first client, so that a server that can't
        start is found before training depends on it. Raises MpsError; nothing is left then."""
        deadline = time.monotonic() + seconds
        try:
            self._make_folders()
            self._launch(deadline)
            self._start_server(user_id, deadline)
        except (OSError, subprocess.SubprocessError, MpsError) as error:
            said = self._log_end()
            self.stop(0.5)
            raise MpsError(f"{error}{f'; its log ends: {said}' if said else ''}") from error

    def _make_folders(self) -> None:
        """Users' processes reach the sockets; only root can add to the folders or replace them."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for folder in (self.folder.parent, self.folder, self.pipe, self.folder / "log"):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700 if folder.name == "log" else 0o755)

    def _launch(self, deadline: float) -> None:
        command = [self.program, "-d", *(["-M"] if self.several_users else [])]
        try:
            done = subprocess.run(
                command,
                env=self._environment(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                timeout=max(0.1, deadline - time.monotonic()),
            )
        except FileNotFoundError:
            raise MpsError(f"{self.program} is not installed") from None
        if done.returncode != 0:
            raise MpsError(f"{self.program} ended with {done.returncode}")
        while self.process_id() is None:
            self._pause(deadline, "it did not start in time")

    def _start_server(self, user_id: int, deadline: float) -> None:
        # A server for several users is root's; which user such a daemon wants named is not
        # documented, so root is tried first.
        for owner in (0, user_id) if self.several_users else (user_id,):
            self.ask(f"start_server -uid {owner}")
            half = time.monotonic() + (deadline - time.monotonic()) / (1 if owner else 2)
            while time.monotonic() < half:
                if any(self._is_active(server) for server in self.servers()):
                    return
                time.sleep(_LOOK_AGAIN_S)
        raise MpsError("no server of it came up in time")

    def _is_active(self, server: int) -> bool:
        return "active" in self.ask(f"get_server_status {server}").lower()

    @staticmethod
    def _pause(deadline: float, late: str) -> None:
        if time.monotonic() > deadline:
            raise MpsError(late)
        time.sleep(_LOOK_AGAIN_S)

    def _environment(self) -> dict[str, str]:
        """The agent's own without what steers CUDA; the daemon and its servers see these GPUs."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("CUDA_")}
        return {
            **kept,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.folder / "log"),
            "CUDA_VISIBLE_DEVICES": ",".join(self.gpus),
        }

    def ask(self, command: str, seconds: float = _ASK_S) -> str:
        """The daemon's answer to one of its commands. Raises MpsError."""
        try:
            done = subprocess.run(
                [self.program],
                input=command + "\n",
                env=self._environment(),
                cwd="/",
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            raise MpsError("it does not answer") from None
        except OSError as error:
            raise MpsError(f"it can't be asked: {error}") from error
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise MpsError(said[0] if said else f"{command}: exit code {done.returncode}")
        return done.stdout

    def process_id(self) -> int | None:
        """The daemon's process, if it is alive."""
        try:
            process_id = int((self.pipe / "nvidia-cuda-mps-control.pid").read_text())
            mine = f"CUDA_MPS_PIPE_DIRECTORY={self.pipe}".encode()
            environment = Path(f"/proc/{process_id}/environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        # The pid file may be older than the process of that number.
        return process_id if mine in environment and is_alive(process_id) else None

    def servers(self) -> list[int]:
        """Processes of its servers. Raises MpsError."""
        return _numbers(self.ask("get_server_list"))

    def clients(self) -> dict[int, int]:
        """The server of each client process. Raises MpsError."""
        return {
            client: server
            for server in self.servers()
            for client in _numbers(self.ask(f"get_client_list {server}"))
        }

    def terminate(self, process_ids: list[int], seconds: float) -> list[int]:
        """Has the server take these clients' work off the GPU, as far as they are its clients and
        the time allows; the processes themselves live on. Returns those it was done for."""
        deadline, done = time.monotonic() + seconds, []
        with contextlib.suppress(MpsError):
            known = self.clients()
            for process_id in process_ids:
                left = deadline - time.monotonic()
                if process_id in known and left > 0:
                    self.ask(f"terminate_client {known[process_id]} {process_id}", left)
                    done.append(process_id)
        return done

    def stop(self, seconds: float) -> None:
        """Ends the daemon and its servers, by force after `seconds`, and removes its folder."""
        deadline = time.monotonic() + seconds
        if self.process_id() is not None:
            with contextlib.suppress(MpsError):
                self.ask(f"quit -t {max(1, round(seconds))}", seconds)
        while (processes := self._processes()) and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN_S)
        for process_id in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process_id, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _processes(self) -> list[int]:
        """The daemon and its servers, by the log folder in their environment: clients have none,
        and a server may have lost its parent."""
        mine = f"CUDA_MPS_LOG_DIRECTORY={self.folder / 'log'}".encode()
        found = []
        for each in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if mine in (each / "environ").read_bytes().split(b"\0") and is_alive(
                    int(each.name)
                ):
                    found.append(int(each.name))
        return found

    def _log_end(self) -> str:
        for name in ("server.log", "control.log"):
            with contextlib.suppress(OSError):
                text = (self.folder / "log" / name).read_text(errors="replace").strip()
                if text:
                    return " ".join(text[-_LOG_BYTES:].split())
        return ""


def is_alive(process_id: int) -> bool:
    """False for zombies too."""
    return fields_of_stat(process_id)[:1] not in ([], ["Z"], ["X"])


def parent_of(process_id: int) -> int:
    """The parent's process id; 0 when the process is gone."""
    fields = fields_of_stat(process_id)
    return int(fields[1]) if len(fields) > 1 else 0


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split() if word.isdigit()]
