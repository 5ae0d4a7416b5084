"""Slurm's cgroups on a host without systemd: which version, what to prepare, what to remove."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

from deploy.sandbox import services
from deploy.sandbox.layout import JOB_IDS_PER_SANDBOX, Sandbox, SandboxError

ROOT = Path("/sys/fs/cgroup")
V2_CONTROLLERS = ("cpuset", "cpu", "memory", "pids")
JOB = re.compile(r"job_(\d+)$")


def version() -> int:
    """1 or 2: what is mounted at /sys/fs/cgroup."""
    if (ROOT / "cgroup.controllers").exists():
        return 2
    if (ROOT / "devices/devices.allow").exists() or (ROOT / "devices/tasks").exists():
        return 1
    raise SandboxError(f"{ROOT}: neither cgroup v2 nor the v1 controller `devices` is mounted")


def prepare(cgroup_version: int) -> list[str]:
    """On v2, make the parent that systemd would have made; returns the folders made here."""
    if cgroup_version == 1:
        return []
    slice_folder = ROOT / "system.slice"
    made = [] if slice_folder.exists() else [str(slice_folder)]
    slice_folder.mkdir(exist_ok=True)
    for folder in (ROOT, slice_folder):
        for controller in V2_CONTROLLERS:
            # A container may not hand on some of them; devices, all we need, is not among them.
            with contextlib.suppress(OSError):
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")
    return made


def end_job_processes(sandbox: Sandbox) -> None:
    """Kill what is left in the cgroups of this sandbox's jobs."""
    for folder in _job_folders(sandbox):
        for cgroup in [folder, *folders_below(folder)]:
            with contextlib.suppress(OSError):
                for pid in map(int, (cgroup / "cgroup.procs").read_text().split()):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


def remove(sandbox: Sandbox, alone: bool) -> None:
    """Remove the cgroups of this sandbox's jobs and, when no other sandbox is up, Slurm's own."""
    folders = list(_job_folders(sandbox))
    if alone:
        folders += list(_node_folders(sandbox))
    for folder in folders:
        services.wait_until(lambda f=folder: _remove_tree(f), 2.0)  # type: ignore[misc]
    for name in sandbox.own_cgroups if alone else []:
        with contextlib.suppress(OSError):
            Path(name).rmdir()


def remaining(sandbox: Sandbox) -> list[Path]:
    """Cgroups of this sandbox's jobs that exist."""
    return list(_job_folders(sandbox))


def folders_below(folder: Path) -> list[Path]:
    """Every folder in it, outer ones first; what vanishes meanwhile (a job ends) is left out."""
    return [Path(outer) / each for outer, inner, _ in os.walk(folder) for each in inner]


def _node_folders(sandbox: Sandbox) -> Iterator[Path]:
    for node in sandbox.slurm_nodes:
        if sandbox.cgroup_version == 1:
            yield from ROOT.glob(f"*/slurm_{node}")
        else:
            yield from (ROOT / "system.slice").glob(f"{node}_slurm*.scope")


def _job_folders(sandbox: Sandbox) -> Iterator[Path]:
    first = sandbox.first_job_id
    for node_folder in list(_node_folders(sandbox)):
        for folder in folders_below(node_folder):
            match = JOB.search(folder.name)
            if match and first <= int(match[1]) < first + JOB_IDS_PER_SANDBOX:
                yield folder


def _remove_tree(folder: Path) -> bool:
    """Whether `folder` is gone; a cgroup goes once its processes and children are gone."""
    if not folder.exists():
        return True
    for child in reversed(folders_below(folder)):
        with contextlib.suppress(OSError):
            child.rmdir()
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()
