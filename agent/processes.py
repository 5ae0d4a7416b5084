"""Processes known by pidfd, so that a reused number is never taken for the process it was."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct

from agent.proc_files import fields_of_stat

_SO_PEERPIDFD = 77  # Linux 6.5
_UCRED = struct.Struct("3i")


class ProcessGoneError(Exception):
    """The process ended before it could be watched."""


class WatchedProcess:
    """A process and its pidfd, which turns readable when the process ends."""

    def __init__(self, process_id: int, user_id: int, descriptor: int) -> None:
        self.process_id = process_id
        self.user_id = user_id
        self.descriptor = descriptor

    @classmethod
    def of_peer(cls, connection: socket.socket) -> WatchedProcess:
        """The process at the other end of a unix socket; its user is known even if it is gone, and
        it is then not `alive`."""
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        process_id, user_id, _ = _UCRED.unpack(data)
        try:
            descriptor = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError:
            try:
                return cls.of_id(process_id, user_id)
            except ProcessGoneError:
                return cls(process_id, user_id, -1)
        return cls(process_id, user_id, descriptor)

    @classmethod
    def of_id(cls, process_id: int, user_id: int = -1) -> WatchedProcess:
        """The process of this number, if it lives. Raises ProcessGoneError."""
        try:
            return cls(process_id, user_id, os.pidfd_open(process_id))
        except (OSError, ValueError) as error:
            raise ProcessGoneError(f"process {process_id} is gone") from error

    def alive(self) -> bool:
        """Whether it still runs; what was read about its number before is then true of it."""
        if self.descriptor < 0:
            return False
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        return not poll.poll(0)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal; a process that is gone is no error."""
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.descriptor, number)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def is_stopped(process_id: int) -> bool:
    """Whether a process stands by SIGSTOP or under a debugger."""
    return fields_of_stat(process_id)[:1] in (["T"], ["t"])
