"""Which folders a sandbox may be booted in: `up` empties parts of DIR and changes its mode."""

from __future__ import annotations

import re
from pathlib import Path

from deploy.sandbox.layout import SandboxError

MARK = ".sfill-sandbox"
MOST_BYTES = 75
"""With the longest name below DIR, a socket's path (of MPS, of an agent) must fit 107 bytes."""
_ALLOWED = re.compile(r"[\w./+@-]+")


def check_name(text: str) -> None:
    """Raise SandboxError for a name that configuration files can't hold."""
    if not text:
        raise SandboxError("DIR is empty; name a folder for the sandbox")
    resolved = str(Path(text).resolve())
    if not _ALLOWED.fullmatch(resolved):
        raise SandboxError(
            f"{resolved!r}: Slurm's configuration can't name such a folder; allowed in DIR are "
            "letters, digits and / . _ - + @"
        )
    if len(resolved.encode()) > MOST_BYTES:
        raise SandboxError(
            f"{resolved}: too long for the paths of sockets in it; DIR may have {MOST_BYTES} bytes"
        )


def claim(folder: Path) -> None:
    """Make the folder, or take one that is empty or an earlier sandbox's; refuse any other."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / MARK
    # Sandboxes of before there was a mark have their records.
    was_one = mark.exists() or (folder / "etc/sfill_submit.conf").exists()
    if not was_one and any(folder.iterdir()):
        raise SandboxError(
            f"{folder}: is neither empty nor a sandbox's; name a folder that is, or a new one"
        )
    mark.touch()
