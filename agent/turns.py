"""Which fills of a GPU take turns: those that have work for it.

A fill that reads its next input from disk for a minute must not hold every second turn meanwhile.
It is shut out until its gate says that an operation waits, which the agent sees within a tick.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.attachments import Fill
from agent.board import MAX_GPUS

_IDLE_NS = 1_000_000_000


@dataclass
class _Activity:
    released: int = 0
    last_ns: int = 0


@dataclass
class Turns:
    """What the fill jobs of one GPU have lately asked of it."""

    _jobs: dict[int, _Activity] = field(default_factory=dict)

    def look(self, fills: list[Fill], uuid: str, now_ns: int) -> None:
        """Reads the fills' boards."""
        sums: dict[int, int] = {}
        wanting: set[int] = set()
        for fill in fills:
            released, wants = _asked(fill, uuid)
            job_id = fill.job.job_id
            sums[job_id] = sums.get(job_id, 0) + released
            if wants:
                wanting.add(job_id)
        self._jobs = {job_id: self._jobs.get(job_id, _Activity()) for job_id in sums}
        for job_id, released in sums.items():
            job = self._jobs[job_id]
            if job_id in wanting or released != job.released:
                job.last_ns = now_ns
            job.released = released

    def active(self, now_ns: int) -> set[int]:
        """Fill jobs that have asked for the GPU within the last second."""
        return {job_id for job_id, each in self._jobs.items() if now_ns - each.last_ns < _IDLE_NS}


def _asked(fill: Fill, uuid: str) -> tuple[int, bool]:
    """Operations that a process has released on a GPU, and whether one waits now."""
    view = fill.memory.view
    for index in range(min(int(view.gpus_used), MAX_GPUS)):
        gpu = view.gpus[index]
        if gpu.uuid == uuid.encode():
            return int(gpu.released), bool(gpu.wants)
    return 0, False
