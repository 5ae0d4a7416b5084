"""Whatever is wrong with us, a training runs as it does without us, and starts as quickly."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.board import LAYOUT_VERSION
from tests.unit.fake_agent import FakeAgent
from tests.unit.shim_lab import environment, null_driver, python

PROGRAM = """
import ctypes as C, sys
cu = C.CDLL("libcuda.so.1")
context = C.c_void_p()
assert cu.cuInit(0) == 0
assert cu.cuDevicePrimaryCtxRetain(C.byref(context), 0) == 0
assert cu.cuCtxSetCurrent(context) == 0
for _ in range(100):
    assert cu.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
assert cu.cuCtxSynchronize() == 0
print("trained", cu.null_calls(b"cuLaunchKernel"))
sys.exit(3)
"""
LATER_AT_MOST_S = 0.1


def outcome(env: Mapping[str, str]) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=dict(env), capture_output=True, text=True, timeout=30
    )
    return done.returncode, done.stdout, done.stderr


def quickest(env: Mapping[str, str], times: int = 5) -> float:
    took = []
    for _ in range(times):
        begin = time.monotonic()
        outcome(env)
        took.append(time.monotonic() - begin)
    return min(took)


def without_us() -> dict[str, str]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("SFILL_", "LD_"))}
    return plain | {"LD_LIBRARY_PATH": str(null_driver())}


def check_unnoticed(under_us: Mapping[str, str]) -> None:
    env = {k: v for k, v in under_us.items() if k != "SFILL_ATTACH_MS"}  # as by default
    assert outcome(env) == outcome(without_us()) == (3, "trained 100\n", "")
    assert quickest(env) - quickest(without_us()) <= LATER_AT_MOST_S


def test_no_agent(tmp_path: Path) -> None:
    check_unnoticed(environment(null_driver(), tmp_path / "nobody.sock"))


def test_an_agent_that_accepts_and_never_answers(tmp_path: Path) -> None:
    with FakeAgent(tmp_path / "agent.sock", answer="silent") as agent:
        check_unnoticed(environment(null_driver(), agent.path))
        assert agent.messages[0].verb == "attach"


def test_an_agent_that_never_accepts(tmp_path: Path) -> None:
    """Its queue of callers is full, so that connecting itself has to wait."""
    path = tmp_path / "agent.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen(0)
    callers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    for caller in callers:
        caller.setblocking(False)
        caller.connect_ex(str(path))
    check_unnoticed(environment(null_driver(), path))


def test_an_agent_that_hangs_up_at_once(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with FakeAgent(path, answer="hang up") as agent:
        check_unnoticed(environment(null_driver(), agent.path))


def test_an_agent_that_has_no_part_for_the_process(tmp_path: Path) -> None:
    with FakeAgent(tmp_path / "agent.sock", answer="aside") as agent:
        check_unnoticed(environment(null_driver(), agent.path))


@pytest.mark.parametrize("path", ("/", "relative/nowhere", "/x" * 80, ""))
def test_a_socket_path_that_cannot_be(path: str) -> None:
    env = environment(null_driver(), None) | {"SFILL_SOCKET": path, "SFILL_LOG": "0"}
    check_unnoticed(env)


def test_a_library_path_that_leads_nowhere() -> None:
    """The loader says so on standard error, and the program runs."""
    env = without_us() | {"LD_PRELOAD": "/nowhere/libspecinf.so"}
    assert outcome(env)[:2] == outcome(without_us())[:2]


def test_a_board_of_another_version(tmp_path: Path) -> None:
    with FakeAgent(tmp_path / "agent.sock", version=LAYOUT_VERSION + 1) as agent:
        env = environment(null_driver(), agent.path) | {"SFILL_LOG": "0"}
        check_unnoticed(env)
        assert agent.board.ready == 0


def test_the_log_says_why_a_process_is_left_alone(tmp_path: Path) -> None:
    env = environment(null_driver(), tmp_path / "nobody.sock", {"SFILL_LOG": "2"})
    del env["SFILL_ATTACH_MS"]
    said = outcome(env)[2]
    assert f"no answer from the agent at {tmp_path}/nobody.sock within 50 ms" in said


def test_the_agent_is_asked_once_and_not_again(tmp_path: Path) -> None:
    code = """
import ctypes as C, time
cu = C.CDLL("libcuda.so.1")
begin = time.monotonic()
for _ in range(50): cu.cuInit(0)
print(time.monotonic() - begin)
"""
    with FakeAgent(tmp_path / "agent.sock", answer="silent") as agent:
        env = environment(null_driver(), agent.path, {"SFILL_ATTACH_MS": "60"})
        assert python(code, env) < 0.3
        assert len(agent.messages) == 1
