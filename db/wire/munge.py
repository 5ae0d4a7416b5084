"""MUNGE credentials, which say which uid on which host is speaking.

Slurm clusters have MUNGE already, so agents and operators need no key of ours. The library is
loaded on the first call; nothing here needs it at import.
"""

from __future__ import annotations

import ctypes
import socket as net
import struct
from dataclasses import dataclass
from functools import cache

# Numbers of munge.h (munge_opt_t and munge_err_t).
_OPT_ADDR4 = 5
_OPT_SOCKET = 8
_SUCCESS = 0
_REPLAYED = 17
_UNREACHABLE = (6, 7)  # EMUNGE_SOCKET, EMUNGE_TIMEOUT


class MungeError(Exception):
    """A credential that could not be made or is not to be believed.

    `replayed` is true when the credential was decoded once before on this host; `unreachable`
    when munged does not answer, so that nothing is known about the credential.
    """

    def __init__(self, text: str, *, replayed: bool = False, unreachable: bool = False) -> None:
        super().__init__(text)
        self.replayed = replayed
        self.unreachable = unreachable


@dataclass(frozen=True)
class Credential:
    """What munged vouches for: who made the credential, where, and what it carries."""

    uid: int
    gid: int
    payload: bytes
    host: str  # IPv4 address of the host that made it


@cache
def _library() -> ctypes.CDLL:
    try:
        lib = ctypes.CDLL("libmunge.so.2")
    except OSError as error:
        raise MungeError(f"munge: {error}; install libmunge2", unreachable=True) from error
    lib.munge_ctx_create.restype = ctypes.c_void_p
    lib.munge_ctx_destroy.argtypes = [ctypes.c_void_p]
    lib.munge_ctx_destroy.restype = None
    lib.munge_ctx_strerror.argtypes = [ctypes.c_void_p]
    lib.munge_ctx_strerror.restype = ctypes.c_char_p
    lib.munge_strerror.argtypes = [ctypes.c_int]
    lib.munge_strerror.restype = ctypes.c_char_p
    lib.munge_encode.argtypes = [
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_int,
    ]
    lib.munge_decode.argtypes = [
        ctypes.c_char_p,
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_int),
        ctypes.POINTER(ctypes.c_uint32),
        ctypes.POINTER(ctypes.c_uint32),
    ]
    return lib


@cache
def _libc() -> ctypes.CDLL:
    """What munge allocates is freed by its caller, with libc's free."""
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free.restype = None
    return libc


class _Context:
    """A munge context: options of one call; not shared between threads."""

    def __init__(self, socket: str | None) -> None:
        self.lib = _library()
        self.pointer = ctypes.c_void_p(self.lib.munge_ctx_create())
        if not self.pointer:
            raise MungeError("munge: out of memory")
        if socket is not None:
            code = self.lib.munge_ctx_set(
                self.pointer, _OPT_SOCKET, ctypes.c_char_p(socket.encode())
            )
            if code != _SUCCESS:
                text = self.error(code)
                self.close()
                raise text

    def error(self, code: int) -> MungeError:
        detail = self.lib.munge_ctx_strerror(self.pointer) or self.lib.munge_strerror(code)
        return MungeError(
            f"munge: {detail.decode(errors='replace')}",
            replayed=code == _REPLAYED,
            unreachable=code in _UNREACHABLE,
        )

    def origin(self) -> str:
        """Address of the host that made the credential just decoded."""
        address = ctypes.c_uint32(0)
        code = self.lib.munge_ctx_get(self.pointer, _OPT_ADDR4, ctypes.byref(address))
        if code != _SUCCESS:
            raise self.error(code)
        return net.inet_ntoa(struct.pack("=I", address.value))

    def close(self) -> None:
        self.lib.munge_ctx_destroy(self.pointer)


def encode(payload: bytes, socket: str | None = None) -> str:
    """Make a credential of the calling process that carries `payload`.

    `socket` is munged's socket; None is the system's own. Raises MungeError.
    """
    context = _Context(socket)
    try:
        text = ctypes.c_void_p()
        code = context.lib.munge_encode(
            ctypes.byref(text), context.pointer, payload or None, len(payload)
        )
        if code != _SUCCESS or not text.value:
            raise context.error(code)
        try:
            return ctypes.string_at(text.value).decode("ascii")
        finally:
            _libc().free(text)
    finally:
        context.close()


def decode(credential: str, socket: str | None = None) -> Credential:
    """Check a credential and say who made it.

    munged accepts each credential once on a host; a second decode is a MungeError with
    `replayed` set. `socket` is munged's socket; None is the system's own.
    """
    context = _Context(socket)
    payload = ctypes.c_void_p()
    length = ctypes.c_int(0)
    uid = ctypes.c_uint32(0)
    gid = ctypes.c_uint32(0)
    try:
        code = context.lib.munge_decode(
            credential.encode("ascii", errors="replace"),
            context.pointer,
            ctypes.byref(payload),
            ctypes.byref(length),
            ctypes.byref(uid),
            ctypes.byref(gid),
        )
        if code != _SUCCESS:
            raise context.error(code)
        body = ctypes.string_at(payload.value, length.value) if payload.value else b""
        return Credential(uid=uid.value, gid=gid.value, payload=body, host=context.origin())
    finally:
        # An expired or replayed credential still comes with its payload.
        if payload.value:
            _libc().free(payload)
        context.close()
