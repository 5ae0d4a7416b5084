"""Opens a fill job's GPU, and no other, to one of its processes: in the cgroups of its job."""

from __future__ import annotations

import logging
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from agent import devices_v1, devices_v2
from agent.job_of_process import CgroupOfProcess, cgroups
from agent.proc_files import read_text
from agent.settings import AgentSettings

log = logging.getLogger(__name__)

_MOVES_MOST = 6  # looks at a process whose cgroup is removed under us
_MOVE_S = 0.005  # between two of them


class DeviceError(Exception):
    """A GPU's device node could not be opened to a job."""


@dataclass(frozen=True)
class DeviceNumber:
    """A character device by its kernel numbers."""

    major: int
    minor: int


class Devices:
    """Grants by the settings `devices`, `device_path` and `shared_device_paths`."""

    def __init__(self, settings: AgentSettings, minors: list[int]) -> None:
        self._settings = settings
        self._minors = minors

    def grant(self, process_id: int, minor: int) -> None:
        """Allows the GPU of this minor, denies the host's other GPUs, in the cgroups of a process.

        Done on each level from the job down, so it must be asked for again by each task that Slurm
        constrains anew; doing it twice does no harm. Raises DeviceError.
        """
        how = self._settings.devices
        if how == "none":
            return
        own = self.number_of(self._settings.device_path % minor)
        if own is None:
            raise DeviceError(f"there is no device node {self._settings.device_path % minor}")
        shared = [self.number_of(path) for path in self._settings.shared_device_paths]
        allowed = [own, *(number for number in shared if number is not None)]
        others = [self.number_of(self._settings.device_path % each) for each in self._minors]
        denied = [number for number in others if number is not None and number not in allowed]
        for attempt in range(_MOVES_MOST):
            try:
                found = cgroups(read_text(Path("/proc") / str(process_id) / "cgroup"))
                self._apply(how, found, allowed, denied)
                return
            except FileNotFoundError as error:
                # slurmstepd moves a task on (task_special to task_0) and removes what it left:
                # look again where the process stands now.
                if attempt + 1 == _MOVES_MOST:
                    raise DeviceError(str(error)) from error
                time.sleep(_MOVE_S)
            except OSError as error:
                raise DeviceError(str(error)) from error

    def _apply(
        self,
        how: str,
        found: list[CgroupOfProcess],
        allowed: list[DeviceNumber],
        denied: list[DeviceNumber],
    ) -> None:
        v1 = next((each for each in found if "devices" in each.controllers), None)
        v2 = next((each for each in found if each.version == 2), None)
        allow = [(each.major, each.minor) for each in allowed]
        deny = [(each.major, each.minor) for each in denied]
        if how in ("auto", "v1") and v1 is not None and devices_v1.job_levels(v1.path):
            devices_v1.grant(self._settings.cgroup_root / "devices", v1.path, allow, deny)
        elif how in ("auto", "v2") and v2 is not None and devices_v2.job_levels(v2.path):
            devices_v2.grant(devices_v2.mount_point(), v2.path, deny)
        else:
            raise DeviceError("the process is in no device cgroup of a Slurm job")

    @staticmethod
    def number_of(path: str) -> DeviceNumber | None:
        """The numbers of a device node; None where there is none."""
        try:
            found = os.stat(path)  # noqa: PTH116 - a path of settings, not joined
        except OSError:
            return None
        if not stat.S_ISCHR(found.st_mode):
            return None
        return DeviceNumber(os.major(found.st_rdev), os.minor(found.st_rdev))
