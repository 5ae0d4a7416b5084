"""What a fill is told of its GPU's memory, whoever it asks: its job's limit, and what is left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.agent_peers import (
    RunningAgent,
    fill_begins,
    host_begins,
    train,
    until,
)
from tests.unit.sharing_lab import (
    CONTEXT_MB,
    MEMORY_PROGRAM,
    SharingLab,
    agent_of_fills,
    lab_of,
    result,
)
from tests.unit.shim_lab import compiled, environment, python, simulated_gpu

DEVICE_PROGRAM = Path(__file__).with_name("device_program.py")
GPU_MB = 8192
LIMIT_MB = 2048
DRIVERS_CONTEXT_MB = 256  # what the simulated driver takes for one


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RunningAgent]:
    with agent_of_fills(tmp_path) as started:
        yield started


@pytest.fixture
def lab(tmp_path: Path, agent: RunningAgent) -> Iterator[SharingLab]:
    with lab_of(agent, tmp_path / "lab", GPU_MB, DEVICE_PROGRAM) as started:
        yield started


def linked_program() -> Path:
    library = simulated_gpu()
    return compiled("linked_nvml", f"-L{library}", "-l:libnvidia-ml.so.1", "-ldl")


def test_a_fill_sees_its_limit_and_what_is_left_of_it(
    tmp_path: Path, agent: RunningAgent, lab: SharingLab
) -> None:
    host_begins(agent, 1, spec="on,slowdown=20%")
    lab.start(1, "monitor", 60, "wait", program=MEMORY_PROGRAM)
    [gpu] = agent.agent.node.gpus.values()
    until(lambda: gpu.ready_ns, 20)
    assert fill_begins(agent, 2, f"mem={LIMIT_MB}M").verb == "ok"
    found = result(lab.start(2, "gate", linked_program()))
    used = CONTEXT_MB + 100
    left = [LIMIT_MB - used, LIMIT_MB, used]
    assert found["before"] == [[LIMIT_MB, LIMIT_MB, 0]] * 2
    assert found["device"] == LIMIT_MB
    assert found["info"] == left[:2]
    assert found["after"] == [left] * 2
    assert found["called"] == [[left] * 3]


def test_a_training_sees_the_gpu_as_it_is(agent: RunningAgent, lab: SharingLab) -> None:
    host_begins(agent, 1)
    found = result(lab.start(1, "monitor", linked_program()))
    used = DRIVERS_CONTEXT_MB + 100
    left = [GPU_MB - used, GPU_MB, used]
    assert found["before"] == [[GPU_MB, GPU_MB, 0]] * 2
    assert found["device"] == GPU_MB
    assert found["after"] == [left] * 2
    assert found["called"] == [[left] * 3]


def test_asking_nvml_takes_no_part(agent: RunningAgent, lab: SharingLab) -> None:
    """A process may ask, fork and only then begin with CUDA: its parent has no board."""
    host_begins(agent, 1)
    training = train(agent, 1)
    assert fill_begins(agent, 2, f"mem={LIMIT_MB}M").verb == "ok"
    found, _ = lab.start(2, "gate", program=linked_program()).communicate(timeout=20)
    assert json.loads(found) == [[LIMIT_MB, LIMIT_MB, 0]] * 3
    assert agent.agent.node.fills == {}
    assert [event["job_id"] for event in agent.events("attached")] == [1]
    training.close()


def test_where_no_nvml_is_loaded_there_is_none() -> None:
    code = (
        "import ctypes\n"
        "whole = ctypes.CDLL(None)\n"
        "print(int(hasattr(whole, 'nvmlDeviceGetMemoryInfo')))\n"
    )
    assert python(code, environment(None, None)) == 0
