"""Gets fill jobs off their GPU: shut at once, then told, requeued, and killed if they stay.

The requeue is the controller's (it speaks to Slurm); the agent lists the job in its report and
meanwhile waits. A fill that is still there after its grace gets SIGTERM, then SIGKILL: the next
training must find the GPU clean, even with the controller away.
"""

from __future__ import annotations

import asyncio
import logging
import signal

from agent.clock import now_ns
from agent.job_of_process import JobFinder
from agent.jobs import FillJob
from agent.mps import Mps
from agent.node import Node
from agent.packet import Packet
from agent.processes import ProcessGoneError, WatchedProcess

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.1
_LOOK_SOON_S = 0.002


class Eviction:
    """Evicts fill jobs; every step is in the audit log."""

    def __init__(self, node: Node, finder: JobFinder, mps: Mps) -> None:
        self._node = node
        self._mps = mps
        self._finder = finder
        self._running: set[asyncio.Task[None]] = set()
        self.signalled: set[int] = set()  # jobs that were killed by us: they did not just finish

    def begin(self, fills: list[FillJob], reason: str, *, grace_s: float | None = None) -> None:
        """Shuts the gates of these fills, asks for their requeue and sees that they go.

        `grace_s` is the time until SIGTERM; None: the setting.
        """
        fresh = [fill for fill in fills if not fill.evicted]
        if not fresh:
            return
        for fill in fresh:
            fill.evicted = reason
            self._node.requeue.add(fill.job_id)
        self._node.refresh()
        for fill in fresh:
            text = f"fill job {fill.job_id} is evicted: {reason}"
            self._node.ledger.event(
                "evicted", text, job_id=fill.job_id, gpu=fill.gpu, user=fill.user
            )
            for attached in self._node.fills.values():
                if attached.job.job_id == fill.job_id and attached.connection is not None:
                    attached.connection.send(Packet("evict", {"reason": reason}))
        self._spawn(fresh, self._node.settings.evict_grace_s if grace_s is None else grace_s)

    def resume(self) -> None:
        """After a restart of the agent: goes on with what was being evicted."""
        evicted = [fill for fill in self._node.jobs.fills.values() if fill.evicted]
        self._node.requeue |= {fill.job_id for fill in evicted}
        self._spawn(evicted, self._node.settings.evict_grace_s)

    def _spawn(self, fills: list[FillJob], grace_s: float) -> None:
        if fills:
            task = asyncio.create_task(self._see_off(fills, grace_s))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _see_off(self, fills: list[FillJob], grace_s: float) -> None:
        settings = self._node.settings
        if grace_s and await self.wait(fills, grace_s):
            return
        await self._signal(fills, signal.SIGTERM)
        if await self.wait(fills, settings.evict_kill_s):
            return
        await self._signal(fills, signal.SIGKILL)
        if not await self.wait(fills, settings.evict_wait_s):
            await asyncio.gather(*(self._withdraw(fill) for fill in fills))

    async def _withdraw(self, fill: FillJob) -> None:
        """A process outlived SIGKILL, in the driver most likely: its GPU lends nothing until it is
        gone."""
        gpu = self._node.gpus.get(fill.gpu)
        if gpu is None or await self.wait([fill], 0):
            return
        gpu.kept_by = f"fill job {fill.job_id} was killed but is still on the GPU"
        self._tell("stuck", gpu.kept_by, fill)
        self._node.refresh()
        await self.wait([fill], float("inf"))
        gpu.kept_by = ""
        self._tell("stuck", f"fill job {fill.job_id} has left the GPU at last", fill)
        self._node.refresh()

    def _tell(self, what: str, text: str, fill: FillJob) -> None:
        self._node.ledger.event(what, text, job_id=fill.job_id, gpu=fill.gpu, user=fill.user)

    async def kill(self, jobs: set[int], reason: str, grace_s: float, most_s: float) -> bool:
        """Evicts with SIGKILL: memory is wanted now. False when they still were there after most_s.

        Only processes with a board are waited for: the guard kills others that it sees.
        """
        began, known = now_ns(), self._node.jobs.fills
        self.begin([known[job_id] for job_id in sorted(jobs) if job_id in known], reason)
        await self._gone(jobs, began + round(grace_s * 1e9))
        await self._off_the_servers(jobs)
        for attached in list(self._node.fills.values()):
            if attached.job.job_id in jobs:
                self.signalled.add(attached.job.job_id)
                attached.process.signal(signal.SIGKILL)
        return await self._gone(jobs, began + round(most_s * 1e9))

    async def _off_the_servers(self, jobs: set[int]) -> None:
        """Under MPS, takes the work of these fills off the GPU before they are killed."""
        by_host: dict[int | None, list[int]] = {}
        for attached in self._node.fills.values():
            if attached.job.job_id in jobs:
                by_host.setdefault(attached.host_job_id, []).append(attached.process.process_id)
        for host_job_id, process_ids in by_host.items():
            await self._mps.terminate(host_job_id, process_ids)

    async def _gone(self, jobs: set[int], deadline_ns: int) -> bool:
        while any(attached.job.job_id in jobs for attached in self._node.fills.values()):
            if now_ns() > deadline_ns:
                return False
            await asyncio.sleep(_LOOK_SOON_S)
        return True

    async def wait(self, fills: list[FillJob], seconds: float) -> bool:
        """Waits until none of the fills' processes is on a GPU; False when time runs out first."""
        began = now_ns()
        # In a standstill of ours nobody could requeue the fills.
        loop = self._node.main_loop
        awake_ns = loop.awake_ns()
        while self._still_there(fills, began):
            if loop.awake_ns() - awake_ns > seconds * 1e9:
                return False
            await asyncio.sleep(_LOOK_AGAIN_S)
        return True

    def _still_there(self, fills: list[FillJob], began: int) -> bool:
        """By boards and by NVML: a scan counts only if it began after we did."""
        jobs = {fill.job_id for fill in fills}
        if any(attached.job.job_id in jobs for attached in self._node.fills.values()):
            return True
        for fill in fills:
            gpu = self._node.gpus.get(fill.gpu)
            if gpu is None or not self._node.settings.guard:
                continue
            if gpu.scanned_ns < began or fill.job_id in gpu.fill_used_bytes:
                return True  # an entry stands for a process, whatever memory it holds
        return False

    async def _signal(self, fills: list[FillJob], number: signal.Signals) -> None:
        """An error keeps no later signal from being sent."""
        try:
            await self._signal_members(fills, number)
        except Exception:
            log.exception("an unforeseen error at %s", number.name)

    async def _signal_members(self, fills: list[FillJob], number: signal.Signals) -> None:
        found = await asyncio.to_thread(self._finder.processes_of_jobs)
        for fill in fills:
            members = found.get(fill.job_id, [])
            if not members:
                continue
            text = (
                f"fill job {fill.job_id} did not leave: {number.name} to {len(members)} process(es)"
            )
            self._node.ledger.event(
                "killed", text, job_id=fill.job_id, gpu=fill.gpu, user=fill.user
            )
            self.signalled.add(fill.job_id)
            await self._mps.terminate(fill.host_job_id, members)
            for process_id in members:
                signal_member(self._finder, process_id, fill.job_id, number)

    async def kill_process(self, process_id: int, job_id: int, host_job_id: int | None) -> bool:
        """Kills one process of a job, if it is (still) that job's."""
        await self._mps.terminate(host_job_id, [process_id])
        return signal_member(self._finder, process_id, job_id, signal.SIGKILL)

    def is_server(self, process_id: int) -> bool:
        """Whether a process on a GPU is an MPS server, which stands for its clients."""
        return self._mps.is_server(process_id)


def signal_member(finder: JobFinder, process_id: int, job_id: int, number: signal.Signals) -> bool:
    """Sends a signal to a process if it is (still) one of this job."""
    try:
        process = WatchedProcess.of_id(process_id)
    except ProcessGoneError:
        return False
    try:
        # The job is looked up after the pidfd was opened: the number can't have changed hands.
        job = finder.job_of(process_id)
        if job is None or job.job_id != job_id or not process.alive():
            return False
        process.signal(number)
        return True
    finally:
        process.close()
