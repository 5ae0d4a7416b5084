"""What else the machine did while a test ran: what to read first when a figure was missed."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
BUSIEST = 8


@dataclass(frozen=True)
class MachineTimes:
    """Processor time since boot, in clock ticks."""

    taken_s: float
    by_state: dict[str, int]
    by_process: dict[tuple[int, str], int]

    @classmethod
    def now(cls) -> MachineTimes:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
        by_state = dict(zip(STATES, map(int, fields), strict=False))
        return cls(time.monotonic(), by_state, dict(_processes()))


def _processes() -> list[tuple[tuple[int, str], int]]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text(errors="replace")
        except OSError:
            continue
        name, _, rest = text.partition("(")[2].rpartition(")")
        user, system = rest.split()[11:13]
        found.append(((int(folder.name), name), int(user) + int(system)))
    return found


def report(before: MachineTimes, now: MachineTimes) -> str:
    """Shares of the processors' time by state, and the busiest processes, since `before`."""
    span_s = max(now.taken_s - before.taken_s, 1 / TICKS_PER_S)
    ticks = {state: now.by_state[state] - before.by_state.get(state, 0) for state in now.by_state}
    whole = max(sum(ticks.values()), 1)
    shares = ", ".join(f"{state} {100 * each / whole:.1f} %" for state, each in ticks.items())
    used = {who: each - before.by_process.get(who, 0) for who, each in now.by_process.items()}
    busiest = sorted(used.items(), key=lambda item: -item[1])[:BUSIEST]
    lines = [
        f"{100 * each / TICKS_PER_S / span_s:5.1f} % of a processor: {name} ({process})"
        for (process, name), each in busiest
        if each > 0
    ]
    load = Path("/proc/loadavg").read_text().strip()
    return "\n".join([f"{span_s:.1f} s: {shares}; load {load}", *lines])
