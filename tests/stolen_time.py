"""How much of the processors' time a test did not get, for what it judges by time.

On a virtual machine whose host is busy, a processor stands still for milliseconds at a time; the
guest's own accounting does not always tell (`steal` of /proc/stat may stay 0). A witness on each
processor sleeps for a millisecond, over and over, before everything else that could run there
(SCHED_FIFO): what it wakes late by was taken from all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NAP_S = 0.001
USUAL_LATE_S = 0.0003
"""A witness that has its processor at once wakes this late at most: timer slack and Python."""


@dataclass
class StolenTime:
    """Filled in when the span that it is of has ended."""

    share: float = 0.0
    """Of the processors' time in the span, from 0 to 1; the mean of all processors."""

    @property
    def given(self) -> float:
        """What was left of the processors' time, from 0 to 1."""
        return 1 - self.share


@contextlib.contextmanager
def stolen_time() -> Iterator[StolenTime]:
    """What is stolen while the body runs."""
    found = StolenTime()
    witnesses = [
        subprocess.Popen(
            [sys.executable, "-S", str(Path(__file__)), str(processor)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        for processor in sorted(os.sched_getaffinity(0))
    ]
    try:
        yield found
    finally:
        for witness in witnesses:
            witness.send_signal(signal.SIGTERM)
        told = [witness.communicate(timeout=30)[0] for witness in witnesses]
    if all(told):  # else witnesses may not come first here: nothing is excused
        found.share = sum(map(float, told)) / len(told)


def watch(processor: int) -> None:
    """Print the stolen share of one processor's time when told to end."""
    late_s = 0.0

    def tell(*_: object) -> None:
        print(late_s / max(time.monotonic() - began_s, NAP_S), flush=True)
        os._exit(0)

    os.sched_setaffinity(0, {processor})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    began_s = time.monotonic()
    signal.signal(signal.SIGTERM, tell)
    while True:
        asleep_s = time.monotonic()
        time.sleep(NAP_S)
        woke_late_s = time.monotonic() - asleep_s - NAP_S
        if woke_late_s > USUAL_LATE_S:
            late_s += woke_late_s


if __name__ == "__main__":
    watch(int(sys.argv[1]))
