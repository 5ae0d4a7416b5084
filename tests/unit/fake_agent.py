"""The agent's side of the socket, just enough to hand a process its board and watch it.

What the tests need to go wrong can be chosen: an agent that accepts and never answers, one that
does not listen, one that answers "aside".
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from pathlib import Path
from types import TracebackType

from agent import packet
from agent.board import LAYOUT_VERSION, MAGIC_TRAINING, TrainingBoard
from agent.shared_memory import SharedMemory


class FakeAgent:
    """Listens on `path`; every process that attaches gets a training board of its own."""

    def __init__(
        self, path: Path, *, answer: str = "monitor", version: int = LAYOUT_VERSION
    ) -> None:
        self.path = path
        self.answer = answer
        self.version = version
        self.fill_present = False  # what new boards say
        self.boards: list[SharedMemory[TrainingBoard]] = []
        self.messages: list[packet.Packet] = []
        self.attached = threading.Event()
        self._connections: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(16)
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> FakeAgent:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        for board in self.boards:
            board.close()

    def stop(self) -> None:
        """Goes away as an agent does that is killed: all connections end."""
        for one in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self.path.unlink(missing_ok=True)

    @property
    def board(self) -> TrainingBoard:
        """The board of the latest process."""
        return self.boards[-1].view

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        while True:
            try:
                data, control, _, _ = connection.recvmsg(packet.MAX_BYTES, 256)
            except OSError:
                return
            if not data:
                return
            message = packet.decode(data)
            self.messages.append(message)
            if message.verb == "attach":
                self._attach(connection, control)

    def _attach(self, connection: socket.socket, control: list[tuple[int, int, bytes]]) -> None:
        if self.answer == "silent":
            return
        if self.answer == "hang up":
            connection.close()
            return
        if self.answer == "aside":
            connection.send(packet.Packet("aside", {"reason": "a test"}).encode())
            return
        fields = {"board_id": str(len(self.boards) + 1)}
        if control:  # a board that outlived its agent
            descriptor = struct.unpack("i", control[0][2][:4])[0]
            self.boards.append(
                SharedMemory.adopt(TrainingBoard, descriptor, MAGIC_TRAINING, LAYOUT_VERSION)
            )
            connection.send(packet.Packet("monitor", fields).encode())
        else:
            connection.sendmsg(*self._new_board(connection, fields))
        self.attached.set()

    def _new_board(
        self, connection: socket.socket, fields: dict[str, str]
    ) -> tuple[list[bytes], list[tuple[int, int, bytes]]]:
        memory = SharedMemory.create(TrainingBoard, "board")
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        head = memory.view.head
        head.version = self.version
        head.size_bytes = len(memory.raw)
        head.board_id = int(fields["board_id"])
        head.process_id = struct.unpack("3i", peer)[0]
        memory.view.fill_present = int(self.fill_present)
        head.magic = MAGIC_TRAINING
        self.boards.append(memory)
        text = packet.Packet("monitor", fields | {"size": str(len(memory.raw))}).encode()
        rights = struct.pack("i", os.dup(memory.descriptor))
        return [text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
