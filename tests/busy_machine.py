"""What else the machine did while a test ran: what to read first when a figure was missed."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from agent.proc_files import fields_of_stat, read_text

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
BUSIEST = 8


@dataclass(frozen=True)
class MachineTimes:
    """Processor time since boot, in clock ticks."""

    taken_s: float
    by_state: dict[str, int]
    by_process: dict[int, int]

    @classmethod
    def now(cls) -> MachineTimes:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
        by_state = dict(zip(STATES, map(int, fields), strict=False))
        return cls(time.monotonic(), by_state, _by_process())


def _by_process() -> dict[int, int]:
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        process = int(folder.name)
        if fields := fields_of_stat(process):
            found[process] = int(fields[11]) + int(fields[12])
    return found


def _name(process: int) -> str:
    try:
        return read_text(Path(f"/proc/{process}/comm")).strip()
    except OSError:
        return "gone"


def report(before: MachineTimes, now: MachineTimes) -> str:
    """Shares of the processors' time by state, and the busiest processes, since `before`."""
    span_s = max(now.taken_s - before.taken_s, 1 / TICKS_PER_S)
    ticks = {state: now.by_state[state] - before.by_state.get(state, 0) for state in now.by_state}
    whole = max(sum(ticks.values()), 1)
    shares = ", ".join(f"{state} {100 * each / whole:.1f} %" for state, each in ticks.items())
    used = {one: each - before.by_process.get(one, 0) for one, each in now.by_process.items()}
    busiest = sorted(used.items(), key=lambda item: -item[1])[:BUSIEST]
    lines = [
        f"{100 * each / TICKS_PER_S / span_s:5.1f} % of a processor: {_name(process)} ({process})"
        for process, each in busiest
        if each > 0
    ]
    load = Path("/proc/loadavg").read_text().strip()
    return "\n".join([f"{span_s:.1f} s: {shares}; load {load}", *lines])
