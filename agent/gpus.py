"""A GPU of this node: the device, what NVML last said, its policy page and its monitors."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.nvml import Device
from agent.policy import Policy
from agent.stretches import GpuTimes
from agent.turns import Turns


@dataclass
class Gpu:
    """`unknown` counts processes that no board speaks for; `fault` is why NVML can't be trusted."""

    device: Device
    policy: Policy
    free_bytes: int = 0
    training_bytes: int | None = None  # held by watched processes, from NVML; None: not known
    fill_left_ns: int = 0  # when a fill's process was last seen to end here
    fill_used_bytes: dict[int, int] = field(default_factory=dict)  # by fill job, NVML and boards
    fill_nvml_bytes: dict[int, int] = field(default_factory=dict)  # the same by NVML's word alone
    processes: frozenset[int] = frozenset()
    scanned_ns: int = 0  # when the scan that `processes` is from began
    unknown: int = 0
    unboarded: frozenset[int] = frozenset()  # fill jobs with a process here that has no board
    fault: str = ""
    kept_by: str = ""  # which killed fill is still on it: nothing is lent meanwhile
    ready_ns: dict[int, int] = field(default_factory=dict)  # training board id -> ready since
    bubble_share: float = 0.0  # recent
    turns: Turns = field(default_factory=Turns)
    times: GpuTimes = field(default_factory=GpuTimes)
    slowed_by: dict[str, int] = field(default_factory=dict)  # what held its clock down, last seen

    @property
    def uuid(self) -> str:
        return self.device.uuid
