"""Makes the twin's slurmd register with Slurm again, when the controller asks for it.

Slurm calls a twin invalid when its slurmd registers while slots are in use and their count has
changed since the registration before (slurm_plugin/supply.py). The controller then sets the count
back, and a SIGHUP, at which slurmd reads its configuration again and registers, makes Slurm take
the twin back. Running jobs do not notice.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from itertools import pairwise
from pathlib import Path

log = logging.getLogger(__name__)

_LEAST_GAP_S = 5.0
_CONF = b"SLURM_CONF="


class TwinRegistration:
    """Signals the slurmd of one twin, at most every few seconds."""

    def __init__(self, twin: str, *, proc: Path = Path("/proc")) -> None:
        self._twin = twin
        self._proc = proc
        self._next_s = 0.0

    def ask(self) -> None:
        """Signal the slurmd, in a thread of its own: a walk over all processes takes a while."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _LEAST_GAP_S
        threading.Thread(target=self._signal, name="register-twin", daemon=True).start()

    def _signal(self) -> None:
        found = self.slurmds()
        if not found:
            log.warning("Slurm wants %s to register again, but no slurmd of it runs", self._twin)
        for process_id in found:
            log.info("slurmd %d of %s is told to register again", process_id, self._twin)
            try:
                os.kill(process_id, signal.SIGHUP)
            except OSError as error:
                log.warning("slurmd %d of %s: %s", process_id, self._twin, error.strerror)

    def slurmds(self) -> list[int]:
        """Processes `slurmd -N TWIN` under the same slurm.conf as ours."""
        ours = os.environb.get(b"SLURM_CONF")
        found = []
        for folder in self._proc.glob("[0-9]*"):
            try:
                # slurmd runs each job's slurmstepd under another name; threads do not show here.
                if not (folder / "comm").read_bytes().startswith(b"slurmd"):
                    continue
                words = (folder / "cmdline").read_bytes().split(b"\0")
                environment = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # gone meanwhile, or not ours to read
            theirs = [item[len(_CONF) :] for item in environment if item.startswith(_CONF)]
            if _names(words, self._twin.encode()) and (theirs[0] if theirs else None) == ours:
                found.append(int(folder.name))
        return found


def _names(words: list[bytes], twin: bytes) -> bool:
    """Whether a command line has `-N twin` or `-Ntwin`."""
    after = (second for first, second in pairwise(words) if first == b"-N")
    return twin in after or b"-N" + twin in words
