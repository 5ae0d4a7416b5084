"""Peers for tests of the agent: GPUs that a test invents, shims and Slurm's side over the socket.

The agent tells jobs apart by SLURM_JOB_ID of the peer's environment (setting
`job_from_environment`), so every fake shim is a child that was started with its job's id.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agent.board import AccountPage, FillBoard, PolicyPage, TrainingBoard
from agent.daemon import Agent
from agent.nvml import Device, GpuError, GpuProcess
from agent.packet import Packet, decode
from agent.settings import AgentSettings
from agent.shared_memory import SharedMemory
from agent.shim_verbs import PROTOCOL_VERSION

GIB = 1 << 30
ROOT = Path(__file__).resolve().parents[2]


def uuid_of(minor: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{minor:012d}"


class FakeGpus:
    """NVML as a test wants it."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.free = {uuid_of(minor): 20 * GIB for minor in range(count)}
        self.on_gpu: dict[str, list[GpuProcess]] = {uuid_of(minor): [] for minor in range(count)}
        self.slow: dict[str, tuple[str, ...]] = {}
        self.fault: GpuError | None = None
        self.answers = threading.Event()  # cleared: a question hangs until it is set again
        self.answers.set()

    def devices(self) -> list[Device]:
        return [Device(uuid_of(n), n, "Fake GPU", 24 * GIB, True) for n in range(self.count)]

    def free_bytes(self, uuid: str) -> int:
        self.answers.wait()
        if self.fault is not None:
            raise self.fault
        return self.free[uuid]

    def processes(self, uuid: str) -> list[GpuProcess]:
        return list(self.on_gpu[uuid])

    def slowed_by(self, uuid: str) -> tuple[str, ...]:
        return self.slow.get(uuid, ())


def settings_for(folder: Path, **given: Any) -> AgentSettings:
    values: dict[str, Any] = {
        "node": "n1",
        "twin": "f1",
        "socket": str(folder / "sfilld-%n.sock"),
        "state_dir": folder / "state",
        "spool_dir": folder / "spool",
        "controller_url": "",
        "warm_up_s": 0,
        "guard_interval_s": 0.05,
        "drain_interval_s": 0.02,
        "restart_grace_s": 0,
        "prolog_user_ids": [0, os.getuid()],
        "slurm_user_id": os.getuid(),
        "devices": "none",
        "job_from_environment": True,
    }
    return AgentSettings(**{**values, **given})


class RunningAgent:
    """An agent on a thread of its own."""

    def __init__(self, settings: AgentSettings, gpus: FakeGpus) -> None:
        self.settings = settings
        self.gpus = gpus
        FakeShim.socket_path = settings.socket_path
        self._started = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(10)
        if self._failed is not None:
            raise self._failed
        until(lambda: Path(settings.socket_path).exists())

    def _run(self) -> None:
        async def serve() -> None:
            try:
                self.agent = Agent(self.settings, self.gpus)
                self._loop = asyncio.get_running_loop()
            except BaseException as error:
                self._failed = error
                raise
            finally:
                self._started.set()
            await self.agent.run()

        asyncio.run(serve())

    def stop(self) -> None:
        """Stops it as SIGTERM does; once is enough."""
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self.agent.stop)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def slurm(self, verb: str, **fields: object) -> Packet:
        """What prolog, epilog or slurmstepd would say; the answer."""
        with Peer(self.settings.socket_path) as peer:
            peer.send(verb, -1, **fields)
            return peer.answer(15)

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Records that the ledger holds or has spooled."""
        found = [json.loads(text) for text in list(self.agent.node.ledger._waiting)]
        for path in sorted(self.settings.spool_dir.glob("*.batches")):
            for line in path.read_text().splitlines():
                found += json.loads(line.partition("\t")[0])["records"]
        return [record for record in found if record["kind"] == kind]

    def events(self, what: str) -> list[dict[str, Any]]:
        """In the order of time: what is still in the ledger is newer than what is spooled."""
        found = [event for event in self.records("event") if event["what"] == what]
        return sorted(found, key=lambda event: int(event["at_us"]))


@contextlib.contextmanager
def running(settings: AgentSettings, gpus: FakeGpus | None = None) -> Iterator[RunningAgent]:
    agent = RunningAgent(settings, gpus or FakeGpus())
    try:
        yield agent
    finally:
        agent.stop()


class Peer:
    """A connection to the agent's socket from this process."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(path)

    def send(self, verb: str, descriptor: int = -1, **fields: object) -> None:
        data = Packet(verb, {key: str(value) for key, value in fields.items()}).encode()
        socket.send_fds(self.socket, [data], [descriptor] if descriptor >= 0 else [])

    def receive(self, seconds: float = 5) -> Packet:
        return self.receive_with_descriptor(seconds)[0]

    def answer(self, seconds: float = 5) -> Packet:
        """The answer to a question that the agent takes its time for."""
        while (packet := self.receive(seconds)).verb == "wait":
            pass
        return packet

    def receive_with_descriptor(self, seconds: float = 5) -> tuple[Packet, int]:
        self.socket.settimeout(seconds)
        data, descriptors, _, _ = socket.recv_fds(self.socket, 5000, 4)
        if not data:
            raise ConnectionResetError("the agent closed the connection")
        return decode(data), descriptors[0] if descriptors else -1

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


# The child connects itself, so that SO_PEERCRED names it, and passes the connection up.
_CHILD = """
import socket, sys
up = socket.socket(fileno=int(sys.argv[1]))
while True:
    path = up.recv(4096).decode()
    if not path:
        break
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.connect(path)
    socket.send_fds(up, [b"x"], [peer.fileno()])
    peer.close()
"""


class FakeShim:
    """A process of a job, and its connection to the agent as the interposer would use it."""

    socket_path = ""  # of the agent that was started last

    def __init__(self, job_id: int, **variables: str) -> None:
        self._up, down = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(down.fileno())],
            pass_fds=[down.fileno()],
            env={
                **os.environ,
                "SLURM_JOB_ID": str(job_id),
                "SLURM_STEP_ID": "0",
                "SFILL_SOCKET": self.socket_path,
                **variables,
            },
        )
        down.close()
        self.descriptor = -1
        self.pages: dict[str, SharedMemory[PolicyPage]] = {}
        self.boards: dict[str, int] = {}
        self.accounts: dict[str, Any] = {}  # read only

    def connect(self, path: str) -> None:
        self._up.send(path.encode())
        _, descriptors, _, _ = socket.recv_fds(self._up, 16, 1)
        self.peer = Peer.__new__(Peer)
        self.peer.socket = socket.socket(fileno=descriptors[0])

    def attach(self, agent: RunningAgent, role: str = "monitor", *, again: bool = False) -> Packet:
        self.connect(agent.settings.socket_path)
        fields: dict[str, Any] = {"version": PROTOCOL_VERSION, "role": role}
        if again:
            self.peer.send("attach", self.descriptor, **fields, reattach=1)
        else:
            self.peer.send("attach", **fields)
        answer, descriptor = self.peer.receive_with_descriptor()
        if descriptor >= 0:
            self.descriptor = descriptor
        return answer

    def training_board(self) -> TrainingBoard:
        memory = SharedMemory(TrainingBoard, os.dup(self.descriptor))
        memory.close()  # the mapping stays
        return memory.view

    def fill_board(self) -> FillBoard:
        memory = SharedMemory(FillBoard, os.dup(self.descriptor))
        memory.close()
        return memory.view

    def take_pushes(self, seconds: float = 0.3) -> list[Packet]:
        """Takes what is pushed for a while; keeps policy pages and boards."""
        found = []
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                packet, descriptor = self.peer.receive_with_descriptor(left)
            except TimeoutError:
                break
            found.append(packet)
            if packet.verb == "policy":
                self.pages[packet.get("uuid")] = read_only(PolicyPage, descriptor)
            elif packet.verb == "account":
                self.accounts[packet.get("uuid")] = read_only(AccountPage, descriptor)
            elif packet.verb == "board":
                self.boards[packet.get("board_id")] = descriptor
            elif packet.verb == "drop":
                os.close(self.boards.pop(packet.get("board_id")))
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self._up.close()


def read_only(kind: Any, descriptor: int) -> Any:
    """A structure that is read from the shared object anew at every access of `view`."""
    import ctypes
    import mmap

    mapped = mmap.mmap(descriptor, ctypes.sizeof(kind), prot=mmap.PROT_READ)

    class Reader:
        @property
        def view(self) -> Any:
            return kind.from_buffer_copy(mapped)

    reader = Reader()
    reader.descriptor = descriptor  # type: ignore[attr-defined]
    return reader


def until(condition: Callable[[], object], seconds: float = 5) -> None:
    """Waits until a condition holds; fails the test when it does not come to."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what was waited for did not come"
        time.sleep(0.01)


def host_begins(
    agent: RunningAgent,
    job_id: int,
    gpus: str = "0",
    spec: str = "on",
    restart_count: int | str = 0,
) -> Packet:
    return agent.slurm(
        "job_begin",
        job_id=job_id,
        user_id=os.getuid(),
        user="sfilluser1",
        account="a",
        node="n1",
        kind="host",
        spec=spec,
        gpus=gpus,
        restart_count=restart_count,
        batch=1,
    )


def fill_begins(
    agent: RunningAgent, job_id: int, spec: str = "mem=4G", restart_count: int = 0
) -> Packet:
    return agent.slurm(
        "job_begin",
        job_id=job_id,
        user_id=os.getuid(),
        user="sfilluser2",
        account="a",
        node="f1",
        kind="fill",
        spec=spec,
        gpus="",
        restart_count=restart_count,
        batch=1,
    )


def train(agent: RunningAgent, job_id: int, minor: int = 0) -> FakeShim:
    """A training process that has a context on a GPU and is ready."""
    shim = FakeShim(job_id)
    answer = shim.attach(agent)
    assert answer.verb == "monitor", answer
    board = shim.training_board()
    board.gpus[0].uuid = uuid_of(minor).encode()
    board.gpus[0].used = 1
    board.gpus_used = 1
    board.ready = 1
    shim.peer.send("gpu", uuid=uuid_of(minor))
    gpu = agent.agent.node.gpus[uuid_of(minor)]
    until(lambda: gpu.ready_ns and gpu.scanned_ns)
    return shim


def gate_on_gpu(agent: RunningAgent, job_id: int) -> FakeShim:
    """A process of an admitted fill job whose board names the first GPU."""
    gate = FakeShim(job_id)
    gate.attach(agent, role="gate")
    board = gate.fill_board()
    board.gpus[0].uuid = uuid_of(0).encode()
    board.gpus_used = 1
    return gate
