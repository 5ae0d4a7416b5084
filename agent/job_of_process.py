"""Which Slurm job a process belongs to: read from its cgroup, which it cannot choose itself.

Slurm's paths (one slurmd on a host, or several with MULTIPLE_SLURMD, which put the node's name in):
  v1  /slurm/uid_1000/job_12/step_0/task_0        /slurm_n1/uid_1000/job_12/step_batch
  v2  /system.slice/slurmstepd.scope/job_12/step_0/user/task_0
      /system.slice/n1_slurmstepd.scope/job_12/step_0/user/task_0
The patterns are anchored at the root: a user who may make cgroups below his own session can't
pose as a job by a well-chosen name.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.proc_files import lines, read_text

_V1 = re.compile(
    r"/slurm(?:_(?P<node>[^/]+))?/uid_\d+/job_(?P<job>\d+)(?:/step_(?P<step>[^/]+))?(?:/.*)?"
)
_V2 = re.compile(
    r"(?:/system\.slice)?/(?:(?P<node>[^/]+)_)?slurmstepd\.scope"
    r"/job_(?P<job>\d+)(?:/step_(?P<step>[^/]+))?(?:/.*)?"
)
_JOB_ID = re.compile(r"[0-9]{1,19}")
_SOCKET = b"SFILL_SOCKET="


@dataclass(frozen=True)
class JobOfProcess:
    """The job and step a process runs in; `node` is empty where the path names none."""

    job_id: int
    step_id: str
    node: str


@dataclass(frozen=True)
class CgroupOfProcess:
    """One line of /proc/PID/cgroup; `controllers` is empty for version 2."""

    controllers: tuple[str, ...]
    path: str

    @property
    def version(self) -> int:
        return 1 if self.controllers else 2


def cgroups(text: str) -> list[CgroupOfProcess]:
    """The lines of a /proc/PID/cgroup file; malformed ones are passed over."""
    found = []
    for line in lines(text):
        _, first, rest = line.partition(":")
        controllers, second, path = rest.partition(":")
        if first and second and path.startswith("/"):
            found.append(CgroupOfProcess(tuple(filter(None, controllers.split(","))), path))
    return found


def job_in_cgroups(text: str) -> JobOfProcess | None:
    """The Slurm job that a /proc/PID/cgroup file names, or None. The line with a step wins."""
    best: JobOfProcess | None = None
    for line in cgroups(text):
        found = (_V1 if line.version == 1 else _V2).fullmatch(line.path)
        if found is None:
            continue
        job = JobOfProcess(int(found["job"]), found["step"] or "", found["node"] or "")
        if best is None or (job.step_id and not best.step_id):
            best = job
    return best


def job_in_environment(data: bytes, socket: str) -> JobOfProcess | None:
    """Tests only: the job that a /proc/PID/environ file names in SLURM_JOB_ID.

    Only of processes that were pointed to our socket: others on this machine use the same numbers.
    """
    values = dict(item.split(b"=", 1) for item in data.split(b"\0") if b"=" in item)
    if values.get(b"SFILL_SOCKET") != socket.encode():
        return None
    job = values.get(b"SLURM_JOB_ID", b"").decode(errors="replace")
    step = values.get(b"SLURM_STEP_ID", b"batch").decode(errors="replace")
    node = values.get(b"SLURMD_NODENAME", b"").decode(errors="replace")
    return JobOfProcess(int(job), step, node) if _JOB_ID.fullmatch(job) else None


class JobFinder:
    """Looks up jobs of processes under /proc; `environment_socket`: see job_in_environment."""

    def __init__(self, *, environment_socket: str = "", proc: Path = Path("/proc")) -> None:
        self._socket = environment_socket
        self._proc = proc

    def job_of(self, process_id: int) -> JobOfProcess | None:
        """The job of a process; None when it has none or is gone."""
        try:
            if self._socket:
                data = (self._proc / str(process_id) / "environ").read_bytes()
                return job_in_environment(data, self._socket)
            return job_in_cgroups(read_text(self._proc / str(process_id) / "cgroup"))
        except OSError:
            return None

    def processes_of_jobs(self) -> dict[int, list[int]]:
        """All processes of all jobs on this host, slurmstepd left out: job id -> process ids."""
        return self._by_job(lambda entry, _: not self._is_slurmstepd(entry))

    def gated_processes(self, node: str, socket: str) -> dict[int, list[int]]:
        """Processes in jobs of a node that run as fills: job id -> process ids. The node is named
        by the cgroup, the gate's role by the environment that a process was started with. Not
        those of another agent on this host: two clusters may name a node alike (sandboxes do)."""
        return self._by_job(lambda entry, job: job.node == node and _is_gated(entry, socket))

    def _by_job(self, counts: Callable[[Path, JobOfProcess], bool]) -> dict[int, list[int]]:
        """The processes of jobs that count, each by its folder and its job."""
        found: dict[int, list[int]] = {}
        for entry in self._proc.iterdir():
            job = self.job_of(int(entry.name)) if entry.name.isdigit() else None
            if job is not None and counts(entry, job):
                found.setdefault(job.job_id, []).append(int(entry.name))
        return found

    @staticmethod
    def _is_slurmstepd(entry: Path) -> bool:
        """Slurm's own runs as root; any process may give itself its name."""
        try:
            said = lines(read_text(entry / "status"))
        except OSError:
            return False
        is_root = any(line.split("\t")[:2] == ["Uid:", "0"] for line in said)
        return said[:1] == ["Name:\tslurmstepd"] and is_root


def _is_gated(process: Path, socket: str) -> bool:
    try:
        values = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    if b"SFILL_ROLE=gate" not in values:
        return False
    named = [value.removeprefix(_SOCKET) for value in values if value.startswith(_SOCKET)]
    return not any(_is_another_agents(os.fsdecode(path), socket) for path in named)


def _is_another_agents(path: str, socket: str) -> bool:
    """Whether a socket is there by this path that is not ours, and that no user can have made."""
    try:
        there, ours = Path(path).stat(), os.path.realpath(path) == os.path.realpath(socket)
    except (OSError, ValueError):
        return False
    return not ours and stat.S_ISSOCK(there.st_mode) and there.st_uid == 0
