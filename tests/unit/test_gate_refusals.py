"""What a fill may not do at all, and what it may do only while the gate is open."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.board import Closed
from tests.unit.lending_agent import LendingAgent
from tests.unit.shim_lab import environment, null_driver, python

NULL_UUID = "GPU-" + "-".join(("01010101", "0101", "0101", "0101", "010101010101"))
REFUSED = (801, 500)  # CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_FOUND
HELD_S = 0.5
PRELUDE = """
import ctypes as C, json, sys
cu = C.CDLL("libcuda.so.1")
context, made = C.c_void_p(), C.c_void_p()
assert cu.cuInit(0) == 0
assert cu.cuDevicePrimaryCtxRetain(C.byref(context), 0) == 0
assert cu.cuCtxSetCurrent(context) == 0
"""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[LendingAgent]:
    """An agent that lends a GPU on which no training is."""
    path = tmp_path / "agent.sock"
    with LendingAgent(path, ignore_training=True, uuid=NULL_UUID) as lending:
        yield lending


def gated(tmp_path: Path) -> dict[str, str]:
    more = {"SFILL_ROLE": "gate", "SFILL_LOG": "0"}
    return environment(null_driver(), tmp_path / "agent.sock", more)


@pytest.mark.parametrize(
    "call",
    [
        "cu.cuGraphInstantiateWithFlags(C.byref(made), None, C.c_uint64(4))",
        "cu.cuImportExternalSemaphore(C.byref(made), None)",
        "cu.cuGetProcAddress_v2(b'cuLaunchKernel', C.byref(made), 99000, C.c_uint64(1), None)",
    ],
    ids=["device-launched graphs", "external semaphores", "a form of a later driver"],
)
def test_what_would_pass_by_the_gate_is_refused(
    agent: LendingAgent, tmp_path: Path, call: str
) -> None:
    assert python(f"{PRELUDE}\nprint({call})", gated(tmp_path)) in REFUSED


@pytest.mark.parametrize(
    "call",
    [
        "cu.cuModuleLoadData(C.byref(made), b'image')",
        "cu.cuMemAlloc_v2(C.byref(made), C.c_size_t(4096))",
        "cu.cuCtxCreate_v2(C.byref(made), 0, 0)",
        "cu.cuMemcpyHtoD_v2(C.c_uint64(8192), b'x', C.c_size_t(1))",
        "cu.cuMemsetD8_v2(C.c_uint64(8192), 0, C.c_size_t(1))",
        "cu.cuGraphLaunch(None, None)",
    ],
    ids=["module", "allocation", "context", "copy", "set", "graph"],
)
def test_every_step_of_a_fill_waits_for_the_gate(
    agent: LendingAgent, tmp_path: Path, call: str
) -> None:
    code = f"{PRELUDE}\nprint('ready', flush=True)\nsys.stdin.readline()\n{call}\nprint('done')"
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code],
        env=gated(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin and process.stdout
        assert process.stdout.readline() == "ready\n"
        agent.allow(Closed.OFF)
        process.stdin.write("go\n")
        process.stdin.flush()
        time.sleep(HELD_S)
        assert process.poll() is None
        agent.allow()
        assert process.stdout.readline() == "done\n"
        assert process.wait(10) == 0


def test_without_an_agent_nothing_is_launched(tmp_path: Path) -> None:
    code = f"""
import ctypes as C, os, threading, time
cu = C.CDLL("libcuda.so.1")
def work():
    context = C.c_void_p()
    cu.cuInit(0)
    cu.cuDevicePrimaryCtxRetain(C.byref(context), 0)
    cu.cuCtxSetCurrent(context)
    cu.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None)
threading.Thread(target=work, daemon=True).start()
time.sleep({HELD_S})
print(cu.null_calls(b"cuLaunchKernel"), flush=True)
os._exit(0)
"""
    assert python(code, gated(tmp_path) | {"SFILL_ATTACH_MS": "50"}) == 0
