"""An agent that lends one simulated GPU to whoever asks: boards, policy page, heartbeat, no jobs.

It lets a test set the gate's numbers, read every record that a gate writes, and die.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from pathlib import Path
from types import TracebackType

from agent import packet
from agent.accounts import Account
from agent.board import (
    LAYOUT_VERSION,
    MAGIC_FILL,
    MAGIC_TRAINING,
    Closed,
    FillBoard,
    TrainingBoard,
    Use,
)
from agent.policy import FillVerdict, Policy, Tuning
from agent.shared_memory import SharedMemory

UUID = "GPU-00000000-0000-0000-0000-000000000000"
JOB = 77
TUNING = Tuning(
    dwell_us=50,
    in_flight_us=300,
    min_bubble_us=200,
    unknown_op_us=1000,
    max_op_us=0,
    turn_us=20_000,
    graph_part_us=0,
)


class LendingAgent:
    """Listens on `path`; the role that a process wishes for is the role it gets."""

    def __init__(
        self,
        path: Path,
        *,
        tuning: Tuning = TUNING,
        memory_limit_bytes: int = 4 << 30,
        ignore_training: bool = False,
        predict_end: bool = True,
        uuid: str = UUID,
        jobs: tuple[int, ...] = (JOB,),
    ) -> None:
        self.policy = Policy(uuid, ignore_training=ignore_training, predict_end=predict_end)
        self.policy.write_tuning(tuning)
        self.memory_limit_bytes = memory_limit_bytes
        self.jobs = jobs  # whose the gates are, in the order in which they attach
        self.allow()
        self.account = Account(JOB, uuid, complete=True)
        self.training: dict[int, SharedMemory[TrainingBoard]] = {}
        self.fills: list[SharedMemory[FillBoard]] = []
        self.uses: list[Use] = []
        self.users: list[int] = []  # whose each of them is: the gate's place in `fills`
        self.texts: list[str] = []
        self._uuid = uuid
        self._read: list[int] = []
        self._gates: list[socket.socket] = []
        self._ids = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(16)
        self._path = path
        self._connections: list[socket.socket] = []
        for work in (self._accept, self._beat):
            threading.Thread(target=work, daemon=True).start()

    def __enter__(self) -> LendingAgent:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.die()

    def die(self) -> None:
        """As kill -9 does it: no more heartbeats, all connections end, the page stays as it is."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._path.unlink(missing_ok=True)
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def allow(self, closed: Closed = Closed.OPEN) -> None:
        verdicts = [FillVerdict(job, closed, self.memory_limit_bytes) for job in self.jobs]
        self.policy.write_fills(verdicts)

    def collect(self) -> list[Use]:
        """Every record that any gate has written so far."""
        with self._lock:
            for index, memory in enumerate(self.fills):
                board = memory.view
                while self._read[index] < board.use_head:
                    raw = bytes(board.uses[self._read[index] % len(board.uses)])
                    self.uses.append(Use.from_buffer_copy(raw))
                    self.users.append(index)
                    self._read[index] += 1
            return list(self.uses)

    def gpu_time_ns(self) -> int:
        """What all gates say they had of the GPU: their records, and what is in none yet."""
        still_open = sum(int(memory.view.gpus[0].open_gpu_ns) for memory in self.fills)
        return still_open + sum(int(use.gpu_time_ns) for use in self.collect())

    def _beat(self) -> None:
        while not self._ended.wait(0.05):
            self.policy.beat()
            self.collect()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        board_id = 0
        while not self._ended.is_set():
            try:
                data, _, _, _ = connection.recvmsg(packet.MAX_BYTES, 256)
            except OSError:
                data = b""
            if not data:
                break
            message = packet.decode(data)
            if message.verb == "log":
                self.texts.append(message.fields["text"])
            elif message.verb == "attach":
                board_id = self._attach(connection, message.fields.get("role", ""))
        if board_id in self.training and not self._ended.is_set():
            self._drop(board_id)

    def _attach(self, connection: socket.socket, role: str) -> int:
        with self._lock:
            self._ids += 1
            if role == "monitor":
                self._attach_training(connection)
            else:
                self._attach_fill(connection)
            return self._ids

    def _attach_training(self, connection: socket.socket) -> None:
        memory = SharedMemory.create(TrainingBoard, "board")
        head = memory.view.head
        head.version = LAYOUT_VERSION
        head.size_bytes = len(memory.raw)
        head.board_id = self._ids
        head.magic = MAGIC_TRAINING
        memory.view.fill_present = 1
        fields = {"board_id": str(self._ids), "size": str(len(memory.raw))}
        self._send(connection, packet.Packet("monitor", fields), os.dup(memory.descriptor))
        self.training[self._ids] = memory
        self.policy.write_boards(sorted(self.training), 0)
        for gate in self._gates:
            self._push_board(gate, self._ids)

    def _attach_fill(self, connection: socket.socket) -> None:
        memory = SharedMemory.create(FillBoard, "board")
        head = memory.view.head
        head.version = LAYOUT_VERSION
        head.size_bytes = len(memory.raw)
        head.board_id = self._ids
        head.magic = MAGIC_FILL
        fields = {
            "board_id": str(self._ids),
            "size": str(len(memory.raw)),
            "job_id": str(self.jobs[min(len(self.fills), len(self.jobs) - 1)]),
            "memory_limit_bytes": str(self.memory_limit_bytes),
        }
        self._send(connection, packet.Packet("gate", fields), os.dup(memory.descriptor))
        self.fills.append(memory)
        self._read.append(0)
        self._gates.append(connection)
        self.account.join(self._ids)
        account = os.dup(self.account.memory.descriptor)
        self._send(connection, packet.Packet("account", {"uuid": self._uuid}), account)
        page = self.policy.memory.read_only_descriptor()
        self._send(connection, packet.Packet("policy", {"uuid": self._uuid}), page)
        for board_id in self.training:
            self._push_board(connection, board_id)

    def _push_board(self, gate: socket.socket, board_id: int) -> None:
        descriptor = self.training[board_id].read_only_descriptor()
        fields = {"board_id": str(board_id), "uuid": self._uuid}
        self._send(gate, packet.Packet("board", fields), descriptor)

    def _drop(self, board_id: int) -> None:
        with self._lock:
            del self.training[board_id]
            self.policy.write_boards(sorted(self.training), 0)
            for gate in self._gates:
                self._send(gate, packet.Packet("drop", {"board_id": str(board_id)}), -1)

    @staticmethod
    def _send(connection: socket.socket, message: packet.Packet, descriptor: int) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", descriptor))]
        try:
            connection.sendmsg([message.encode()], rights if descriptor >= 0 else [])
        except OSError:
            return
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def wait_until(what: str, condition: object, seconds: float = 10) -> None:
    """Looks every 10 ms; fails with the name of what did not come."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not come within {seconds} s"
        time.sleep(0.01)
