"""Sharing by MPS: which host job has a control daemon, whether it lives, when it may go.

Each host job that shares by MPS has a daemon of its own, for its GPUs only: a process speaks to one
daemon for all of its GPUs, and a server that fails takes no other job along. It is started before
the job's first step and stopped after its end, never by a restart of the agent, which adopts it.
Where it can't start or dies the job shares by time slicing and the ledger says why: training starts
in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from agent.jobs import HostJob
from agent.mps_daemon import MpsDaemon, MpsError, parent_of
from agent.node import Node
from db.wire.messages import ShareMode

log = logging.getLogger(__name__)

STARTING = "MPS is being started"
LOOK_S = 2.0
_SILENT_LOOKS = 3
_QUIT_S = 2.0


class Mps:
    """The node's MPS daemons. Main thread only; what waits is done on threads."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._folder = Path(node.settings.socket_path).parent / f"mps-{node.settings.node}"
        self._daemons: dict[int, MpsDaemon] = {}  # that serve, by host job
        self._starting: dict[int, asyncio.Task[None]] = {}
        self._ending: dict[int, asyncio.Task[None]] = {}
        self._leaving: dict[int, MpsDaemon] = {}  # whose host job has ended
        self._watched: dict[int, tuple[int, int]] = {}  # by host job: process id, pidfd
        self._silent: dict[int, int] = {}  # looks without an answer, by host job
        self._running: set[asyncio.Task[Any]] = set()
        # Set by the agent: fills that are clients of a lost daemon have to leave.
        self.on_lost: Callable[[HostJob], None] = lambda host: None

    def _daemon_of(self, job_id: int, gpus: list[str]) -> MpsDaemon:
        minors = {gpu.uuid: gpu.device.minor for gpu in self._node.gpus.values()}
        settings = self._node.settings
        # In the order in which the job counts them: Slurm numbers a job's GPUs by their minor.
        ordered = sorted(gpus, key=lambda uuid: minors.get(uuid, 0))
        return MpsDaemon(
            settings.mps_program,
            self._folder / str(job_id),
            tuple(ordered),
            settings.mps_for != "same-user",
        )

    # Begin

    def begin(self, host: HostJob, why: str) -> None:
        """Starts the daemon of a host job that is to share by MPS; `settled` waits for it."""
        host.share_mode, host.share_reason = ShareMode.TIMESLICE, STARTING
        self._starting[host.job_id] = self._spawn(self._start(host, why))

    async def _start(self, host: HostJob, why: str) -> None:
        settings = self._node.settings
        daemon = self._daemon_of(host.job_id, host.gpus)
        if (ending := self._ending.get(host.job_id)) is not None:
            await asyncio.wait([ending])
        failed = ""
        try:
            await asyncio.to_thread(daemon.start, host.user_id, settings.mps_start_s)
        except MpsError as error:
            failed = f"MPS did not start: {error}"
        if self._node.jobs.hosts.get(host.job_id) is not host:
            failed = failed or "the job has ended"
        elif host.share_reason != STARTING:
            failed = host.share_reason  # a step began before it was ready
        if not failed and not self._watch(host, daemon):
            failed = "MPS did not start: its daemon has ended"
        if failed:
            await asyncio.to_thread(daemon.stop, _QUIT_S)
            self._settle(host, ShareMode.TIMESLICE, failed)
        else:
            self._settle(host, ShareMode.MPS, why)
        self._starting.pop(host.job_id, None)

    def _settle(self, host: HostJob, mode: ShareMode, reason: str) -> None:
        if self._node.jobs.hosts.get(host.job_id) is not host:
            return
        host.share_mode, host.share_reason = mode, reason
        self._node.ledger.add(host.record())
        text = f"host job {host.job_id} shares its GPUs by {mode}: {reason}"
        self._node.ledger.event("share", text, job_id=host.job_id, user=host.user)
        self._node.refresh()

    def is_starting(self, job_id: int) -> bool:
        """Whether it is yet to be known if the job shares by MPS."""
        return job_id in self._starting

    async def settled(self, job_id: int) -> None:
        """Returns once it is known whether the job shares by MPS."""
        if (task := self._starting.get(job_id)) is not None:
            await asyncio.wait([task])

    def pipe_for_step(self, host: HostJob) -> str:
        """The pipe directory for a step of a host job; empty: none. A training that has begun
        without MPS can't come to it later, so the first step settles the question."""
        if host.job_id in self._starting and host.share_reason == STARTING:
            host.share_reason = "its first step began before MPS was ready"
        return self.pipe_of(host)

    def pipe_of(self, host: HostJob) -> str:
        """The pipe directory for fills beside a host job; empty: time slicing."""
        daemon = self._daemons.get(host.job_id)
        return str(daemon.pipe) if daemon and host.share_mode == ShareMode.MPS else ""

    # While it runs

    def _watch(self, host: HostJob, daemon: MpsDaemon) -> bool:
        """Follows a daemon; False when it is gone already."""
        process_id = daemon.process_id()
        if process_id is None:
            return False
        try:
            descriptor = os.pidfd_open(process_id)
        except OSError:
            return False
        self._daemons[host.job_id] = daemon
        self._watched[host.job_id] = (process_id, descriptor)
        asyncio.get_running_loop().add_reader(descriptor, self._lost, host.job_id, "it has ended")
        return True

    def _unwatch(self, job_id: int) -> MpsDaemon | None:
        if (watched := self._watched.pop(job_id, None)) is not None:
            asyncio.get_running_loop().remove_reader(watched[1])
            os.close(watched[1])
        self._silent.pop(job_id, None)
        return self._daemons.pop(job_id, None)

    def _lost(self, job_id: int, why: str) -> None:
        """New processes of the job find no daemon and share by time slicing; what runs goes on with
        the server that it has, so the daemon's folder and its servers stay until the job ends."""
        self._unwatch(job_id)
        host = self._node.jobs.hosts.get(job_id)
        if host is not None:
            self._settle(host, ShareMode.TIMESLICE, f"its MPS daemon failed: {why}")
            self.on_lost(host)

    async def look(self) -> None:
        """Asks the daemons whether they still answer; every LOOK_S."""
        for job_id, daemon in list(self._daemons.items()):
            try:
                await asyncio.to_thread(daemon.servers)
                self._silent.pop(job_id, None)
            except MpsError as error:
                self._silent[job_id] = self._silent.get(job_id, 0) + 1
                if self._silent[job_id] >= _SILENT_LOOKS and job_id in self._daemons:
                    self._lost(job_id, str(error))

    def is_server(self, process_id: int) -> bool:
        """Whether a process on a GPU is a server of ours: it stands for its clients."""
        controls = {process_id for process_id, _ in self._watched.values()}
        return bool(controls) and parent_of(process_id) in controls

    async def terminate(self, host_job_id: int | None, process_ids: list[int]) -> None:
        """Takes fills' work off the GPU before they are killed: a kill in flight can upset the
        server that training depends on. Bounded; the kill follows in any case."""
        job_id = host_job_id or 0
        daemon = self._daemons.get(job_id) or self._leaving.get(job_id)
        if daemon is None or not process_ids:
            return
        seconds = self._node.settings.mps_terminate_s
        ask = asyncio.to_thread(daemon.terminate, process_ids, seconds)
        with contextlib.suppress(TimeoutError):
            done = await asyncio.wait_for(ask, seconds)
            for process_id in done:
                text = f"process {process_id} was taken off the MPS server of job {host_job_id}"
                self._node.ledger.event("mps_client", text, job_id=host_job_id)

    # End

    def end(self, host: HostJob) -> None:
        """The job has ended: its daemon goes once its clients have."""
        daemon = self._unwatch(host.job_id)
        if daemon is None and (self._folder / str(host.job_id)).exists():
            daemon = self._daemon_of(host.job_id, host.gpus)
        if daemon is not None and host.job_id not in self._starting:
            self._stop_later(daemon, host.job_id)

    def _stop_later(self, daemon: MpsDaemon, job_id: int) -> None:
        self._leaving[job_id] = daemon
        self._ending[job_id] = self._spawn(self._stop(job_id, daemon))

    async def _stop(self, job_id: int, daemon: MpsDaemon) -> None:
        settings = self._node.settings
        most_s = settings.evict_grace_s + settings.evict_kill_s + 1
        with contextlib.suppress(MpsError, TimeoutError):
            async with asyncio.timeout(most_s):
                while clients := await asyncio.to_thread(daemon.clients):
                    await self._terminate_killed(daemon, list(clients))
                    await asyncio.sleep(0.1)
        await asyncio.to_thread(daemon.stop, _QUIT_S)
        self._ending.pop(job_id, None)
        self._leaving.pop(job_id, None)

    async def _terminate_killed(self, daemon: MpsDaemon, clients: list[int]) -> None:
        """Clients whose process is gone, but whose work the server still has."""
        gone = [client for client in clients if not Path(f"/proc/{client}").exists()]
        if gone:
            await asyncio.to_thread(daemon.terminate, gone, self._node.settings.mps_terminate_s)

    async def ended(self, job_id: int, seconds: float) -> None:
        """Waits until the daemon of a job that has ended is gone, so long at most."""
        task = self._ending.get(job_id) or self._starting.get(job_id)
        if task is not None:
            await asyncio.wait([task], timeout=seconds)

    # Restarts of the agent

    def resume(self) -> None:
        """Adopts the daemons of an earlier life; those of jobs that have ended are stopped."""
        hosts = self._node.jobs.hosts
        for host in hosts.values():
            if host.share_reason == STARTING:
                self._stop_later(self._daemon_of(host.job_id, host.gpus), host.job_id)
                self._settle(host, ShareMode.TIMESLICE, "the agent ended while MPS was starting")
            elif host.share_mode == ShareMode.MPS:
                daemon = self._daemon_of(host.job_id, host.gpus)
                if not self._watch(host, daemon):
                    self._lost(host.job_id, "it ended while no agent ran")
        for folder in self._folder.iterdir() if self._folder.is_dir() else ():
            if folder.name.isdigit() and int(folder.name) not in hosts:
                self._stop_later(self._daemon_of(int(folder.name), []), int(folder.name))

    async def close(self) -> None:
        """The agent stops: daemons of living jobs stay, those that are going are waited for."""
        if self._ending:
            await asyncio.wait(list(self._ending.values()), timeout=_QUIT_S + 1)
        for job_id in list(self._watched):
            self._unwatch(job_id)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task
