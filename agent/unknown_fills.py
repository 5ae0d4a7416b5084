"""Fill jobs that run here and that this agent does not know: the state of an earlier life is lost.

Which memory was promised to them, and beside which training, nobody knows any more: they can't be
taken on again, and are shut for ever. So they leave and are requeued, as evicted fills are. What
can be verified counts: the cgroup of their processes names a job on the twin, and their environment
has the gate's role, which slurmstepd put there; a training that says it is a gate is on another
node. Jobs are known before their first process runs, so whoever is unknown for some looks stays so.
"""

from __future__ import annotations

import asyncio
import pwd
import signal
from pathlib import Path

from agent.eviction import Eviction, signal_member
from agent.job_of_process import JobFinder
from agent.node import Node

INTERVAL_S = 5.0
PATIENCE_S = 8.0
_LOOK_AGAIN_S = 0.5


class UnknownFills:
    """Evicts fill jobs that nobody admitted. Main thread only, but for looks at processes."""

    def __init__(
        self, node: Node, finder: JobFinder, eviction: Eviction, *, state_lost: bool
    ) -> None:
        self._node = node
        self._finder = finder
        self._eviction = eviction
        self._why = "not known to this agent" + (": its state was lost" if state_lost else "")
        self._first_seen_ns: dict[int, int] = {}
        self._leaving: dict[int, asyncio.Task[None]] = {}

    async def look(self) -> None:
        """Looks at all processes of the twin once; evicts whoever has been unknown for long."""
        settings = self._node.settings
        gated = await asyncio.to_thread(
            self._finder.gated_processes, settings.twin, settings.socket_path
        )
        unknown = {job_id: found for job_id, found in gated.items() if not self._knows(job_id)}
        now_ns = self._node.main_loop.awake_ns()
        self._first_seen_ns = {
            job_id: self._first_seen_ns.get(job_id, now_ns) for job_id in unknown
        }
        self._leaving = {
            job_id: task
            for job_id, task in self._leaving.items()
            if job_id in unknown or not task.done()
        }
        for job_id, first_ns in self._first_seen_ns.items():
            if now_ns - first_ns >= PATIENCE_S * 1e9 and job_id not in self._leaving:
                self._leaving[job_id] = asyncio.create_task(self._evict(job_id, unknown[job_id]))

    def _knows(self, job_id: int) -> bool:
        """What was refused is being requeued already."""
        jobs = self._node.jobs
        return job_id in jobs.fills or job_id in jobs.hosts or job_id in jobs.refused

    async def _evict(self, job_id: int, process_ids: list[int]) -> None:
        node, settings = self._node, self._node.settings
        user = await asyncio.to_thread(_user_of, process_ids)
        if self._knows(job_id):
            return
        node.requeue.add(job_id)
        text = f"fill job {job_id} is evicted: {self._why}"
        node.ledger.event("evicted", text, job_id=job_id, user=user)
        node.refresh()
        for wait_s, number in (
            (settings.evict_grace_s, signal.SIGTERM),
            (settings.evict_kill_s, signal.SIGKILL),
        ):
            if not (members := await self._left_after(job_id, wait_s)):
                return
            self._eviction.signalled.add(job_id)
            text = f"fill job {job_id} did not leave: {number.name} to {len(members)} process(es)"
            node.ledger.event("killed", text, job_id=job_id, user=user)
            for process_id in members:
                signal_member(self._finder, process_id, job_id, number)

    async def _left_after(self, job_id: int, seconds: float) -> list[int]:
        """The job's processes that are still there after so long; none once it has begun anew."""
        loop = self._node.main_loop
        awake_ns = loop.awake_ns()
        while True:
            found = await asyncio.to_thread(self._finder.processes_of_jobs)
            members = [] if self._knows(job_id) else found.get(job_id, [])
            if not members or loop.awake_ns() - awake_ns > seconds * 1e9:
                return members
            await asyncio.sleep(_LOOK_AGAIN_S)


def _user_of(process_ids: list[int]) -> str | None:
    for process_id in process_ids:
        try:
            return pwd.getpwuid(Path(f"/proc/{process_id}").stat().st_uid).pw_name
        except (OSError, KeyError):
            continue
    return None
