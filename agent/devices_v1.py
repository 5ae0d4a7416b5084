"""cgroup version 1: devices.allow and devices.deny, from the job's level down.

A lower level can allow only what the one above allows, so the order matters.
"""

from __future__ import annotations

import re
from pathlib import Path

_JOB = re.compile(r"(/slurm(?:_[^/]+)?/uid_\d+/job_\d+)((?:/[^/]+)*)")


def job_levels(path: str) -> list[str]:
    """The cgroups from the job's down to `path`; empty when the path is not in a Slurm job."""
    found = _JOB.fullmatch(path)
    if found is None:
        return []
    levels = [found[1]]
    for name in filter(None, found[2].split("/")):
        levels.append(f"{levels[-1]}/{name}")
    return levels


def grant(
    root: Path, path: str, allowed: list[tuple[int, int]], denied: list[tuple[int, int]]
) -> None:
    """Allows and denies (major, minor) pairs in all levels of a job's cgroup. Raises OSError."""
    for level in job_levels(path):
        folder = root / level.lstrip("/")
        for major, minor in denied:
            (folder / "devices.deny").write_text(f"c {major}:{minor} rwm")
        for major, minor in allowed:
            (folder / "devices.allow").write_text(f"c {major}:{minor} rwm")
