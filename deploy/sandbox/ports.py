"""A block of free ports for each sandbox of this host, reserved in one registry file."""

from __future__ import annotations

import fcntl
import json
import socket
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.sandbox.layout import FIRST_PORT, PORTS_PER_SANDBOX, SandboxError

REGISTRY = Path("/run/lock/sfill-sandboxes.json")
BLOCKS = 100  # up to port 31999, below the kernel's ephemeral ports


def check_range(wanted: int | None) -> None:
    """Raise SandboxError for a first port that leaves no room for a block."""
    last = 65536 - PORTS_PER_SANDBOX
    if wanted is not None and not 1024 <= wanted <= last:
        raise SandboxError(f"--port-base {wanted}: 1024 to {last} are allowed")


def reserve(folder: Path, wanted: int | None) -> int:
    """Reserve a block for the sandbox in `folder` and return its first port.

    Without `wanted`, the search begins at a place that depends on the folder's name, so that
    sandboxes started together seldom meet.
    """
    with _registry() as taken:
        if wanted is not None:
            _check_wanted(wanted, taken, folder)
            taken[str(wanted)] = str(folder)
            return wanted
        start = zlib.crc32(str(folder).encode())
        for offset in range(BLOCKS):
            base = FIRST_PORT + PORTS_PER_SANDBOX * ((start + offset) % BLOCKS)
            if str(base) not in taken and _all_free(base):
                taken[str(base)] = str(folder)
                return base
    raise SandboxError(f"no free block of {PORTS_PER_SANDBOX} ports from {FIRST_PORT} on")


def release(folder: Path) -> None:
    """Give the block of the sandbox in `folder` back."""
    with _registry() as taken:
        for base in [base for base, owner in taken.items() if owner == str(folder)]:
            del taken[base]


def base_of(folder: Path) -> int | None:
    """The first port of the sandbox in `folder`; None when none is reserved."""
    with _registry() as taken:
        bases = [int(base) for base, owner in taken.items() if owner == str(folder)]
    return bases[0] if bases else None


def others(folder: Path) -> bool:
    """Whether sandboxes other than the one in `folder` are registered on this host."""
    with _registry() as taken:
        return any(owner != str(folder) for owner in taken.values())


def _check_wanted(wanted: int, taken: dict[str, str], folder: Path) -> None:
    owner = taken.get(str(wanted))
    if owner is not None and owner != str(folder):
        raise SandboxError(f"--port-base {wanted}: the sandbox in {owner} has these ports")
    if not _all_free(wanted):
        raise SandboxError(f"--port-base {wanted}: a port of {wanted}..{wanted + 99} is in use")


def _all_free(base: int) -> bool:
    for port in range(base, base + PORTS_PER_SANDBOX):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


@contextmanager
def _registry() -> Iterator[dict[str, str]]:
    """The blocks in use (first port -> folder), under a lock; folders that are gone drop out."""
    REGISTRY.parent.mkdir(parents=True, exist_ok=True)
    with REGISTRY.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        taken = {base: owner for base, owner in _parse(text) if Path(owner, "run").is_dir()}
        yield taken
        file.seek(0)
        file.truncate()
        file.write(json.dumps(taken))


def _parse(text: str) -> list[tuple[str, str]]:
    """Blocks and their folders. What is damaged is forgotten: ports in use are found by trying."""
    try:
        return [
            (base, owner)
            for base, owner in json.loads(text).items()
            if base.isdecimal() and isinstance(owner, str)
        ]
    except (ValueError, AttributeError):
        return []
