"""Sealed memfds that the agent shares with users' processes, mapped as ctypes structures.

A user's process holds its own board writable, so the object is sealed against growing and
shrinking: a truncated mapping would kill the agent (SIGBUS). Mode 0600 under the agent's uid keeps
a process that was given a read-only descriptor from opening it again for writing.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from typing import Generic, TypeVar

S = TypeVar("S", bound=ctypes.Structure)

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class SharedMemoryError(ValueError):
    """A descriptor that a process handed over is not a board that the agent may map."""


class SharedMemory(Generic[S]):
    """One mapped object; `view` is the structure, `raw` its bytes for reading in bulk."""

    def __init__(self, kind: type[S], descriptor: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, ctypes.sizeof(kind))
        self.view: S = kind.from_buffer(self._map)
        self.raw = memoryview(self._map)

    @classmethod
    def create(cls, kind: type[S], name: str) -> SharedMemory[S]:
        """A new object, all zero, sealed. Raises OSError."""
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(descriptor, 0o600)
            os.ftruncate(descriptor, ctypes.sizeof(kind))
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            return cls(kind, descriptor)
        except OSError:
            os.close(descriptor)
            raise

    @classmethod
    def adopt(cls, kind: type[S], descriptor: int, magic: int, version: int) -> SharedMemory[S]:
        """Maps what a process kept over a restart of the agent; takes the descriptor over.

        Raises SharedMemoryError (descriptor closed) when it is not such an object or not sealed.
        """
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            size = os.fstat(descriptor).st_size
            if seals & fcntl.F_SEAL_SHRINK == 0 or size != ctypes.sizeof(kind):
                raise SharedMemoryError(f"a board of {size} bytes that is not sealed to this size")
            os.fchmod(descriptor, 0o600)
            memory = cls(kind, descriptor)
        except (OSError, ValueError) as error:
            os.close(descriptor)
            if isinstance(error, SharedMemoryError):
                raise
            raise SharedMemoryError(f"not a board: {error}") from error
        head = memory.view.head
        if (head.magic, head.version) != (magic, version):
            memory.close()
            raise SharedMemoryError(f"a board of layout {head.version}, not {version}")
        return memory

    def read_only_descriptor(self) -> int:
        """A descriptor of the same object that cannot be mapped writable; the caller closes it."""
        return os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Closes the descriptor; the mapping goes when the last reference to it does."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
