"""Jobs whose end nobody told of: an epilog that came while no agent ran, or that never came."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from agent.job_of_process import JobFinder
from agent.node import Node

log = logging.getLogger(__name__)

_INTERVAL_S = 15.0


class _Missed(NamedTuple):
    """When no process of a job was seen any more."""

    awake_ns: int
    at_us: int


class ForgottenJobs:
    """Gives up jobs that have had no process for long. Main thread only, but for the look."""

    def __init__(self, node: Node, finder: JobFinder, give_up: Callable[[int, int], None]) -> None:
        """`give_up`: told of a job and when its last process was missed, in UTC microseconds."""
        self._node = node
        self._finder = finder
        self._give_up = give_up
        self._without_process: dict[int, _Missed] = {}

    @property
    def interval_s(self) -> float:
        """How often to look."""
        settings = self._node.settings
        return min(_INTERVAL_S, min(settings.forget_after_s, settings.forget_batch_after_s) / 2)

    async def look(self) -> None:
        """Looks at all processes of the host once."""
        living = await asyncio.to_thread(self._finder.processes_of_jobs)
        known = {*self._node.jobs.hosts, *self._node.jobs.fills}
        gone = known - living.keys()
        awake_ns = self._node.main_loop.awake_ns()
        now = _Missed(awake_ns, self._node.clock.now_us())
        self._without_process = {job_id: self._without_process.get(job_id, now) for job_id in gone}
        for job_id, missed in self._without_process.items():
            if awake_ns - missed.awake_ns > self._forget_after_s(job_id) * 1e9:
                try:
                    self._give_up(job_id, missed.at_us)
                except Exception:  # no job is kept because of another
                    log.exception("job %d cannot be given up", job_id)

    def _forget_after_s(self, job_id: int) -> float:
        """A batch script is a process; an allocation of salloc has none between its steps."""
        settings = self._node.settings
        fill = self._node.jobs.fills.get(job_id)
        if fill is not None and (fill.batch or fill.evicted):
            return min(settings.forget_after_s, settings.forget_batch_after_s)
        return settings.forget_after_s
