"""What NVML says about the GPUs: memory and the processes on them. The one user of pynvml."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Protocol

log = logging.getLogger(__name__)

# Bits of nvmlDeviceGetCurrentClocksThrottleReasons that a busy GPU may raise (nvml.h).
_SLOWED_BY = {
    0x04: "its power cap",
    0x08: "a hardware slowdown",
    0x20: "its temperature",
    0x40: "its temperature",
    0x80: "a power brake",
}


class GpuError(Exception):
    """NVML has no answer for a GPU; `lost` when it is off the bus."""

    def __init__(self, text: str, *, lost: bool = False) -> None:
        super().__init__(text)
        self.lost = lost


@dataclass(frozen=True)
class Device:
    """A GPU of this host."""

    uuid: str
    minor: int
    name: str
    memory_bytes: int
    simulated: bool = False


@dataclass(frozen=True)
class GpuProcess:
    """A process that has a context on a GPU; its memory is None where NVML doesn't know."""

    process_id: int
    memory_bytes: int | None


class GpuQueries(Protocol):
    """What the agent asks of NVML; tests put their own in its place."""

    def devices(self) -> list[Device]:
        """All GPUs of the host. Raises GpuError."""

    def free_bytes(self, uuid: str) -> int:
        """Free memory of a GPU. Raises GpuError."""

    def processes(self, uuid: str) -> list[GpuProcess]:
        """Processes with a context on a GPU. Raises GpuError."""

    def slowed_by(self, uuid: str) -> tuple[str, ...]:
        """What holds the GPU's clock down just now; nothing where that can't be told."""


class Nvml:
    """NVML through pynvml. Raises GpuError when there is no NVML at all."""

    def __init__(self) -> None:
        import pynvml

        self._nvml: Any = pynvml
        self._handles: dict[str, Any] = {}
        self._lists_mps_clients = True
        self._call("nvmlInit")

    def devices(self) -> list[Device]:
        found = []
        for index in range(int(self._call("nvmlDeviceGetCount"))):
            try:
                found.append(self._device(self._call("nvmlDeviceGetHandleByIndex", index)))
            except GpuError as error:
                log.error("GPU with NVML index %d is left out: %s", index, error)
        return found

    def _device(self, handle: Any) -> Device:
        uuid = _text(self._call("nvmlDeviceGetUUID", handle))
        name = _text(self._call("nvmlDeviceGetName", handle))
        self._handles[uuid] = handle
        return Device(
            uuid=uuid,
            minor=int(self._call("nvmlDeviceGetMinorNumber", handle)),
            name=name,
            memory_bytes=int(self._call("nvmlDeviceGetMemoryInfo", handle).total),
            simulated="simulated" in name.lower(),
        )

    def free_bytes(self, uuid: str) -> int:
        return int(self._call("nvmlDeviceGetMemoryInfo", self._handles[uuid]).free)

    def processes(self, uuid: str) -> list[GpuProcess]:
        handle = self._handles[uuid]
        rows = list(self._call("nvmlDeviceGetComputeRunningProcesses", handle))
        rows += self._mps_clients(handle)
        known = {int(row.pid): row.usedGpuMemory for row in rows}
        return [
            GpuProcess(process_id, None if used is None else int(used))
            for process_id, used in known.items()
        ]

    def _mps_clients(self, handle: Any) -> list[Any]:
        """Clients of an MPS server, which NVML lists apart; a library may lack that list."""
        if not self._lists_mps_clients:
            return []
        try:
            return list(self._call("nvmlDeviceGetMPSComputeRunningProcesses", handle))
        except GpuError:
            return []
        except Exception as error:  # pynvml has several ways to say that a function is not there
            log.info("NVML does not list MPS clients: %s", error)
            self._lists_mps_clients = False
            return []

    def slowed_by(self, uuid: str) -> tuple[str, ...]:
        try:
            bits = int(self._call("nvmlDeviceGetCurrentClocksThrottleReasons", self._handles[uuid]))
        except GpuError:
            return ()
        return tuple(sorted({reason for bit, reason in _SLOWED_BY.items() if bits & bit}))

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._nvml, name)(*arguments)
        except self._nvml.NVMLError as error:
            code = getattr(error, "value", None)
            lost = code in (self._nvml.NVML_ERROR_GPU_IS_LOST, self._nvml.NVML_ERROR_RESET_REQUIRED)
            raise GpuError(f"{name}: {error}", lost=lost) from error


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
