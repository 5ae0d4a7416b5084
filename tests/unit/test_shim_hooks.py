"""Every way into the driver passes a hook, and where there is no driver nobody notices us."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.board import Closed, Shut
from tests.unit.fake_agent import FakeAgent
from tests.unit.lending_agent import LendingAgent, wait_until
from tests.unit.shim_lab import (
    SHIM,
    base_of,
    compiled,
    environment,
    hooks,
    interposer,
    null_driver,
    python,
)

PRELUDE = """
import ctypes as C, json
cu = C.CDLL("libcuda.so.1")
context = C.c_void_p()
assert cu.cuInit(0) == 0
assert cu.cuDevicePrimaryCtxRetain(C.byref(context), 0) == 0
assert cu.cuCtxSetCurrent(context) == 0
"""
CUDA_HEADERS = [
    Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include" / "cuda.h",
    *sorted(Path("/usr/local").glob("cuda-*/include/cuda.h")),
]


def exported() -> set[str]:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(interposer())], capture_output=True, text=True
    )
    return {line.split()[-1] for line in listing.stdout.splitlines()}


def counted(agent: FakeAgent) -> int:
    """Operations that the monitor has seen begin and end."""
    board = agent.board
    slots = [board.slots[i] for i in range(board.slots_used)]
    assert all(slot.before == slot.after for slot in slots)
    return sum(slot.before for slot in slots)


def test_every_hook_of_the_table_is_exported_and_nothing_else_is() -> None:
    own = {"dlsym", "dlvsym", "specinf_lend", "specinf_role"}
    own |= {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"}
    assert exported() == {hook.symbol for hook in hooks()} | own


def test_every_hook_says_why() -> None:
    entries = re.findall(r"^O\w+_(?:PAIR|ONE)\(.*?\)\n(?=O|\n|/\*|\Z)", table(), re.M | re.S)
    assert len(entries) > 100
    assert [entry for entry in entries if not re.search(r'"[^"]{5,}"\)\s*$', entry)] == []


def table() -> str:
    return (SHIM / "hook_table.def").read_text()


def exceptions() -> dict[str, str]:
    lines = (SHIM / "hook_exceptions.txt").read_text().splitlines()
    pairs = [line.split(":", 1) for line in lines if line and not line.startswith("#")]
    return {name: reason.strip() for names, reason in pairs for name in names.split()}


def test_every_function_of_the_driver_is_hooked_or_excepted_with_a_reason() -> None:
    """Every one, not only those that look like launches: what a newer CUDA adds fails here."""
    header = next((path for path in CUDA_HEADERS if path.exists()), None)
    if not header:
        pytest.skip("no cuda.h on this machine")
    text = subprocess.run(
        ["gcc", "-E", "-P", "-x", "c", str(header)], capture_output=True, text=True
    )
    names = set(re.findall(r"CUresult\s+(cu[A-Z]\w+)\s*\([^;]*\)\s*;", text.stdout))
    assert len(names) > 300
    hooked = {hook.base for hook in hooks()}
    assert {base_of(name) for name in names} - hooked - set(exceptions()) == set()
    assert hooked & set(exceptions()) == set()
    assert all(exceptions().values())


def test_nothing_is_excepted_that_the_gate_would_refuse_as_an_unknown_launch() -> None:
    looks = re.compile(r"^cu(Launch|Memcpy|Memset|GraphLaunch|MemPrefetch)|Async(?!Notification)")
    assert [name for name in exceptions() if looks.search(name)] == []


TOMORROW = """
import ctypes as C, json
cu = C.CDLL("libcuda.so.1")
assert cu.cuInit(0) == 0
found = C.c_void_p()
asked = cu.cuGetProcAddress_v2(b"cuLaunchTomorrow", C.byref(found), 13000, C.c_uint64(1), None)
print(json.dumps([asked, hasattr(cu, "cuLaunchTomorrow")]))
"""


def test_a_launch_call_that_the_table_lacks_is_not_to_be_had_in_a_fill(tmp_path: Path) -> None:
    not_found = 500
    with LendingAgent(tmp_path / "agent.sock"):
        env = environment(null_driver(), tmp_path / "agent.sock", {"SFILL_ROLE": "gate"})
        assert python(TOMORROW, env) == [not_found, False]


def test_to_look_up_a_launch_call_that_the_table_lacks_shuts_no_board(agent: FakeAgent) -> None:
    """CUDA's runtime looks up all that it knows, and calls little of it."""
    with agent:
        env = environment(null_driver(), agent.path, {"SFILL_LOG": "0"})
        assert python(TOMORROW + "assert cu.cuCtxSynchronize() == 0", env) == [0, True]
        assert agent.board.head.shut == Shut.NO


CALLED_TOMORROW = """
import ctypes as C, json
cu = C.CDLL("libcuda.so.1")
assert cu.cuInit(0) == 0
def looked_up(name):
    found = C.c_void_p()
    assert cu.cuGetProcAddress_v2(name, C.byref(found), 13000, C.c_uint64(1), None) == 0
    return found.value
copy = C.CFUNCTYPE(C.c_int, *[C.c_int] * 8, C.c_double, C.c_double)
copies = [copy(looked_up(b"cuMemcpyTomorrowAsync")), cu.cuMemcpyTomorrowAsync]
copies[1].argtypes = [C.c_int] * 8 + [C.c_double] * 2
launch = C.CFUNCTYPE(C.c_int)(looked_up(b"cuLaunchTomorrow"))
answers = [call(1, 2, 3, 4, 5, 6, 7, 8, 1.5, 2.5) for call in copies for _ in range(2)]
print(json.dumps([answers, launch(), cu.newer_calls()]))
"""


def test_a_launch_call_that_the_table_lacks_shuts_a_trainings_board_when_it_is_called(
    agent: FakeAgent,
) -> None:
    """And gets its arguments, in registers and on the stack, and gives its answer."""
    with agent:
        env = environment(null_driver(), agent.path, {"SFILL_LOG": "0"})
        weighted = sum(i * i for i in range(1, 9)) + 150 + 2500
        assert python(CALLED_TOMORROW, env) == [[weighted] * 4, 0, 5]
        assert agent.board.head.shut == Shut.UNSUPPORTED


def test_the_table_knows_every_form_of_the_functions_it_hooks() -> None:
    """cuGetProcAddress chooses a form by CUDA version; a form that is missing would go unseen."""
    header = next(
        (path.with_name("cudaTypedefs.h") for path in CUDA_HEADERS if path.exists()), None
    )
    if not header or not header.exists():
        pytest.skip("no cudaTypedefs.h on this machine")
    named = re.findall(r"PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)", header.read_text())
    hooked = {hook.base for hook in hooks()}
    forms = {(base, int(since), bool(suffix)) for base, since, suffix in named if base in hooked}
    assert len(forms) > 200
    assert forms - {(hook.base, hook.since, hook.per_thread) for hook in hooks()} == set()


@pytest.fixture
def agent(tmp_path: Path) -> FakeAgent:
    return FakeAgent(tmp_path / "agent.sock")


OPERATIONS = [
    hook.symbol
    for hook in hooks()
    if hook.operation and not hook.setup and "Event" not in hook.base
]


def test_every_operation_is_seen_when_looked_up_by_dlsym(agent: FakeAgent) -> None:
    code = (
        PRELUDE
        + f"""
for name in {OPERATIONS!r}:
    assert getattr(cu, name)(*[C.c_void_p()] * 12) == 0, name
cu.cuCtxSynchronize()
print(json.dumps([cu.null_calls(name.encode()) for name in {OPERATIONS!r}]))
"""
    )
    with agent:
        calls = python(code, environment(null_driver(), agent.path))
        writes = OPERATIONS.index("cuStreamWriteValue64_v2")
        assert all(calls[:writes] + calls[writes + 1 :])
        assert counted(agent) == len(OPERATIONS)
        assert agent.board.head.shut == 0


WORK = [
    hook.symbol
    for hook in hooks()
    if hook.operation
    and not re.match("cuStreamWait|cuWaitExternal|cuLaunchHostFunc|cuStreamAddCallback", hook.base)
    and "Event" not in hook.base
] + [
    name + suffix
    for name in ("cuLaunchKernel", "cuLaunchCooperativeKernel")
    for suffix in ("", "_ptsz")
]
HELD = """
import sys, threading, time
names = {WORK}
calls = lambda: [cu.null_calls(name.encode()) for name in names]
before = calls()
def call(name):
    cu.cuCtxSetCurrent(context)
    getattr(cu, name)(*[C.c_void_p()] * 12)
threads = [threading.Thread(target=call, args=(name,)) for name in names]
for thread in threads:
    thread.start()
time.sleep(0.5)
ran = [name for name, count, then in zip(names, calls(), before) if count != then]
print(json.dumps(ran), flush=True)
sys.stdin.readline()
for thread in threads:
    thread.join()
print(json.dumps([name for name, count in zip(names, calls()) if not count]))
"""


def test_no_operation_passes_a_shut_gate_and_every_one_an_open_gate(tmp_path: Path) -> None:
    prelude = PRELUDE.replace("assert cu.cuCtxSet", "sys.stdin.readline()\nassert cu.cuCtxSet")
    code = "import sys\n" + prelude + HELD.replace("{WORK}", repr(WORK))
    path = tmp_path / "agent.sock"
    uuid = "GPU-01010101-0101-0101-0101-010101010101"
    with LendingAgent(path, ignore_training=True, uuid=uuid) as agent:
        program = subprocess.Popen(
            [sys.executable, "-u", "-c", code],
            env=environment(null_driver(), path, {"SFILL_ROLE": "gate"}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert program.stdin and program.stdout
        try:
            wait_until("a gate", lambda: bool(agent.fills))
            time.sleep(0.3)  # the context is made, and what follows waits for us
            agent.allow(Closed.OFF)
            program.stdin.write("\n")
            program.stdin.flush()
            assert json.loads(program.stdout.readline()) == []
            agent.allow()
            left, _ = program.communicate("\n", timeout=30)
            assert json.loads(left) == []
            assert program.returncode == 0
        finally:
            program.kill()


def test_every_operation_is_seen_when_looked_up_by_cugetprocaddress(agent: FakeAgent) -> None:
    wanted = [
        (hook.base, hook.since if not hook.per_thread else max(hook.since, 7000), hook.per_thread)
        for hook in hooks()
        if hook.symbol in OPERATIONS
    ]
    code = (
        PRELUDE
        + f"""
seen = []
for base, since, per_thread in {wanted!r}:
    found = C.c_void_p()
    flags = C.c_uint64(2 if per_thread else 1)
    assert cu.cuGetProcAddress_v2(base.encode(), C.byref(found), since, flags, None) == 0, base
    assert C.CFUNCTYPE(C.c_int, *[C.c_void_p] * 12)(found.value)(*[None] * 12) == 0
print(json.dumps([cu.null_calls(name.encode()) for name in {OPERATIONS!r}]))
"""
    )
    with agent:
        calls = python(code, environment(null_driver(), agent.path))
        assert counted(agent) == len(wanted)
        # Each was the function of just that ABI and variant.
        ours = OPERATIONS.index("cuStreamWriteValue64_v2")
        assert [n for i, n in enumerate(calls) if i != ours] == [1] * (len(OPERATIONS) - 1)


def test_cugetprocaddress_keeps_the_stream_variant_that_was_asked_for(agent: FakeAgent) -> None:
    code = (
        PRELUDE
        + """
def launch(getter, flags, *more):
    found = C.c_void_p()
    assert getter(b"cuLaunchKernel", C.byref(found), 12000, C.c_uint64(flags), *more) == 0
    C.CFUNCTYPE(C.c_int, *[C.c_void_p] * 11)(found.value)(*[None] * 11)
launch(cu.cuGetProcAddress_v2, 0, None)
launch(cu.cuGetProcAddress_v2, 1, None)
launch(cu.cuGetProcAddress, 1)
launch(cu.cuGetProcAddress_v2, 2, None)
launch(cu.cuGetProcAddress_v2_ptsz, 0, None)
print(json.dumps([cu.null_calls(n) for n in (b"cuLaunchKernel", b"cuLaunchKernel_ptsz")]))
"""
    )
    with agent:
        assert python(code, environment(null_driver(), agent.path)) == [3, 2]
        board = agent.board
        assert sorted(board.slots[i].before for i in range(board.slots_used)) == [2, 3]


def test_a_form_newer_than_the_table_is_not_wrapped_and_shuts_the_board(agent: FakeAgent) -> None:
    code = (
        PRELUDE
        + """
found = C.c_void_p()
result = cu.cuGetProcAddress_v2(b"cuLaunchKernel", C.byref(found), 99000, C.c_uint64(1), None)
C.CFUNCTYPE(C.c_int, *[C.c_void_p] * 11)(found.value)(*[None] * 11)
print(json.dumps([result, cu.null_calls(b"cuLaunchKernel"), cu.newer_calls()]))
"""
    )
    with agent:
        env = environment(null_driver(), agent.path, {"SFILL_LOG": "0"})
        assert python(code, env) == [0, 0, 1]
        assert agent.board.head.shut == Shut.UNSUPPORTED


def test_launches_of_a_program_linked_against_the_driver_are_seen(agent: FakeAgent) -> None:
    program = compiled("direct_program", f"-L{null_driver()}", "-lcuda")
    with agent:
        env = environment(null_driver(), agent.path)
        done = subprocess.run([program], env=env, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "7 1\n")
        assert counted(agent) == 8


def test_launch_with_attributes_is_seen(agent: FakeAgent) -> None:
    code = (
        PRELUDE
        + """
config = (C.c_uint64 * 8)(1 + (1 << 32), 1 + (1 << 32), 1 + (1 << 32))
for name in ("cuLaunchKernelEx", "cuLaunchKernelEx_ptsz"):
    assert getattr(cu, name)(config, None, None, None) == 0
print(cu.null_calls(b"cuLaunchKernelEx"))
"""
    )
    with agent:
        assert python(code, environment(null_driver(), agent.path)) == 1
        assert counted(agent) == 2


def test_the_drivers_functions_cannot_be_found_where_there_is_no_driver() -> None:
    code = """
import ctypes as C, json
found = []
for name in ("cuInit", "cuLaunchKernel", "cuMemAlloc_v2"):
    found.append(hasattr(C.CDLL(None), name))
libc = C.CDLL(None)
libc.dlsym.restype = C.c_void_p
found += [libc.dlsym(None, b"cuInit"), libc.dlsym(C.c_void_p(-1), b"cuInit")]
try:
    C.CDLL("libcuda.so.1")
    found.append("a driver")
except OSError as error:
    found.append(str(error))
print(json.dumps(found))
"""
    found = python(code, environment(None, None))
    assert found[:5] == [False, False, False, None, None]
    assert "libcuda.so.1: cannot open shared object file" in found[5]


def test_the_drivers_functions_can_be_found_once_it_is_loaded_for_all(agent: FakeAgent) -> None:
    code = """
import ctypes as C, json
libc = C.CDLL(None)
libc.dlsym.restype = C.c_void_p
absent = libc.dlsym(None, b"cuInit")
C.CDLL("libcuda.so.1", C.RTLD_GLOBAL)
print(json.dumps([absent, bool(libc.dlsym(None, b"cuInit")), hasattr(libc, "cuInit")]))
"""
    assert python(code, environment(null_driver(), None)) == [None, True, True]


def test_a_library_with_a_driver_of_its_own_finds_the_next_function() -> None:
    library = compiled("local_user", "-shared", "-fPIC", f"-L{null_driver()}", "-lcuda", "-ldl")
    code = f"import ctypes as C; print(C.CDLL({str(library)!r}).next_is_found())"
    assert python(code, environment(null_driver(), None)) == 1


def test_rtld_next_keeps_its_meaning_for_other_preloaded_libraries() -> None:
    wrapper = compiled("next_wrapper", "-shared", "-fPIC", "-ldl")
    for order in (f"{interposer()}:{wrapper}", f"{wrapper}:{interposer()}"):
        env = environment(None, None) | {"LD_PRELOAD": order}
        code = "import os; print(os.getppid() - 1000000000)"
        assert python(code, env) == os.getpid()


@pytest.mark.parametrize("command", (["echo", "hello"], [sys.executable, "-c", "print(6 * 7)"]))
def test_a_program_without_cuda_runs_as_before(command: list[str]) -> None:
    plain = subprocess.run(command, capture_output=True)
    ours = subprocess.run(command, capture_output=True, env=environment(None, None))
    assert (ours.returncode, ours.stdout, ours.stderr) == (0, plain.stdout, plain.stderr)


def test_operations_of_a_captured_stream_are_neither_counted_nor_marked(agent: FakeAgent) -> None:
    code = (
        PRELUDE
        + """
stream, other, graph = C.c_void_p(), C.c_void_p(), C.c_void_p()
cu.cuStreamCreate(C.byref(stream), 1), cu.cuStreamCreate(C.byref(other), 1)
launch = lambda s: cu.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, s, None, None)
launch(stream)
assert cu.cuStreamBeginCapture_v2(stream, 0) == 0
for _ in range(1000):
    assert launch(stream) == 0
launch(other)
assert cu.cuStreamEndCapture(stream, C.byref(graph)) == 0
launch(stream)
cu.cuCtxSynchronize()
print(0)
"""
    )
    with agent:
        python(code, environment(null_driver(), agent.path))
        assert counted(agent) == 3
        board = agent.board
        assert board.head.shut == 0
        drained = [board.slots[i].done >> 2 for i in range(board.slots_used)]
        assert sorted(drained) == [1, 2]
