"""What prolog and epilog say: job_begin, ready, job_end; and off, on."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from agent.admission import Candidate, Room, choose
from agent.clock import now_ns
from agent.drain import Drain
from agent.eviction import Eviction
from agent.jobs import FillJob, HostJob
from agent.mps import Mps
from agent.node import Node
from agent.packet import Packet
from agent.server import Connection
from agent.share import closed_to, decide
from agent.spec import HostSpec, SpecError, parse_fill, parse_host
from agent.windows import Windows
from db.wire.messages import HostMode, ShareMode

log = logging.getLogger(__name__)

_STILL_S = 0.25  # the hook takes a second without a word for a standstill (spank/hook.c)
_SAME_RUN_US = 10_000_000  # a job that Slurm requeues by itself stays away for two minutes
_LATEST_US = 24 * 3600 * 1_000_000  # what Slurm's side says lay longer ago is a wrong clock's


class SlurmVerbs:
    """Keeps the jobs of the node by what prolog and epilog say."""

    def __init__(
        self,
        node: Node,
        eviction: Eviction,
        drain: Drain,
        windows: Windows,
        mps: Mps,
    ) -> None:
        self._node = node
        self._mps = mps
        self._drain = drain
        self._windows = windows
        self._eviction = eviction
        self._ending: set[asyncio.Task[None]] = set()

    # job_begin

    def job_begin(self, packet: Packet, *, late: bool = False) -> Packet:
        """A job begins on the node: a host job is noted, a fill job admitted or refused.

        `late`: the prolog waits no longer. A training has begun meanwhile, a fill was requeued.
        """
        job_id = packet.number("job_id")
        kind = packet.get("kind")
        if kind not in ("host", "fill", "other"):
            return Packet("error", {"reason": f"kind={kind!r} is not host, fill or other"})
        self._node.jobs.refused.pop(job_id, None)
        self._earlier_run_ends(job_id, packet)
        try:
            if kind == "fill":
                return self._fill_begins(job_id, packet, late=late)
            if kind == "host":
                return self._host_begins(job_id, packet, late=late)
        except SpecError as error:
            return self._refuse(job_id, str(error), packet)
        if packet.get("spec"):
            self._tell_unwatched(job_id, packet)
        return Packet("ok")

    def _earlier_run_ends(self, job_id: int, packet: Packet) -> None:
        """A training that is requeued begins again under its number: where nobody told of the end
        of the run before (no agent was there to hear of it), it ends now."""
        known, at_us = self._node.jobs.hosts.get(job_id), self._said_at_us(packet)
        if known is not None and self._is_another_run(known, packet, at_us):
            self._host_ended(known, "started again: no word of its end", at_us)

    def _is_another_run(self, known: HostJob, packet: Packet, at_us: int) -> bool:
        if known.restart_count != _restart_count(packet):
            return True
        if any(each.job.job_id == known.job_id for each in self._node.trainings.values()):
            return False
        # Slurm 22.05 tells no prolog on a node how often a job was restarted.
        if (gpus := self._gpus(packet.get("gpus"))) and set(gpus) != set(known.gpus):
            return True
        return at_us - known.started_at_us > _SAME_RUN_US

    def _tell_unwatched(self, job_id: int, packet: Packet) -> None:
        """A training would lend, but Slurm's prolog named none of our GPUs. It may have none on
        this node; or slurmctld had only just started (22.05 then leaves SLURM_JOB_GPUS out)."""
        self._node.ledger.event(
            "unwatched",
            f"job {job_id} has --fill-host={packet.get('spec')}, but Slurm names no GPU of "
            f"{self._node.settings.node} to its prolog: here it is not watched and lends nothing",
            job_id=job_id,
            user=packet.get("user") or None,
        )

    def _host_begins(self, job_id: int, packet: Packet, *, late: bool) -> Packet:
        node, settings = self._node, self._node.settings
        gpus = self._gpus(packet.get("gpus"))
        try:
            spec = parse_host(packet.get("spec"))
            mode = spec.mode or settings.default_mode
            reason = "asked for" if spec.mode else "the site's default"
        except SpecError as error:
            # Training is never refused for fill's sake: it is watched, and lends nothing.
            spec, mode, reason = HostSpec(), HostMode.OBSERVE, str(error)
        if not gpus:
            return Packet("ok")
        began_at_us = self._said_at_us(packet)
        self._holders_leave(job_id, gpus, began_at_us)
        share, why = decide(spec, mode, settings)
        if late and share == ShareMode.MPS:
            share, why = ShareMode.TIMESLICE, "the agent did not answer its prolog in time"
        host = HostJob(
            job_id=job_id,
            user_id=packet.number("user_id"),
            user=packet.get("user"),
            account=packet.get("account"),
            mode=mode,
            mode_reason=reason,
            gpus=gpus,
            lend_bytes=spec.lend_bytes,
            slowdown=settings.slowdown if spec.slowdown is None else spec.slowdown,
            started_at_us=began_at_us,
            restart_count=_restart_count(packet),
            share_reason=why,
        )
        if job_id not in node.jobs.hosts:
            node.jobs.hosts[job_id] = host
            if share == ShareMode.MPS:
                self._mps.begin(host, why)
            node.ledger.add(host.record())
            text = (
                f"job {job_id} of {host.user} begins on {len(gpus)} GPU(s), mode {mode}: {reason}"
            )
            node.ledger.event("host_begins", text, job_id=job_id, user=host.user)
        node.refresh()
        if not self._mps.is_starting(job_id):
            return Packet("ok")
        return Packet("ok", {"wait_ms": str(round(settings.mps_start_s * 1000) + 1000)})

    def ready(self, connection: Connection, packet: Packet) -> None:
        """Answered once a host job's training may begin: MPS has to serve before it does."""

        self._answer_after(connection, self._mps.settled(packet.number("job_id")))

    def _answer_after(self, connection: Connection, work: Coroutine[Any, Any, None]) -> None:
        """Answers when the work is done, and until then that it goes on: whoever waits takes our
        silence for a sign that we stand still."""

        async def answer() -> None:
            task = asyncio.create_task(work)
            while not (await asyncio.wait([task], timeout=_STILL_S))[0]:
                connection.send(Packet("wait"))
            if (error := task.exception()) is not None:
                log.error("an unforeseen error while Slurm waits", exc_info=error)
            connection.send(Packet("ok"))

        self._later(answer())

    def _said_at_us(self, packet: Packet) -> int:
        """When prolog or epilog said it, by its clock, which is ours: we may have stood still."""
        now_us = self._node.clock.now_us()
        at_us = packet.number("at_us") if packet.get("at_us") else now_us
        return at_us if now_us - _LATEST_US < at_us < now_us else now_us

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _holders_leave(self, job_id: int, gpus: list[str], at_us: int) -> None:
        """Whoever is still on the GPUs of a new host job goes: its end was missed."""
        for gpu in gpus:
            holder = self._node.jobs.host_of(gpu)
            if holder is not None and holder.job_id != job_id:
                self._host_ended(holder, "its GPU went to another job", at_us)
        leaving = [fill for gpu in gpus for fill in self._node.jobs.fills_of(gpu)]
        self._eviction.begin(
            [f for f in leaving if f.host_job_id != job_id], "a new training begins"
        )

    def _gpus(self, text: str) -> list[str]:
        """UUIDs of GPUs that Slurm names by their index on the node, as `0,2-3`."""
        minors = self._node.settings.gpus or sorted(
            gpu.device.minor for gpu in self._node.gpus.values()
        )
        by_minor = {gpu.device.minor: gpu.uuid for gpu in self._node.gpus.values()}
        found: list[str] = []
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
            for index in range(int(first), min(int(last or first), int(first) + 1024) + 1):
                # Slurm counts by the number in the device file's name where there is one.
                minor = index if index in minors else None
                if minor is None and index < len(minors):
                    minor = minors[index]
                uuid = by_minor.get(-1 if minor is None else minor)
                if uuid is None:
                    log.error("Slurm names GPU %d, which this node does not have", index)
                elif uuid not in found:
                    found.append(uuid)
        return found

    def _fill_begins(self, job_id: int, packet: Packet, *, late: bool) -> Packet:
        node = self._node
        spec = parse_fill(packet.get("spec"))
        memory = spec.memory_bytes or node.settings.default_fill_bytes
        restart = _restart_count(packet)
        known = node.jobs.fills.get(job_id)
        if known is not None:
            if known.restart_count == restart and not known.evicted:
                return Packet("ok")
            self._fill_ended(known, "started again", self._said_at_us(packet))
        if late:
            return self._refuse(job_id, "its prolog waited for the agent in vain", packet)
        node.requeue.discard(job_id)
        self._eviction.signalled.discard(job_id)
        candidates, why = self._open_to(packet, memory)
        gpu, reason = choose(candidates, memory)
        if gpu is None:
            return self._refuse(job_id, why or reason, packet, for_whose=bool(why))
        node.jobs.turned_away.pop(job_id, None)
        host = node.jobs.host_of(gpu.uuid)
        fill = FillJob(
            job_id=job_id,
            restart_count=restart,
            user_id=packet.number("user_id"),
            user=packet.get("user"),
            account=packet.get("account"),
            gpu=gpu.uuid,
            host_job_id=host.job_id if host else None,
            memory_bytes=memory,
            admitted_at_us=node.clock.now_us(),
            batch=packet.get("batch", "1") == "1",
        )
        node.jobs.fills[job_id] = fill
        node.ledger.add(fill.record())
        text = f"fill job {job_id} of {fill.user} gets {memory >> 20} MiB on {gpu.uuid}"
        node.ledger.event("admitted", text, job_id=job_id, gpu=gpu.uuid, user=fill.user)
        node.refresh()
        return Packet("ok")

    def _open_to(self, packet: Packet, memory_bytes: int) -> tuple[list[Candidate], str]:
        """The GPUs as this fill's user may use them, and, of one that has room enough but is not
        open to that user, the reason."""
        node, user_id = self._node, packet.number("user_id")
        found, turned_away = [], ""
        for each in node.candidates():
            host = node.jobs.host_of(each.gpu.uuid)
            account = packet.get("account")
            why = closed_to(host, user_id, account, node.settings) if host is not None else ""
            if why:
                if each.room.free_bytes >= memory_bytes:
                    turned_away = turned_away or why
                each = replace(each, room=Room(0, each.room.reason or why))
            found.append(each)
        return found, turned_away

    def _refuse(
        self, job_id: int, reason: str, packet: Packet, *, for_whose: bool = False
    ) -> Packet:
        self._node.jobs.refuse(job_id, reason)
        user = packet.get("user") or None
        text = f"fill job {job_id} is refused: {reason}"
        self._node.ledger.event("refused", text, job_id=job_id, user=user)
        if not for_whose:
            return Packet("refused", {"reason": reason})
        # Slurm sees room here and would send the job at once again.
        wait_s = self._node.jobs.turn_away(job_id)
        return Packet("refused", {"reason": reason, "retry_s": str(round(wait_s))})

    # job_end

    def job_end(self, connection: Connection, packet: Packet) -> None:
        """A job ended; for a host job the answer comes once its fills are off the GPUs."""
        job_id, at_us = packet.number("job_id"), self._said_at_us(packet)
        fill = self._node.jobs.fills.get(job_id)
        if fill is not None:
            self._fill_ended(fill, fill.evicted or "ended", at_us)
        elif job_id not in self._eviction.signalled:
            self._node.requeue.discard(job_id)  # an unknown fill that ended by itself
        host = self._node.jobs.hosts.get(job_id)
        if host is None:
            connection.send(Packet("ok"))
            return
        self._answer_after(
            connection, self._fills_leave(host, self._host_ended(host, "ended", at_us))
        )

    async def _fills_leave(self, host: HostJob, gone: list[FillJob]) -> None:
        if not await self._eviction.wait(gone, self._node.settings.evict_wait_s):
            self._node.ledger.event(
                "evict_late",
                f"fills were still on the GPUs of job {host.job_id} when its epilog gave up",
                job_id=host.job_id,
            )
        await self._mps.ended(host.job_id, self._node.settings.evict_wait_s)

    def _host_ended(self, host: HostJob, reason: str, at_us: int) -> list[FillJob]:
        """Takes a host job off the node; its fills are evicted and returned."""
        node = self._node
        leaving = [fill for gpu in host.gpus for fill in node.jobs.fills_of(gpu)]
        self._drain.flush()
        del node.jobs.hosts[host.job_id]
        node.budgets.pop(host.job_id, None)
        node.calibrations.pop(host.job_id, None)
        host.ends(at_us)
        node.ledger.add(host.record())
        text = f"host job {host.job_id}: {reason}"
        node.ledger.event("host_ends", text, job_id=host.job_id, user=host.user)
        self._eviction.begin(leaving, f"training job {host.job_id} ended")
        self._mps.end(host)
        node.refresh()
        return leaving

    def _fill_ended(self, fill: FillJob, reason: str, at_us: int) -> None:
        node = self._node
        del node.jobs.fills[fill.job_id]
        if fill.job_id not in self._eviction.signalled:
            # It finished, or is being requeued already: a requeue now would run it twice.
            node.requeue.discard(fill.job_id)
        fill.ended_at_us = max(at_us, fill.admitted_at_us)
        fill.end_reason = reason
        self._windows.fill_left(fill.job_id, now_ns())
        node.ledger.add(fill.record())
        text = f"fill job {fill.job_id}: {reason}"
        node.ledger.event("fill_ends", text, job_id=fill.job_id, gpu=fill.gpu, user=fill.user)
        node.refresh()

    def give_up(self, job_id: int, at_us: int) -> None:
        """Forgets a job whose end nobody told of; `at_us` is when its last process was missed."""
        reason = "given up: no process and no word of its end"
        if (fill := self._node.jobs.fills.get(job_id)) is not None:
            self._fill_ended(fill, reason, at_us)
        if (host := self._node.jobs.hosts.get(job_id)) is not None:
            self._host_ended(host, reason, at_us)

    # off, on

    def switch(self, off: bool, user_id: int) -> Packet:
        """Filling goes off or on, on this node; gates see it at once."""
        self._node.off_here = off
        self._node.refresh()
        word = "off" if off else "on"
        self._node.ledger.event(word, f"filling is {word} on this node, by user id {user_id}")
        return Packet("ok")


def _restart_count(packet: Packet) -> int:
    return packet.number("restart_count") if packet.get("restart_count") else 0
