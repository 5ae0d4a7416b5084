"""What a launch costs the host, by what does not depend on how busy the machine is: how often its
thread reads the clock, and how often the interposer's own thread wakes."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.unit.lending_agent import TUNING, LendingAgent, wait_until
from tests.unit.shim_lab import compiled, environment, null_driver

UUID = "GPU-01010101-0101-0101-0101-010101010101"  # as the null driver names its GPU
ROOMY = replace(TUNING, in_flight_us=20_000)  # a burst waits for no room
SECONDS, REST_US = 1.0, 300


@dataclass(frozen=True)
class Cost:
    """Of one process's launches."""

    clock_reads: float  # by the launching thread, each launch
    wakes: float  # of the interposer's own thread, each second
    best_ns: float


def program() -> Path:
    return compiled("launch_cost", "-rdynamic", f"-L{null_driver()}", "-lcuda")


def cost(socket: Path, role: str) -> Cost:
    done = subprocess.run(
        [str(program()), str(SECONDS), str(REST_US)],
        env=environment(null_driver(), socket, {"SFILL_ROLE": role}),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = json.loads(done.stdout)
    print(role, found)
    return Cost(
        found["clock_reads"] / found["launches"],
        found["sleeps"] / found["seconds"],
        found["best_ns"],
    )


@contextlib.contextmanager
def idle_training(agent: LendingAgent, socket: Path) -> Iterator[None]:
    """A training that has stopped, in its bubble."""
    code = (
        "import ctypes as C\n"
        "cu, context, stream = C.CDLL('libcuda.so.1'), C.c_void_p(), C.c_void_p()\n"
        "cu.cuInit(0); cu.cuDevicePrimaryCtxRetain(C.byref(context), 0)\n"
        "cu.cuCtxSetCurrent(context); cu.cuStreamCreate(C.byref(stream), 1)\n"
        "cu.cuLaunchKernel(context, 1, 1, 1, 1, 1, 1, 0, stream, None, None)\n"
        "cu.cuStreamSynchronize(stream)\n"
        "input()\n"
    )
    training = subprocess.Popen(
        ["python3", "-c", code],
        env=environment(null_driver(), socket, {"SFILL_ROLE": "monitor"}),
        stdin=subprocess.PIPE,
    )
    try:
        wait_until("the training's board", lambda: agent.training)
        board = next(iter(agent.training.values())).view
        wait_until("its bubble", lambda: board.gpus[0].bubble_seq % 2 == 1)
        yield
    finally:
        training.kill()
        training.communicate()


def test_a_training_pays_one_reading_of_the_clock_a_launch(tmp_path: Path) -> None:
    with LendingAgent(tmp_path / "socket", uuid=UUID):
        found = cost(tmp_path / "socket", "monitor")
    assert found.clock_reads < 1.2
    # Each 0.8 ms while launches come and the program waits for its work itself; once 0.5 ms.
    assert found.wakes < 1800


@pytest.mark.parametrize(("beside_training", "reads"), [(False, 2), (True, 3)])
def test_a_release_reads_the_clock_when_it_must(
    tmp_path: Path, beside_training: bool, reads: int
) -> None:
    """When it is asked for, when its call has returned; beside a training also after the idle
    check, whose age goes on record."""
    socket = tmp_path / "socket"
    agent = LendingAgent(socket, tuning=ROOMY, ignore_training=not beside_training, uuid=UUID)
    with agent, contextlib.ExitStack() as stack:
        if beside_training:
            stack.enter_context(idle_training(agent, socket))
        found = cost(socket, "gate")
    assert found.clock_reads < reads + 0.3
    # Each 125 us while callers launch, each 50 us for a while after their work.
    assert found.wakes < 12_000
