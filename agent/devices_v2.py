"""cgroup version 2: an eBPF program decides on devices; ours takes the place of Slurm's.

Slurm attaches its program to the job's cgroup with BPF_F_ALLOW_OVERRIDE. Detaching it would open
every device, so it is replaced by one that denies the host's other GPUs and allows the rest, as
Slurm's does but for the one GPU that the fill was given.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
from pathlib import Path

from agent.proc_files import lines, read_text

_JOB = re.compile(r"((?:/system\.slice)?/(?:[^/]+_)?slurmstepd\.scope/job_\d+)((?:/[^/]+)*)")

_SYSCALL = {"x86_64": 321, "aarch64": 280, "ppc64le": 361}
_PROG_LOAD, _PROG_ATTACH, _PROG_GET_FD, _PROG_QUERY = 5, 8, 13, 16
_TYPE_CGROUP_DEVICE, _ATTACH_DEVICE = 15, 6
_ALLOW_OVERRIDE, _ALLOW_MULTI, _REPLACE = 1, 2, 4
_DEVICE_IS_CHAR = 2
_MOST_PROGRAMS = 64

# Opcodes: load 32 bits, move immediate, and immediate, jump if not equal, exit.
_LDXW, _MOVI, _ANDI, _JNE, _EXIT = 0x61, 0xB7, 0x57, 0x55, 0x95
_ACCESS_OFFSET, _MAJOR_OFFSET, _MINOR_OFFSET = 0, 4, 8


def job_levels(path: str) -> list[str]:
    """The cgroups from the job's down to `path`; empty when the path is not in a Slurm job."""
    found = _JOB.fullmatch(path)
    if found is None:
        return []
    levels = [found[1]]
    for name in filter(None, found[2].split("/")):
        levels.append(f"{levels[-1]}/{name}")
    return levels


def mount_point(mounts: Path = Path("/proc/self/mounts")) -> Path:
    """Where cgroup2 is mounted. Raises OSError when it is not."""
    for line in lines(read_text(mounts)):
        fields = line.split()
        if len(fields) > 2 and fields[2] == "cgroup2":
            return Path(fields[1])
    raise OSError("cgroup version 2 is not mounted")


def program(denied: list[tuple[int, int]]) -> bytes:
    """The code that denies these character devices, (major, minor), and allows all others."""
    code = [
        _insn(_LDXW, 2, 1, _ACCESS_OFFSET, 0),
        _insn(_ANDI, 2, 0, 0, 0xFFFF),
        _insn(_LDXW, 3, 1, _MAJOR_OFFSET, 0),
        _insn(_LDXW, 4, 1, _MINOR_OFFSET, 0),
        _insn(_MOVI, 0, 0, 0, 1),
    ]
    for major, minor in denied:
        code += [
            _insn(_JNE, 2, 0, 4, _DEVICE_IS_CHAR),
            _insn(_JNE, 3, 0, 3, major),
            _insn(_JNE, 4, 0, 2, minor),
            _insn(_MOVI, 0, 0, 0, 0),
            _insn(_EXIT, 0, 0, 0, 0),
        ]
    code.append(_insn(_EXIT, 0, 0, 0, 0))
    return b"".join(code)


def grant(root: Path, path: str, denied: list[tuple[int, int]]) -> None:
    """Replaces the device programs of a job's cgroups by ours. Raises OSError."""
    code = program(denied)
    loaded = _load(code)
    try:
        for position, level in enumerate(job_levels(path)):
            folder = os.open(root / level.lstrip("/"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                programs, flags = query(folder)
                if programs or position == 0:
                    _replace(folder, loaded, programs, flags)
            finally:
                os.close(folder)
    finally:
        os.close(loaded)


def query(folder: int) -> tuple[list[int], int]:
    """Ids of the device programs on an open cgroup folder, and the flags of their attachment."""
    ids = (ctypes.c_uint32 * _MOST_PROGRAMS)()
    request = struct.pack(
        "=IIIIQII", folder, _ATTACH_DEVICE, 0, 0, ctypes.addressof(ids), _MOST_PROGRAMS, 0
    )
    _, answer = _bpf(_PROG_QUERY, request)
    flags, count = struct.unpack_from("=I", answer, 12)[0], struct.unpack_from("=I", answer, 24)[0]
    return list(ids)[:count], flags


def _replace(folder: int, loaded: int, programs: list[int], flags: int) -> None:
    """Attaches our program in the place of what is there: never a moment without a program."""
    if flags != _ALLOW_MULTI:
        # One program at most; attaching with the same flags replaces it.
        _attach(folder, loaded, flags if programs else _ALLOW_OVERRIDE, 0)
        return
    if not programs:
        _attach(folder, loaded, _ALLOW_MULTI, 0)
    for position, identity in enumerate(programs):
        old, _ = _bpf(_PROG_GET_FD, struct.pack("=I", identity))
        try:
            if position == 0:
                _attach(folder, loaded, _ALLOW_MULTI | _REPLACE, old)
            else:
                _bpf(9, struct.pack("=IIII", folder, old, _ATTACH_DEVICE, 0))
        finally:
            os.close(old)


def _attach(folder: int, loaded: int, flags: int, replaced: int) -> None:
    _bpf(_PROG_ATTACH, struct.pack("=IIIII", folder, loaded, _ATTACH_DEVICE, flags, replaced))


def _load(code: bytes) -> int:
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"GPL")
    request = struct.pack(
        "=IIQQIIQII",
        _TYPE_CGROUP_DEVICE,
        len(code) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(licence),
        0,
        0,
        0,
        0,
        0,
    )
    return _bpf(_PROG_LOAD, request)[0]


def _insn(opcode: int, destination: int, source: int, offset: int, immediate: int) -> bytes:
    return struct.pack("=BBhi", opcode, (source << 4) | destination, offset, immediate)


def _bpf(command: int, request: bytes) -> tuple[int, bytes]:
    """The bpf system call: its result and what the kernel wrote back. Raises OSError."""
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(f"bpf on {platform.machine()} is not known to the agent")
    buffer = ctypes.create_string_buffer(request.ljust(128, b"\0"), 128)
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(number, command, buffer, 128)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"bpf command {command}: {os.strerror(error)}")
    return result, buffer.raw
