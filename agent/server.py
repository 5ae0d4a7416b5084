"""The agent's socket: accepts connections, reads packets with their descriptors, sends answers.

Nothing here waits: a peer that does not read its packets loses its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
import struct
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from agent.packet import MAX_BYTES, Packet, PacketError, decode
from agent.processes import WatchedProcess
from agent.rate import Rate

log = logging.getLogger(__name__)

_MAX_DESCRIPTORS = 4
_MAX_QUEUED = 512
_INT_BYTES = struct.calcsize("i")


class Handler(Protocol):
    """What the agent does with packets."""

    def handle(self, connection: Connection, packet: Packet, descriptors: list[int]) -> None:
        """Deals with one packet; closes the descriptors or takes them over."""

    def closed(self, connection: Connection) -> None:
        """The connection is gone."""


class Connection:
    """One peer. `process` is who is speaking, by SO_PEERCRED."""

    def __init__(
        self, peer: socket.socket, process: WatchedProcess, on_close: Callable[[Connection], None]
    ) -> None:
        self.process = process
        self.open = True
        self._peer = peer
        self._queue: deque[tuple[bytes, int]] = deque()
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()

    @property
    def user_id(self) -> int:
        return self.process.user_id

    def hung_up(self) -> bool:
        """Whether nobody waits at the other end any more: what was asked was asked long ago."""
        if not self.open:
            return True
        poll = select.poll()
        poll.register(self._peer, select.POLLRDHUP)
        return bool(poll.poll(0))

    def send(self, packet: Packet, descriptor: int = -1) -> None:
        """Sends a packet, with a copy of `descriptor` if there is one. Never waits or raises."""
        if not self.open:
            return
        try:
            data = packet.encode()
            copy = os.dup(descriptor) if descriptor >= 0 else -1
        except (PacketError, OSError) as error:
            log.error(
                "cannot send %s to process %d: %s", packet.verb, self.process.process_id, error
            )
            self.close()
            return
        self._queue.append((data, copy))
        if len(self._queue) == 1:
            self.flush()
        elif len(self._queue) > _MAX_QUEUED:
            log.warning("process %d does not read its packets", self.process.process_id)
            self.close()

    def flush(self) -> None:
        """Sends what the socket takes now, the rest when it is writable again."""
        while self._queue:
            data, descriptor = self._queue[0]
            try:
                if descriptor >= 0:
                    socket.send_fds(self._peer, [data], [descriptor], socket.MSG_NOSIGNAL)
                else:
                    self._peer.send(data, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._loop.add_writer(self._peer, self.flush)
                return
            except OSError:
                self.close()
                return
            self._queue.popleft()
            if descriptor >= 0:
                os.close(descriptor)
        if self.open:
            self._loop.remove_writer(self._peer)

    def receive(self) -> tuple[bytes, list[int]] | None:
        """One packet and its descriptors; None when none is there. Raises OSError at the end."""
        size = socket.CMSG_SPACE(_MAX_DESCRIPTORS * _INT_BYTES)
        try:
            data, controls, flags, _ = self._peer.recvmsg(
                MAX_BYTES + 1, size, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return None
        descriptors: list[int] = []
        for level, kind, content in controls:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                usable = len(content) - len(content) % _INT_BYTES
                descriptors += [n for (n,) in struct.iter_unpack("i", content[:usable])]
        if not data:
            close_all(descriptors)
            raise ConnectionResetError("closed by peer")
        if flags & socket.MSG_TRUNC:
            data = b""
        return data, descriptors

    def close(self) -> None:
        """Closes the connection; the handler is told once."""
        if not self.open:
            return
        self.open = False
        self._loop.remove_reader(self._peer)
        self._loop.remove_writer(self._peer)
        self._peer.close()
        close_all([descriptor for _, descriptor in self._queue if descriptor >= 0])
        self._queue.clear()
        self._on_close(self)


class Server:
    """Listens at a path, mode 0666; who speaks is known from the kernel, not from the path."""

    def __init__(self, path: str, handler: Handler, max_connections_per_user: int) -> None:
        self._path = Path(path)
        self._handler = handler
        self._limit = max_connections_per_user
        self._per_user: Counter[int] = Counter()
        self._told = Rate(1)
        self._connections: set[Connection] = set()
        self._listener: socket.socket | None = None
        self._bound: tuple[int, int] | None = None  # device and inode of our socket's file
        self._trouble = ""

    def start(self) -> None:
        """Binds and listens, in the place of whatever stands at the path. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # A socket that a killed agent left is replaced; rename makes the change in one step.
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            listener.bind(str(temporary))
            temporary.chmod(0o666)
            listener.listen(1024)
            listener.setblocking(False)
            temporary.rename(self._path)
        except OSError:
            listener.close()
            raise
        self._bound = _identity(self._path)
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept)

    def look(self) -> str:
        """Binds anew if our socket's file was removed or replaced, since nobody would find us any
        more; says what was done, or why it could not be, once. Connections stay as they are."""
        if self._listener is None or (found := _identity(self._path)) == self._bound:
            return ""
        what = "was removed" if found is None else "was replaced"
        earlier = self._listener
        try:
            self.start()
        except OSError as error:
            told, self._trouble = self._trouble, str(error)
            return "" if told else f"the socket {self._path} {what} and can't be made anew: {error}"
        self._trouble = ""
        self._retire(earlier)
        return f"the socket {self._path} {what}: it was made anew"

    def _retire(self, listener: socket.socket) -> None:
        """Closes a listener that nobody finds any more; who had found it before is served."""
        asyncio.get_running_loop().remove_reader(listener)
        with contextlib.suppress(OSError):
            while True:
                self._welcome(listener.accept()[0])
        listener.close()

    def stop(self) -> None:
        """Closes the listener and every connection."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
            with contextlib.suppress(OSError):
                self._path.unlink()
        for connection in list(self._connections):
            connection.close()

    def _accept(self) -> None:
        listener = self._listener
        if listener is None:
            return
        try:
            peer, _ = listener.accept()
        except OSError as error:
            log.error("cannot accept connections for a second: %s", error)
            self._pause(listener)
            return
        self._welcome(peer)

    def _welcome(self, peer: socket.socket) -> None:
        peer.setblocking(False)
        try:
            process = WatchedProcess.of_peer(peer)
        except OSError:
            peer.close()
            return
        if process.user_id != 0 and self._per_user[process.user_id] >= self._limit:
            if self._told.allows(process.user_id):
                log.warning("user %d has too many connections", process.user_id)
            process.close()
            peer.close()
            return
        connection = Connection(peer, process, self._forget)
        self._connections.add(connection)
        self._per_user[process.user_id] += 1
        asyncio.get_running_loop().add_reader(peer, self._read, connection)

    def _pause(self, listener: socket.socket) -> None:
        """Out of descriptors, say: the listener would stay readable, and the loop spin."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        loop.call_later(1.0, self._listen_again)

    def _listen_again(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._per_user[connection.user_id] -= 1
        self._handler.closed(connection)

    def _read(self, connection: Connection) -> None:
        try:
            received = connection.receive()
        except OSError:
            connection.close()
            return
        if received is None:
            return
        data, descriptors = received
        try:
            packet = decode(data)
        except PacketError as error:
            close_all(descriptors)
            connection.send(Packet("error", {"reason": str(error)}))
            return
        self._handler.handle(connection, packet, descriptors)


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of what stands at a path; None: nothing does."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def close_all(descriptors: list[int]) -> None:
    """Closes descriptors, whatever state they are in."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
