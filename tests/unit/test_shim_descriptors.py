"""A program may close every descriptor it finds, ours too; what it opens then is left alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.fake_agent import FakeAgent
from tests.unit.lending_agent import LendingAgent
from tests.unit.shim_lab import environment, null_driver, python
from tests.unit.test_gate_refusals import NULL_UUID

CLOSES_ALL = """
import ctypes as C, json, os, socket, time
cu = C.CDLL("libcuda.so.1")
context = C.c_void_p()
assert cu.cuInit(0) == 0
assert cu.cuDevicePrimaryCtxRetain(C.byref(context), 0) == 0
assert cu.cuCtxSetCurrent(context) == 0
def launch():
    return cu.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None)
assert launch() == 0
time.sleep(0.1)
ours = [int(each) for each in os.listdir("/proc/self/fd") if int(each) > 2]
os.closerange(3, 1024)
"""
SOCKETS = """
pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(8)]
ends = [end for pair in pairs for end in pair]
for end in ends:
    end.send(b"gradient")
for _ in range(30):
    assert launch() == 0
    time.sleep(0.02)
child = os.fork()
if child == 0:
    os._exit(sum(not os.path.exists(f"/proc/self/fd/{end.fileno()}") for end in ends))
closed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
for end in ends:
    end.setblocking(False)
def rest(end):
    try:
        return end.recv(100).decode()
    except OSError as error:
        return repr(error)
print(json.dumps([len(set(ours) & {end.fileno() for end in ends}) > 0, closed,
                  [rest(end) for end in ends]]))
"""
FILES = """
import tempfile
files = [tempfile.TemporaryFile() for _ in range(16)]
for _ in range(30):
    assert launch() == 0
    time.sleep(0.06)  # the helper sleeps deeply meanwhile, and each launch wakes it
sizes = [os.fstat(each.fileno()).st_size for each in files]
print(json.dumps([len(set(ours) & {each.fileno() for each in files}) > 0, sizes]))
"""


@pytest.fixture
def lending(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "agent.sock"
    with LendingAgent(path, ignore_training=True, uuid=NULL_UUID):
        yield path


def test_a_training_that_closes_all_descriptors_keeps_what_it_opens_then(tmp_path: Path) -> None:
    with FakeAgent(tmp_path / "agent.sock") as agent:
        reused, closed, rest = python(
            CLOSES_ALL + SOCKETS, environment(null_driver(), agent.path, {"SFILL_LOG": "0"})
        )
    assert reused
    assert closed == 0
    assert rest == ["gradient"] * 16


@pytest.mark.parametrize(("opens", "expected"), [(SOCKETS, None), (FILES, [0] * 16)])
def test_a_fill_that_closes_all_descriptors_keeps_what_it_opens_then(
    lending: Path, opens: str, expected: list[int] | None
) -> None:
    more = {"SFILL_ROLE": "gate", "SFILL_LOG": "0"}
    reused, *found = python(CLOSES_ALL + opens, environment(null_driver(), lending, more))
    assert reused
    assert found == ([0, ["gradient"] * 16] if expected is None else [expected])


@pytest.mark.parametrize("path", ["/nowhere/agent.sock", ""])
def test_a_fill_that_finds_no_agent_says_where_it_looked(path: str) -> None:
    code = """
import os, subprocess, sys, time, json
inner = "import ctypes as C; cu = C.CDLL('libcuda.so.1'); cu.cuMemAlloc_v2(None, C.c_size_t(1))"
program = subprocess.Popen([sys.executable, "-c", inner], stderr=subprocess.PIPE, text=True)
line = program.stderr.readline()
program.kill()
print(json.dumps(line))
"""
    more = {"SFILL_ROLE": "gate", "SFILL_SOCKET": path, "SFILL_ATTACH_MS": "20"}
    line = python(code, environment(null_driver(), None, more))
    where = path or "/run/sfill/sfilld.sock"
    assert f"no answer from the agent at {where} within 20 ms: the gate is shut" in line


@pytest.mark.parametrize("level", ["3", "99", "-1", "all"])
def test_a_level_of_the_log_that_is_none_is_told_once(level: str, tmp_path: Path) -> None:
    code = """
import json, subprocess, sys
inner = "import ctypes as C; cu = C.CDLL('libcuda.so.1'); [cu.cuInit(0) for _ in range(9)]"
done = subprocess.run([sys.executable, "-c", inner], capture_output=True, text=True)
print(json.dumps([done.returncode, done.stderr.splitlines()]))
"""
    code_, lines = python(
        code, environment(null_driver(), tmp_path / "a", {"SFILL_LOG": level, "SFILL_ROLE": "gate"})
    )
    assert code_ == 0
    assert [f"SFILL_LOG={level} is not 0, 1 or 2: taken as 1" in each for each in lines].count(
        True
    ) == 1
