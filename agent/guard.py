"""Watches the GPUs through NVML: free memory, and processes that no board speaks for.

A process of a fill job without a board has dropped the interposer: it is killed within a second.
Any other process without a board may be training that lost its hook, so the gate is shut while it
is there. NVML is asked on a thread of its own; what it says is applied on the main thread. While a
call of NVML's does not come back nobody sees the GPUs: their gates are shut.

An NVML that is slow but steady is no fault as long as no GPU's picture becomes older than twice the
time that a call may take: so long may a training without a board share its GPU at most, at 6 s of
the default. What is slower stays shut, and is believed again only after several looks in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from agent.attachments import memory_by_boards
from agent.clock import now_ns
from agent.eviction import Eviction
from agent.gpu_faults import GpuFaults
from agent.gpus import Gpu
from agent.job_of_process import JobFinder
from agent.node import Node
from agent.nvml import GpuError, GpuProcess, GpuQueries

log = logging.getLogger(__name__)

_SLOW_FACTOR = 6  # a GPU that no fill job was admitted to is looked at so much less often
_SIGHTINGS = 2
_SILENT_S = 3.0
_SILENT_INTERVALS = 1.5 * _SLOW_FACTOR  # NVML may take half of one more to answer
_OLDEST_SILENCES = 2  # of these lengths: how old a GPU's picture may become
_LOOKS_IN_TIME = 2  # without a pause, before a GPU of which nothing was heard is believed again


@dataclass(frozen=True)
class Scan:
    """What NVML said of one GPU; `fault` instead when it said nothing."""

    uuid: str
    began_ns: int
    free_bytes: int = 0
    processes: tuple[GpuProcess, ...] = ()
    slowed_by: tuple[str, ...] = ()
    fault: str = ""


def scan(queries: GpuQueries, uuid: str) -> Scan:
    """Asks NVML about one GPU; never raises."""
    began = now_ns()
    try:
        free_bytes, processes = queries.free_bytes(uuid), tuple(queries.processes(uuid))
        return Scan(uuid, began, free_bytes, processes, queries.slowed_by(uuid))
    except GpuError as error:
        return Scan(uuid, began, fault=f"{'off the bus: ' if error.lost else ''}{error}")
    except Exception as error:
        log.exception("NVML failed in an unforeseen way")
        return Scan(uuid, began, fault=repr(error))


class Hearing:
    """When NVML was last heard. Written by the thread that asks."""

    def __init__(self, interval_s: float) -> None:
        self.since_ns = now_ns()
        self._pause_ns = round(interval_s * 1e9)

    def asks(self) -> None:
        """While nobody asks, silence is none; the usual pause between two questions counts."""
        self.since_ns = max(self.since_ns, now_ns() - self._pause_ns)

    def hears(self) -> None:
        self.since_ns = now_ns()


class Guard:
    """Applies scans to the node. Main thread only."""

    def __init__(self, node: Node, finder: JobFinder, eviction: Eviction) -> None:
        self._node = node
        self._finder = finder
        self._eviction = eviction
        self._sightings: dict[tuple[str, int], int] = {}
        self._told_unknown: set[tuple[str, int]] = set()  # GPU, job of the processes
        self._killing: dict[int, asyncio.Task[None]] = {}
        self._faults = GpuFaults(node.ledger)
        self._silent_s = max(_SILENT_S, _SILENT_INTERVALS * node.settings.guard_interval_s)
        self._oldest_ns = round(_OLDEST_SILENCES * self._silent_s * 1e9)
        self._doubted: dict[str, int] = {}  # looks in time that a GPU still lacks
        self.hearing = Hearing(node.settings.guard_interval_s)

    def apply(self, found: Scan) -> None:
        """Takes in a scan; refreshes the policy when something came of it."""
        self._node.main_loop.look()
        gpu = self._node.gpus.get(found.uuid)
        # What was seen before a standstill, or by a call that hung, says nothing of now.
        if gpu is None or found.began_ns < max(self._began_ns(), self._silent_before_ns()):
            return
        if self._apply_safely(gpu, found):
            self._node.refresh()

    def look(self) -> None:
        """A GPU of which NVML has long said nothing is one with a fault: who uses it is unknown."""
        changed = False
        began_ns, now = self._began_ns(), now_ns()
        silent = max(self.hearing.since_ns, began_ns) < self._silent_before_ns()
        for gpu in self._node.gpus.values():
            age_ns = now - max(gpu.scanned_ns, began_ns)
            if silent or age_ns > self._oldest_ns:
                self._doubted[gpu.uuid] = _LOOKS_IN_TIME
                if not gpu.fault:
                    silent_s = self._silent_s if silent else age_ns / 1e9
                    changed |= self._tell_fault(gpu, f"NVML has said nothing for {silent_s:.1f} s")
            self._faults.look(gpu)
        if changed:
            self._node.refresh()

    def _began_ns(self) -> int:
        """When the agent began to watch, or went on after a standstill."""
        return max(self._node.started_ns, self._node.main_loop.woke_ns)

    def _silent_before_ns(self) -> int:
        """NVML is silent if it was last heard before that."""
        return now_ns() - round(self._silent_s * 1e9)

    def _is_doubted(self, gpu: Gpu, before_ns: int) -> bool:
        """Whether a GPU of which nothing was heard still is not believed, at one more scan of it.

        `before_ns`: when the scan before this one began.
        """
        lacks = self._doubted.pop(gpu.uuid, 0)
        if lacks and now_ns() - before_ns <= self._oldest_ns:
            lacks -= 1
        if lacks:
            self._doubted[gpu.uuid] = lacks
        return lacks > 0

    def _apply_safely(self, gpu: Gpu, found: Scan) -> bool:
        """A scan that can't be taken in is none: with nobody known to be alone, fill is shut."""
        scanned_ns = gpu.scanned_ns
        try:
            return self._apply(gpu, found)
        except Exception as error:
            if gpu.fault != (fault := f"the guard cannot judge it ({type(error).__name__})"):
                log.exception("GPU %s: an unforeseen error in the guard", gpu.uuid)
            gpu.scanned_ns = scanned_ns
            return self._tell_fault(gpu, fault)

    def _apply(self, gpu: Gpu, found: Scan) -> bool:
        if found.fault:
            return self._tell_fault(gpu, found.fault)
        unknown_before, scanned_before_ns = gpu.unknown, gpu.scanned_ns
        gpu.free_bytes = found.free_bytes
        gpu.scanned_ns = found.began_ns
        gpu.slowed_by.update(dict.fromkeys(found.slowed_by, found.began_ns))
        gpu.processes = frozenset(each.process_id for each in found.processes)
        if self._node.settings.guard:
            unknown, by_nvml = self._sort(gpu, found)
        else:
            unknown, by_nvml = {}, {}
        gpu.unknown = sum(unknown.values())
        gpu.fill_nvml_bytes = by_nvml
        gpu.fill_used_bytes = self._used(gpu, by_nvml)
        self._note_peak(gpu, found)
        self._tell_unknown(gpu, unknown)
        self._node.accounts.look(gpu.uuid, gpu.unboarded)
        self._make_room(gpu)
        # Last: all of the scan has been taken in.
        fault = gpu.fault if self._is_doubted(gpu, scanned_before_ns) else ""
        changed = self._tell_fault(gpu, fault)
        return changed or gpu.unknown != unknown_before

    def _tell_fault(self, gpu: Gpu, fault: str) -> bool:
        """Notes what is wrong with a GPU, nothing perhaps; True when that has changed."""
        if fault:
            gpu.free_bytes = 0
        return self._faults.note(gpu, fault)

    def _used(self, gpu: Gpu, by_nvml: dict[int, int]) -> dict[int, int]:
        """What fill jobs hold: NVML counts contexts too, but may know no process's memory. A
        board's word counts up to what the job was given: it makes no room for others."""
        used, jobs = dict(by_nvml), self._node.jobs.fills
        for job_id, held in memory_by_boards(self._node.fills_on(gpu.uuid), gpu.uuid).items():
            most = jobs[job_id].memory_bytes if job_id in jobs else gpu.device.memory_bytes
            used[job_id] = max(used.get(job_id, 0), min(held, most))
        return used

    def _note_peak(self, gpu: Gpu, found: Scan) -> None:
        """What the watched processes hold. Only NVML's own word on each of them counts for the
        peak: a difference would take a fill's allocation between two questions for training's."""
        watched = {each.process.process_id for each in self._node.trainings_on(gpu.uuid)}
        held = [each.memory_bytes for each in found.processes if each.process_id in watched]
        known = [each for each in held if each is not None]
        gpu.training_bytes = sum(known) if known and len(known) == len(held) else None
        host = self._node.jobs.host_of(gpu.uuid)
        if host is not None and gpu.training_bytes is not None:
            host.note_peak(gpu.uuid, gpu.training_bytes)

    def _sort(self, gpu: Gpu, found: Scan) -> tuple[dict[int, int], dict[int, int]]:
        """Sorts the processes on a GPU: how many of each job are unknown (job 0: of none), and the
        memory of each fill job."""
        node = self._node
        watched = {each.process.process_id for each in node.trainings_on(gpu.uuid)}
        gated = {each.process.process_id: each.job.job_id for each in node.fills.values()}
        used: dict[int, int] = {}
        unknown: dict[int, int] = {}
        unboarded: set[int] = set()
        seen: set[tuple[str, int]] = set()
        for each in found.processes:
            if each.process_id in watched:
                continue
            job_id = gated.get(each.process_id)
            if job_id is None:
                job = self._finder.job_of(each.process_id)
                job_id = job.job_id if job is not None else 0
                if job_id not in node.jobs.fills and job_id not in node.jobs.refused:
                    if not self._eviction.is_server(each.process_id):
                        unknown[job_id] = unknown.get(job_id, 0) + 1
                    continue
                unboarded.add(job_id)
                seen.add((gpu.uuid, each.process_id))
                self._escaping(gpu, each.process_id, job_id)
            used[job_id] = used.get(job_id, 0) + (each.memory_bytes or 0)
        self._sightings = {
            key: count
            for key, count in self._sightings.items()
            if key[0] != gpu.uuid or key in seen
        }
        gpu.unboarded = frozenset(unboarded)
        return unknown, used

    def _escaping(self, gpu: Gpu, process_id: int, job_id: int) -> None:
        if self._are_attaching():
            return  # gates need a moment to attach
        key = (gpu.uuid, process_id)
        self._sightings[key] = self._sightings.get(key, 0) + 1
        if self._sightings[key] < _SIGHTINGS:
            return
        if process_id not in self._killing:
            self._killing[process_id] = asyncio.create_task(self._kill(gpu, process_id, job_id))

    def _are_attaching(self) -> bool:
        """After a restart, and after a standstill, in which nobody was answered."""
        since_ns = max(self._node.started_ns, self._node.main_loop.woke_ns)
        return now_ns() - since_ns < self._node.settings.restart_grace_s * 1e9

    async def _kill(self, gpu: Gpu, process_id: int, job_id: int) -> None:
        node, host = self._node, self._node.jobs.host_of(gpu.uuid)
        host_job_id = host.job_id if host is not None else None
        try:
            killed = await self._eviction.kill_process(process_id, job_id, host_job_id)
        finally:
            self._killing.pop(process_id, None)
        if killed:
            fill = node.jobs.fills.get(job_id)
            node.ledger.event(
                "escaped",
                f"process {process_id} of fill job {job_id} was on the GPU without a gate: killed",
                job_id=job_id,
                gpu=gpu.uuid,
                user=fill.user if fill else None,
            )

    def _make_room(self, gpu: Gpu) -> None:
        """The training's memory goes first: when the GPU runs short, the newest fill leaves."""
        if gpu.free_bytes >= self._node.settings.evict_free_bytes:
            return
        fills = self._node.jobs.fills_of(gpu.uuid)
        if fills and not any(fill.evicted for fill in fills):
            self._eviction.begin(fills[-1:], "the GPU runs short of memory")

    def _tell_unknown(self, gpu: Gpu, unknown: dict[int, int]) -> None:
        """Tells of unknown processes once for each job, until there are none of it.

        After a restart they are the trainings that have yet to attach again: the gate is shut, but
        they are told of only when they have not come by then.
        """
        self._told_unknown = {
            key for key in self._told_unknown if key[0] != gpu.uuid or key[1] in unknown
        }
        if self._are_attaching():
            return
        for job_id, count in unknown.items():
            if (gpu.uuid, job_id) in self._told_unknown:
                continue
            self._told_unknown.add((gpu.uuid, job_id))
            host = self._node.jobs.hosts.get(job_id)
            self._node.ledger.event(
                "unknown",
                f"{count} process(es) on {gpu.uuid} that no board speaks for: fill is shut out",
                job_id=job_id or None,
                gpu=gpu.uuid,
                user=host.user if host else None,
            )


class GuardThread(threading.Thread):
    """Asks NVML again and again; hands the scans to the main loop."""

    def __init__(
        self, node: Node, queries: GpuQueries, hearing: Hearing, apply: Callable[[Scan], None]
    ) -> None:
        super().__init__(name="guard", daemon=True)
        self._node = node
        self._queries = queries
        self._hearing = hearing
        self._apply = apply
        self._loop = asyncio.get_running_loop()
        self._ending = threading.Event()
        self._scanned_ns: dict[str, int] = {}

    def run(self) -> None:
        interval_s = self._node.settings.guard_interval_s
        while not self._ending.is_set():
            try:
                self._look()
            except Exception:
                log.exception("an unforeseen error in the guard's thread")
            self._ending.wait(interval_s)

    def _look(self) -> None:
        for uuid in filter(self._is_due, self._node.gpus):
            self._hearing.asks()
            found = scan(self._queries, uuid)
            self._hearing.hears()
            self._scanned_ns[uuid] = found.began_ns
            with contextlib.suppress(RuntimeError):  # the loop ended meanwhile
                self._loop.call_soon_threadsafe(self._apply, found)

    def _is_due(self, uuid: str) -> bool:
        lends = any(fill.gpu == uuid for fill in list(self._node.jobs.fills.values()))
        intervals = 0.5 if lends else _SLOW_FACTOR - 0.5
        age_ns = now_ns() - self._scanned_ns.get(uuid, -(1 << 62))
        return age_ns >= intervals * self._node.settings.guard_interval_s * 1e9

    def stop(self) -> None:
        self._ending.set()
        self.join(timeout=2)
