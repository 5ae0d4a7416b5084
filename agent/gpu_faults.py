"""What is wrong with each GPU, as the audit log is told of it.

A change is told at once. Where a fault comes and goes, the log has the first changes, then one a
minute: each says how many came before it, and the last one told is what holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.clock import now_ns
from agent.gpus import Gpu
from agent.ledger import Ledger

_AT_ONCE = 4  # a fault that becomes another and ends, and one more
_EACH_NS = 60_000_000_000


@dataclass
class _Told:
    fault: str = ""
    left: int = _AT_ONCE  # changes that may be told just now
    counted_ns: int = 0  # when `left` last grew
    untold: int = 0  # changes since the last one told


class GpuFaults:
    """Keeps `Gpu.fault` and tells of it. Main thread only."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._told: dict[str, _Told] = {}

    def note(self, gpu: Gpu, fault: str) -> bool:
        """Notes what is wrong with a GPU, nothing perhaps; True when that has changed."""
        if fault == gpu.fault:
            return False
        gpu.fault = fault
        told = self._told.setdefault(gpu.uuid, _Told())
        told.untold += 1
        self.look(gpu)
        return True

    def look(self, gpu: Gpu) -> None:
        """Tells of a change that has waited, if it still holds."""
        told = self._told.get(gpu.uuid)
        if told is None or not told.untold:
            return
        now = now_ns()
        grown = min(_AT_ONCE - told.left, (now - told.counted_ns) // _EACH_NS)
        if grown or told.left == _AT_ONCE:
            told.left, told.counted_ns = told.left + grown, now
        if told.fault == gpu.fault or not told.left:
            return
        text = f"GPU {gpu.uuid}: {gpu.fault}" if gpu.fault else f"GPU {gpu.uuid} is back"
        if told.untold > 1:
            text += f" (the last of {told.untold} changes)"
        self._ledger.event("gpu", text, gpu=gpu.uuid)
        told.fault, told.left, told.untold = gpu.fault, told.left - 1, 0
