"""What shims say: attach, gpu, log; and what happens when their process ends."""

from __future__ import annotations

import asyncio
import logging
import os

from agent.attachments import (
    Fill,
    Training,
    adopt_fill_board,
    adopt_training_board,
    drained_before,
    memory_by_boards,
    new_fill_board,
    new_training_board,
)
from agent.board import BUBBLE_RING, LAYOUT_VERSION, MAX_GPUS, USE_RING
from agent.clock import now_ns
from agent.drain import Drain
from agent.endless import EndlessKernels
from agent.job_of_process import JobFinder, JobOfProcess
from agent.jobs import FillJob, HostJob
from agent.life_signs import last_sign_ns
from agent.node import Node
from agent.packet import Packet
from agent.processes import WatchedProcess
from agent.rate import Rate
from agent.server import Connection, close_all
from agent.shared_memory import SharedMemoryError
from agent.standstill import Standstill
from agent.windows import Windows
from db.wire.messages import HostMode

log = logging.getLogger(__name__)

PROTOCOL_VERSION = str(LAYOUT_VERSION)
_LOG_LINES_PER_PROCESS = 50
_ATTACHES_PER_JOB = 1024  # in ten seconds; each makes a board and an event
_REFUSALS_PER_USER = 20  # that our log shows, in ten seconds


class ShimVerbs:
    """Attaches and detaches boards. Only the end of a process detaches one."""

    def __init__(
        self,
        node: Node,
        finder: JobFinder,
        drain: Drain,
        windows: Windows,
        endless: EndlessKernels,
    ) -> None:
        self._node = node
        self._endless = endless
        self._finder = finder
        self._drain = drain
        self._windows = windows
        self._log_lines: dict[Connection, int] = {}
        self._attaches = Rate(_ATTACHES_PER_JOB)
        self._refusals = Rate(_REFUSALS_PER_USER)

    def attach(self, connection: Connection, packet: Packet, descriptors: list[int]) -> None:
        """Decides a process's role and gives it its board; see PROTOCOL.md."""
        reason = self._attach(connection, packet, descriptors)
        close_all(descriptors)
        if reason:
            if self._refusals.allows(connection.user_id):
                log.info("process %d stands aside: %s", connection.process.process_id, reason)
            connection.send(Packet("aside", {"reason": reason}))

    def _attach(self, connection: Connection, packet: Packet, descriptors: list[int]) -> str:
        process = connection.process
        if packet.get("version") != PROTOCOL_VERSION:
            return f"protocol version {packet.get('version')!r} is not {PROTOCOL_VERSION}"
        job = self._finder.job_of(process.process_id)
        if not process.alive():
            return "the process is gone"
        if job is None:
            return "the process is in no Slurm job"
        if job.node not in ("", self._node.settings.node, self._node.settings.twin):
            return f"the process belongs to node {job.node}"
        kept = descriptors.pop(0) if packet.get("reattach") == "1" and descriptors else -1
        host = self._node.jobs.hosts.get(job.job_id)
        fill = self._node.jobs.fills.get(job.job_id)
        owner = host or fill
        try:
            if owner is None:
                return self._node.jobs.refused.get(
                    job.job_id, f"job {job.job_id} neither lends nor fills here"
                )
            if process.user_id not in (0, owner.user_id):
                return f"job {job.job_id} belongs to another user"
            if not self._attaches.allows(job.job_id):
                return f"job {job.job_id} attaches too often"
            if host is not None:
                if host.mode == HostMode.OFF:
                    return f"job {job.job_id} is not to be watched (mode off)"
                board, kept = kept, -1
                return self._attach_training(connection, job, host, board)
            assert fill is not None
            board, kept = kept, -1
            return self._attach_fill(connection, job, fill, board)
        except (OSError, SharedMemoryError) as error:
            log.error("process %d gets no board: %s", process.process_id, error)
            return f"no board: {error}"
        finally:
            if kept >= 0:
                os.close(kept)

    def _attach_training(
        self, connection: Connection, job: JobOfProcess, host: HostJob, kept: int
    ) -> str:
        node, process = self._node, connection.process
        self._replace(process)
        if kept >= 0:
            board_id, memory = adopt_training_board(kept, process.process_id, node)
        else:
            board_id = node.new_board_id()
            memory = new_training_board(board_id, process.process_id)
        training = Training(board_id, memory, self._watch(process), job, connection)
        training.drained = drained_before(
            int(memory.view.bubble_head), int(memory.view.drained), BUBBLE_RING
        )
        node.trainings[board_id] = training
        more = {"rescue_ms": str(round(node.settings.rescue_wait_s * 1000))}
        size, descriptor = len(memory.raw), memory.descriptor
        self._answer(connection, "monitor", board_id, size, descriptor, kept, more)
        if training.read_sections():
            node.board_moved(training, set())
        self._told("attached", f"process {process.process_id} of job {job.job_id} is watched", host)
        node.refresh()
        return ""

    def _attach_fill(
        self, connection: Connection, job: JobOfProcess, fill: FillJob, kept: int
    ) -> str:
        node, process = self._node, connection.process
        self._replace(process)
        self._take_leave(fill)
        if node.accounts.full(fill.job_id, fill.gpu):
            return f"job {job.job_id} has too many processes on the GPU"
        if kept >= 0:
            board_id, memory = adopt_fill_board(kept, process.process_id, node)
        else:
            board_id = node.new_board_id()
            memory = new_fill_board(board_id, process.process_id)
        attached = Fill(
            board_id,
            memory,
            self._watch(process),
            job,
            connection,
            fill.gpu,
            fill.host_job_id,
            now_ns() - max(0, node.clock.now_us() - fill.admitted_at_us) * 1000,
        )
        head = int(memory.view.use_head)
        noted = drained_before(head, int(memory.view.drained), USE_RING)
        stored = node.ledger.stored.get(board_id, 0)  # by an agent killed before it noted so
        attached.drained = stored if noted < stored <= head else noted
        # A job that began before this agent did may have processes that have yet to attach again.
        began_here = attached.admitted_ns >= node.started_ns
        node.accounts.join(attached, complete=began_here or not node.settings.guard)
        node.fills[board_id] = attached
        limits = {"job_id": str(fill.job_id), "memory_limit_bytes": str(fill.memory_bytes)}
        self._answer(connection, "gate", board_id, len(memory.raw), memory.descriptor, kept, limits)
        node.push_gpu(attached)
        if fill.evicted:
            connection.send(Packet("evict", {"reason": fill.evicted}))
        self._told("attached", f"process {process.process_id} of job {job.job_id} is gated", fill)
        node.refresh()
        return ""

    @staticmethod
    def _answer(
        connection: Connection,
        verb: str,
        board_id: int,
        size: int,
        descriptor: int,
        kept: int,
        more: dict[str, str],
    ) -> None:
        fields = {"board_id": str(board_id), "size": str(size), **more}
        connection.send(Packet(verb, fields), -1 if kept >= 0 else descriptor)

    def _told(self, what: str, text: str, job: HostJob | FillJob) -> None:
        gpu = job.gpu if isinstance(job, FillJob) else None
        self._node.ledger.event(what, text, job_id=job.job_id, gpu=gpu, user=job.user)

    # Ends

    def _watch(self, process: WatchedProcess) -> WatchedProcess:
        """A watch of its own on the peer: the connection may close long before the process ends."""
        watched = WatchedProcess(process.process_id, process.user_id, os.dup(process.descriptor))
        loop = asyncio.get_running_loop()
        loop.add_reader(watched.descriptor, self._is_readable, watched)
        return watched

    def _replace(self, process: WatchedProcess) -> None:
        """A process that attaches anew after exec has a new memory: its old board is void."""
        for attached in self._node.attached:
            if attached.process.process_id == process.process_id:
                self._ended(attached.process)

    def _take_leave(self, job: FillJob) -> None:
        """One process after another: what has ended holds nothing when the next one begins."""
        for fill in list(self._node.fills.values()):
            if fill.job.job_id == job.job_id and not fill.process.alive():
                self._ended(fill.process)

    def _is_readable(self, process: WatchedProcess) -> None:
        """The loop says that a process has ended; it may have stood still until now."""
        self._node.main_loop.look()
        if process.descriptor >= 0:  # not among those that `stood` has found
            self._ended(process)

    def stood(self, stood: Standstill) -> None:
        """The main loop stood still: whoever ended meanwhile did so after his last sign of life."""
        gone = [each for each in self._node.attached if not each.process.alive()]
        # Fills first: what they left off the record is estimated by the trainings' boards.
        for attached in sorted(gone, key=lambda each: isinstance(each, Training)):
            ended_ns = max(stood.since_ns, last_sign_ns(attached, stood.until_ns))
            unseen_s = (stood.until_ns - ended_ns) / 1e9
            process_id, job_id = attached.process.process_id, attached.job.job_id
            self._node.ledger.event(
                "ended_unseen",
                f"process {process_id} of job {job_id} ended while the agent stood still: its end "
                f"is entered at its last sign of life, {unseen_s:.1f} s before it was noticed",
                job_id=job_id,
            )
            self._ended(attached.process, ended_ns)

    def _ended(self, process: WatchedProcess, ended_ns: int | None = None) -> None:
        """`ended_ns`: None for now."""
        node, ended_ns = self._node, now_ns() if ended_ns is None else ended_ns
        asyncio.get_running_loop().remove_reader(process.descriptor)
        for board_id, training in list(node.trainings.items()):
            if training.process is process:
                with self._drain.reading(training):
                    self._drain.gone(training, ended_ns)
                del node.trainings[board_id]
                self._drop(training)
                training.memory.close()
        for board_id, fill in list(node.fills.items()):
            if fill.process is process:
                with self._drain.reading(fill):
                    self._drain.fill(fill)
                with self._drain.reading(fill):
                    self._drain.died(fill, ended_ns, stood=self._endless.stands(board_id))
                self._drain.tell_lost(fill)
                del node.fills[board_id]
                node.accounts.leave(fill)
                if (gpu := node.gpus.get(fill.gpu)) is not None:
                    gpu.fill_left_ns = now_ns()
                fill.memory.close()
                self._windows.fill_left(fill.job.job_id, now_ns())
        process.close()
        node.read_boards()
        node.refresh()

    def _drop(self, training: Training) -> None:
        for fill in self._node.fills.values():
            if fill.gpu in training.gpus and fill.connection is not None:
                fill.connection.send(Packet("drop", {"board_id": str(training.board_id)}))

    def closed(self, connection: Connection) -> None:
        """The connection is gone; the board stays for as long as the process lives."""
        self._log_lines.pop(connection, None)
        for attached in self._node.attached:
            if attached.connection is connection:
                attached.connection = None

    # Later messages

    def gpu(self, connection: Connection, packet: Packet) -> None:
        """The process has made a context on a GPU."""
        uuid = packet.get("uuid")
        for training in self._node.trainings.values():
            if training.connection is connection and self._is_new(training, uuid):
                before = training.gpus
                training.announced.add(uuid)
                training.read_sections()
                self._node.board_moved(training, before)
                self._node.read_boards()
                self._node.refresh()
        for fill in self._node.fills.values():
            if fill.connection is connection and uuid != fill.gpu and self._may_say(connection):
                self._node.ledger.event(
                    "stray",
                    f"process {fill.process.process_id} uses GPU {uuid[:48]}, which is not the one "
                    "it was given: its launches there stay shut",
                    job_id=fill.job.job_id,
                    gpu=fill.gpu,
                )

    def memory(self, connection: Connection, packet: Packet) -> None:
        """What a fill's job may take on its GPU and holds there; asked by any of its processes."""
        job = self._finder.job_of(connection.process.process_id)
        fill = self._node.jobs.fills.get(job.job_id) if job is not None else None
        if fill is None or fill.gpu != packet.get("uuid") or not connection.process.alive():
            connection.send(Packet("none"))
            return
        held = memory_by_boards(self._node.fills_on(fill.gpu), fill.gpu).get(fill.job_id, 0)
        fields = {"limit_bytes": str(fill.memory_bytes), "held_bytes": str(held)}
        connection.send(Packet("memory", fields))

    @staticmethod
    def _is_new(training: Training, uuid: str) -> bool:
        return uuid not in training.announced and len(training.announced) < MAX_GPUS

    def _may_say(self, connection: Connection) -> bool:
        """Whether a process may bring about one more event."""
        lines = self._log_lines.get(connection, 0) + 1
        self._log_lines[connection] = lines
        return lines <= _LOG_LINES_PER_PROCESS

    def log(self, connection: Connection, packet: Packet) -> None:
        """A line from the shim becomes an event of its job, up to a number of lines."""
        if not self._may_say(connection):
            return
        for attached in self._node.attached:
            if attached.connection is connection:
                self._node.ledger.event("log", packet.get("text")[:500], job_id=attached.job.job_id)
