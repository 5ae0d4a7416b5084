"""A fill that launches CUDA graphs beside a training, on a simulated GPU."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from deploy.sandbox.simgpu.log_file import Operation
from tests.unit.gated_machine import FILL, Machine
from tests.unit.lending_agent import TUNING, LendingAgent

ROOT = Path(__file__).resolve().parents[2]
PARTS = replace(TUNING, graph_part_us=150)
LONG = """
s, t = gpu.stream(), gpu.stream()
def graph(name, kernels=40, us=50):
    gpu.capture(s)
    gpu.launch(name + '-head', us, s)
    for _ in range(kernels - 2): gpu.launch(name, us, s)
    gpu.launch(name + '-tail', us, s)
    return gpu.end_capture(s)
def run(exec, stream=s): gpu.call('cuGraphLaunch', exec, stream)
"""


@contextmanager
def beside_training(machine: Machine, seconds: float, *more: str) -> Iterator[LendingAgent]:
    with LendingAgent(machine.socket, tuning=PARTS, jobs=(FILL,)) as agent:
        training = machine.train(seconds, *more)
        time.sleep(1)
        try:
            yield agent
        finally:
            training.terminate()
            training.wait(30)
            time.sleep(0.2)


def run(machine: Machine, code: str, **more: str) -> list[Operation]:
    """The kernels of a fill that runs this code (see simgpu/session.py), by when they started."""
    environment = {
        **machine.environment("gate", FILL),
        "SIMGPU_LIBRARY": str(machine.build / "simgpu/lib/libcuda.so.1"),
        "PYTHONPATH": str(ROOT),
        **more,
    }
    with beside_training(machine, 60, "--compute-us", "3000", "--stall-ms", "30"):
        command = [sys.executable, "-m", "deploy.sandbox.simgpu.session", LONG + code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "runtime error" not in done.stderr, done.stderr
    return sorted(machine.fill_work(FILL), key=lambda op: op.start_ns)


def named(work: list[Operation], name: str) -> list[Operation]:
    return [op for op in work if op.name == name]


def launches(work: list[Operation], name: str) -> int:
    """Into how many launches, as the driver saw them, the kernels of this name were put."""
    return len({op.graph_launch for op in named(work, name)})
