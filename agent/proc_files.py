"""Text files of /proc as text, whatever stands in them.

A process gives itself its name, and whoever may make cgroups names them: any bytes, or a letter
that the kernel has cut in two. None of that may upset who reads them.
"""

from __future__ import annotations

import os
from pathlib import Path


def read_text(path: Path) -> str:
    """The file, bytes that are no text kept as Python keeps them in paths, line ends as they are.

    Raises OSError.
    """
    return os.fsdecode(path.read_bytes())


def lines(text: str) -> list[str]:
    """The kernel's lines: only a newline ends one, as names may hold all else that breaks a line
    elsewhere."""
    return text.removesuffix("\n").split("\n") if text else []


def fields_of_stat(process_id: int) -> list[str]:
    """What stands behind the name in /proc/PID/stat: the state, the parent, and so on.

    Empty when the process is gone.
    """
    try:
        text = read_text(Path(f"/proc/{process_id}/stat"))
    except OSError:
        return []
    return text.rpartition(")")[2].split()
