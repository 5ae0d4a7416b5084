"""Memory for a training that runs short of it: the fills on its GPU are killed at once.

The interposer asks before it lets an allocation of the training fail (agent/shim/monitor_memory.c)
and waits for the answer, at most the setting `rescue_wait_s`.
"""

from __future__ import annotations

import asyncio

from agent.admission import training_bytes
from agent.attachments import Training, memory_by_boards
from agent.clock import now_ns
from agent.eviction import Eviction
from agent.gpus import Gpu
from agent.node import Node
from agent.packet import Packet
from agent.server import Connection


class Rescue:
    """Answers trainings that are short of memory. Main thread only."""

    def __init__(self, node: Node, eviction: Eviction) -> None:
        self._node = node
        self._eviction = eviction
        self._running: set[asyncio.Task[None]] = set()

    def rescue(self, connection: Connection, packet: Packet) -> None:
        """`ok`: memory came free, try again; `none`: no fill is in the way; `late`: it still is."""
        training, gpu = self._asked(connection, packet)
        wanted = packet.number("bytes")
        if training is None or gpu is None:
            connection.send(Packet("error", {"reason": "no training of this process on that GPU"}))
        elif wanted > gpu.device.memory_bytes:
            connection.send(Packet("none"))  # no GPU of this kind holds that
        elif self._node.fills_on(gpu.uuid):
            task = asyncio.create_task(self._make_room(connection, training, gpu, wanted))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        else:
            connection.send(Packet("ok" if self._node.fill_present(gpu.uuid) else "none"))

    def fill_memory(self, connection: Connection, packet: Packet) -> None:
        """What fills hold on a GPU, in bytes: a training may count it as free."""
        training, gpu = self._asked(connection, packet)
        held = self._fill_bytes(gpu) if training is not None and gpu is not None else 0
        connection.send(Packet("fill_memory", {"bytes": str(held)}))

    def _asked(self, connection: Connection, packet: Packet) -> tuple[Training | None, Gpu | None]:
        """The training that asks, by its process, and the GPU, if its job holds that."""
        node, uuid = self._node, packet.get("uuid")
        process_id = connection.process.process_id
        training = next(
            (
                each
                for each in node.trainings.values()
                if each.process.process_id == process_id and each.process.alive()
            ),
            None,
        )
        host = node.jobs.host_of(uuid)
        if training is None or host is None or host.job_id != training.job.job_id:
            return None, None
        return training, node.gpus.get(uuid)

    def _fill_bytes(self, gpu: Gpu) -> int:
        """NVML's figure where it has one; a board's holds an allowance for the context."""
        held = memory_by_boards(self._node.fills_on(gpu.uuid), gpu.uuid)
        return sum(gpu.fill_nvml_bytes.get(job) or count for job, count in held.items())

    async def _make_room(
        self, connection: Connection, training: Training, gpu: Gpu, wanted: int
    ) -> None:
        settings, began = self._node.settings, now_ns()
        host = self._node.jobs.host_of(gpu.uuid)
        if host is not None:
            host.note_peak(gpu.uuid, training_bytes(gpu) + wanted)
        jobs = {each.job.job_id for each in self._node.fills_on(gpu.uuid)}
        reason = f"training job {training.job.job_id} needed its memory"
        # The answer has to reach a caller that waits no longer than rescue_wait_s.
        most_s = settings.rescue_wait_s * 0.9
        gone = await self._eviction.kill(jobs, reason, settings.rescue_grace_s, most_s)
        names = ", ".join(map(str, sorted(jobs)))
        took_ms = (now_ns() - began) / 1e6
        text = (
            f"training job {training.job.job_id} was short of {wanted >> 20} MiB on {gpu.uuid}: "
            f"fill job(s) {names} {'left' if gone else 'were still there'} after {took_ms:.0f} ms"
        )
        self._node.ledger.event("rescue", text, job_id=training.job.job_id, gpu=gpu.uuid)
        connection.send(Packet("ok" if gone else "late"))
