"""Which fills of a GPU take turns, and which processes of each: those that have work for it.

A fill that reads its next input from disk for a minute must not hold every second turn meanwhile.
It is shut out until its gate says that an operation waits, which the agent sees within a tick.
Jobs have equal shares, whatever the number of their processes: those divide the job's turns among
them, since of two that ran at once none could say how long it had the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.attachments import Fill, section_of
from agent.board import FillGpu
from agent.processes import is_stopped

_IDLE_NS = 1_000_000_000


@dataclass
class _Activity:
    job_id: int
    released: int = 0
    last_ns: int = 0

    def is_recent(self, now_ns: int) -> bool:
        return now_ns - self.last_ns < _IDLE_NS


@dataclass
class Turns:
    """What the processes of fill jobs have lately asked of one GPU."""

    _processes: dict[int, _Activity] = field(default_factory=dict)  # by board

    def look(self, fills: list[Fill], now_ns: int) -> None:
        """Reads the fills' boards, and writes there who of a job's processes has its turns."""
        sections = {fill.board_id: (fill, section_of(fill)) for fill in fills}
        self._processes = {
            board_id: self._processes.get(board_id, _Activity(fill.job.job_id))
            for board_id, (fill, _) in sections.items()
        }
        of_job: dict[int, list[tuple[int, FillGpu]]] = {}
        for board_id, (fill, section) in sections.items():
            if section is None:
                continue
            of_job.setdefault(fill.job.job_id, []).append((board_id, section))
            process = self._processes[board_id]
            waits = section.wants and not is_stopped(fill.process.process_id)
            if waits or section.released != process.released:
                process.last_ns = now_ns
            process.released = int(section.released)
        for processes in of_job.values():
            self._divide(processes, now_ns)

    def active(self, now_ns: int) -> set[int]:
        """Fill jobs that have asked for the GPU within the last second."""
        return {each.job_id for each in self._processes.values() if each.is_recent(now_ns)}

    def _divide(self, processes: list[tuple[int, FillGpu]], now_ns: int) -> None:
        """One process needs no place; of several those have one that have lately had work, or all,
        where none has: those that then begin together are not alone either."""
        every = [board_id for board_id, _ in processes]
        active = [each for each in every if self._processes[each].is_recent(now_ns)] or every
        members = len(active) if len(every) > 1 else 0
        for board_id, section in processes:
            placed = members and board_id in active
            section.member = active.index(board_id) if placed else members
            section.members = members
