"""One agent a node: two would take each other's socket, and number two batches alike in a spool."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from agent.settings import AgentSettings

_POLL_S = 0.05


class AnotherAgentError(OSError):
    """Another sfilld runs with the same spool or socket; the text is one sentence."""


def hold(settings: AgentSettings, *, wait_s: float = 5.0) -> list[int]:
    """Lock spool and socket for as long as this process lives; the descriptors that hold them.

    An agent that is just being stopped is waited for. Raises OSError.
    """
    spool, socket = settings.spool_dir, Path(settings.socket_path)
    spool.mkdir(parents=True, exist_ok=True, mode=0o700)
    socket.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_s
    # The folder itself is locked: on a full disk there may be no room for a file.
    folder = os.open(spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    _lock(folder, f"the spool {spool}", deadline)
    beside = socket.with_name(f"{socket.name}.lock")
    file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _lock(file, f"the socket {socket}", deadline)
    return [folder, file]


def _lock(descriptor: int, what: str, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise AnotherAgentError(f"another sfilld uses {what}") from None
            time.sleep(_POLL_S)
