"""The file that a prover and a program under test share: page 0 as in paths.h, page 1 the GPU's."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

PAGE_BYTES = 4096
SEEN_BYTES = 256
WHERE_ELSE, WHERE_CALL, WHERE_BEHIND = 0, 1, 2
"""Outside; in the call under test; behind it, on the way to the next trace."""


class Words(ctypes.Structure):
    """struct page."""

    _fields_ = (
        ("tried", ctypes.c_uint64),
        ("returned", ctypes.c_uint64),
        ("where", ctypes.c_uint64),
        ("stop", ctypes.c_uint64),
    )
    tried: int
    returned: int
    where: int
    stop: int


class Page:
    """Such a file, mapped; `create` makes it anew."""

    def __init__(self, path: Path, *, create: bool) -> None:
        if create:
            path.write_bytes(bytes(2 * PAGE_BYTES))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 2 * PAGE_BYTES)
        self.words = Words.from_buffer(self._memory)
        self.address = ctypes.addressof(self.words)
        self.seen_address = self.address + PAGE_BYTES

    def seen(self) -> bytes:
        """What the GPU has written, as it stands."""
        return self._memory[PAGE_BYTES : PAGE_BYTES + SEEN_BYTES]
