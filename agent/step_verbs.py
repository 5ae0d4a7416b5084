"""What slurmstepd asks: step, task."""

from __future__ import annotations

from agent.devices import DeviceError, Devices
from agent.job_of_process import JobFinder
from agent.jobs import FillJob
from agent.mps import Mps
from agent.node import Node
from agent.packet import Packet
from agent.processes import ProcessGoneError, WatchedProcess
from agent.server import Connection


class StepVerbs:
    """Says what a step of a job is, and opens its GPU to a fill's processes."""

    def __init__(self, node: Node, finder: JobFinder, devices: Devices, mps: Mps) -> None:
        self._node = node
        self._finder = finder
        self._devices = devices
        self._mps = mps

    def step(self, packet: Packet) -> Packet:
        """What slurmstepd has to set up for a step of a job."""
        job_id = packet.number("job_id")
        node, settings = self._node, self._node.settings
        common = {"preload": settings.shim_path, "socket": settings.socket_path}
        if (host := node.jobs.hosts.get(job_id)) is not None:
            pipe = self._mps.pipe_for_step(host)
            more = {"mps_pipe": pipe, "mps_gpus": str(len(host.gpus))} if pipe else {}
            return Packet("host", {**common, "mode": host.mode.value, **more})
        if (fill := node.jobs.fills.get(job_id)) is not None:
            if fill.evicted:
                return Packet("refused", {"reason": fill.evicted})
            return Packet(
                "fill",
                {
                    **common,
                    "cuda_visible_devices": fill.gpu,
                    "memory_limit_bytes": str(fill.memory_bytes),
                    **self._mps_of(fill),
                },
            )
        if job_id in node.jobs.refused:
            return Packet("refused", {"reason": node.jobs.refused[job_id]})
        return Packet("none")

    def _mps_of(self, fill: FillJob) -> dict[str, str]:
        """What makes a fill a client of low priority of its host job's MPS daemon."""
        host = self._node.jobs.hosts.get(fill.host_job_id or 0)
        pipe = self._mps.pipe_of(host) if host is not None else ""
        threads = str(self._node.settings.mps_thread_percentage)
        return {"mps_pipe": pipe, "mps_threads": threads} if pipe else {}

    def task(self, connection: Connection, packet: Packet) -> Packet:
        """Opens a fill's GPU in the cgroups of one of its processes."""
        job_id, process_id = packet.number("job_id"), packet.number("process_id")
        fill = self._node.jobs.fills.get(job_id)
        if fill is None:
            return Packet("refused", {"reason": f"job {job_id} is no fill job admitted here"})
        if connection.user_id not in (0, fill.user_id):
            return Packet("refused", {"reason": f"job {job_id} belongs to another user"})
        try:
            process = WatchedProcess.of_id(process_id)
        except ProcessGoneError as error:
            return Packet("refused", {"reason": str(error)})
        try:
            job = self._finder.job_of(process_id)
            if not process.alive() or job is None or job.job_id != job_id:
                reason = f"process {process_id} is not of job {job_id}"
                return Packet("refused", {"reason": reason})
            self._devices.grant(process_id, self._node.gpus[fill.gpu].device.minor)
        except (DeviceError, KeyError) as error:
            text = f"the GPU cannot be opened for job {job_id}: {error}"
            self._node.ledger.event("device", text, job_id=job_id, gpu=fill.gpu, user=fill.user)
            return Packet("refused", {"reason": text})
        finally:
            process.close()
        return Packet("ok")
