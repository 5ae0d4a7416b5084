"""How much each GPU can lend, and which GPU a fill job gets. Arithmetic only, no side effects."""

from __future__ import annotations

from dataclasses import dataclass

from agent.gpus import Gpu
from agent.jobs import FillJob, HostJob
from agent.settings import AgentSettings
from db.wire.messages import HostMode


@dataclass(frozen=True)
class Room:
    """`free_bytes` a GPU can lend to one more fill; 0 with the reason why nothing."""

    free_bytes: int
    reason: str = ""


def room(
    gpu: Gpu,
    host: HostJob | None,
    fills: list[FillJob],
    settings: AgentSettings,
    *,
    now_ns: int,
    stopped: str = "",
) -> Room:
    """What a GPU can lend now. `stopped` is why the whole node lends nothing, if it does not."""
    reason = stopped or _closed(gpu, host, settings, now_ns)
    if reason or host is None:
        return Room(0, reason)
    # NVML's free memory lacks what the fills hold already; their reservations are taken off below.
    lendable = gpu.free_bytes + sum(gpu.fill_used_bytes.values())
    lendable -= kept_for_growth(gpu, host, settings)
    if host.lend_bytes is not None:
        lendable = min(lendable, host.lend_bytes)
    free = lendable - sum(fill.memory_bytes for fill in fills)
    return Room(max(0, free), "" if free > 0 else "all that may be lent is in use")


def kept_for_growth(gpu: Gpu, host: HostJob, settings: AgentSettings) -> int:
    """Free memory in bytes that is kept for the training: up to its peak so far, and a margin."""
    peak = host.peak_bytes.get(gpu.uuid, 0)
    margin = max(settings.reserve_bytes, round(peak * settings.growth_margin))
    return max(0, peak - training_bytes(gpu)) + margin


def training_bytes(gpu: Gpu) -> int:
    """What training holds: by NVML, else all that is not free and not a fill's."""
    if gpu.training_bytes is not None:
        return gpu.training_bytes
    fills = sum(gpu.fill_used_bytes.values())
    return max(0, gpu.device.memory_bytes - gpu.free_bytes - fills)


def _closed(gpu: Gpu, host: HostJob | None, settings: AgentSettings, now_ns: int) -> str:
    if gpu.fault:
        return f"the GPU has a fault: {gpu.fault}"
    if gpu.kept_by:
        return gpu.kept_by
    if host is None:
        return "no training job holds the GPU"
    if host.mode != HostMode.ON:
        return f"job {host.job_id} does not lend (mode {host.mode})"
    if not gpu.ready_ns:
        return f"job {host.job_id} has no monitored process on the GPU yet"
    if not warm(gpu, settings, now_ns):
        return f"job {host.job_id} is warming up"
    if gpu.unknown:
        return f"{gpu.unknown} unknown process(es) on the GPU"
    return ""


def warm(gpu: Gpu, settings: AgentSettings, now_ns: int) -> bool:
    """Whether every monitor on the GPU has been ready for the warm-up time."""
    return all(now_ns - since >= settings.warm_up_s * 1e9 for since in gpu.ready_ns.values())


def slots(free_bytes: int, settings: AgentSettings) -> int:
    """Whole slots in so many bytes."""
    return free_bytes // settings.slot_bytes


def slots_held(fills: list[FillJob], settings: AgentSettings) -> int:
    """Slots that fills hold; a started slot counts whole, as Slurm counts it."""
    return sum(-(-fill.memory_bytes // settings.slot_bytes) for fill in fills)


@dataclass(frozen=True)
class Candidate:
    """A GPU as admission sees it."""

    gpu: Gpu
    room: Room
    fills: int


def choose(candidates: list[Candidate], memory_bytes: int) -> tuple[Gpu | None, str]:
    """The GPU for a fill that asks for so much memory: most bubble time for each of its fills.

    Returns (GPU, "") or (None, why not).
    """
    fitting = [each for each in candidates if each.room.free_bytes >= memory_bytes]
    if fitting:
        best = max(
            fitting,
            key=lambda each: (each.gpu.bubble_share / (each.fills + 1), each.room.free_bytes),
        )
        return best.gpu, ""
    if not candidates:
        return None, "this node has no GPU"
    most = max(candidates, key=lambda each: each.room.free_bytes)
    if most.room.free_bytes > 0:
        return None, (
            f"asked for {memory_bytes >> 20} MiB, but the largest room on a GPU here is "
            f"{most.room.free_bytes >> 20} MiB"
        )
    return None, f"nothing to lend here: {most.room.reason}"
