"""The monitor's rules, one by one, on a driver that does nothing (GATE.md)."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.board import Shut, StreamSlot
from tests.unit.fake_agent import FakeAgent
from tests.unit.shim_lab import environment, null_driver, python

PRELUDE = """
import ctypes as C, json, os, sys, threading, time
cu = C.CDLL("libcuda.so.1")
specinf = C.CDLL(None)
context = C.c_void_p()
def start():
    assert cu.cuInit(0) == 0
    assert cu.cuDevicePrimaryCtxRetain(C.byref(context), 0) == 0
    assert cu.cuCtxSetCurrent(context) == 0
def launch(stream=None, variant=""):
    call = getattr(cu, "cuLaunchKernel" + variant)
    return call(None, 1, 1, 1, 1, 1, 1, 0, stream, None, None)
def stream(flags):
    made = C.c_void_p()
    assert cu.cuStreamCreate(C.byref(made), flags) == 0
    return made
start()
"""
BLOCKING, NON_BLOCKING = 0, 1


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[FakeAgent]:
    with FakeAgent(tmp_path / "agent.sock") as fake:
        yield fake


def run(agent: FakeAgent, code: str, **extra: str) -> object:
    return python(PRELUDE + code, environment(null_driver(), agent.path, extra))


def slots(agent: FakeAgent) -> list[StreamSlot]:
    board = agent.board
    return [board.slots[i] for i in range(board.slots_used)]


def test_a_quiet_stream_is_marked_by_the_helper(agent: FakeAgent) -> None:
    run(agent, "s = stream(1); launch(s); launch(s); time.sleep(0.1); os._exit(print(1) or 0)")
    (slot,) = slots(agent)
    assert (slot.before, slot.after, slot.marked, slot.done >> 2) == (2, 2, 2, 2)
    assert agent.board.head.shut == Shut.NO


def test_launches_are_counted_on_when_streams_end(agent: FakeAgent) -> None:
    code = """
for _ in range(10):
    s = stream(1)
    for _ in range(3): launch(s)
    assert cu.cuStreamSynchronize(s) == 0
    assert cu.cuStreamDestroy_v2(s) == 0
    time.sleep(0.01)
launch(stream(1))
os._exit(print(1) or 0)
"""
    run(agent, code)
    bubbles = [agent.board.bubbles[i] for i in range(agent.board.bubble_head)]
    counted = [each.launches for each in bubbles if each.end_ns - each.begin_ns > 5_000_000]
    assert counted == [3 * n + 1 for n in range(1, 11)]


def test_a_busy_host_is_marked_in_line_every_some_hundred_launches(agent: FakeAgent) -> None:
    code = """
s = stream(1)
for _ in range(10000): launch(s)
print(cu.null_calls(b"cuStreamWriteValue64_v2"))
os._exit(0)
"""
    markers = run(agent, code)
    assert isinstance(markers, int)
    assert 30 <= markers <= 200


def test_nothing_is_marked_while_a_launch_is_under_way(agent: FakeAgent) -> None:
    """Counted but not yet queued: a marker now would claim that it is done."""
    code = """
s = stream(1)
launch(s)
cu.cuStreamSynchronize(s)
def work():
    cu.cuCtxSetCurrent(context)
    C.CDLL(None).setenv(b"NULL_SLOW", b"launch", 1)
    launch(s)
before = cu.null_calls(b"cuStreamWriteValue64_v2")
t = threading.Thread(target=work); t.start()
time.sleep(0.1)
cu.cuStreamSynchronize(s)
cu.cuCtxSynchronize()
meanwhile = cu.null_calls(b"cuStreamWriteValue64_v2") - before
t.join()
cu.cuStreamSynchronize(s)
print(json.dumps([meanwhile, cu.null_calls(b"cuStreamWriteValue64_v2") - before]))
"""
    assert run(agent, code) == [0, 1]
    (slot,) = slots(agent)
    assert (slot.before, slot.done >> 2) == (2, 2)


def test_a_launch_under_way_is_counted_and_its_stream_busy(agent: FakeAgent) -> None:
    """Whoever looks in the middle of the call must not find idle."""
    code = """
s = stream(1)
launch(s); cu.cuStreamSynchronize(s)
print("ready", flush=True)
C.CDLL(None).setenv(b"NULL_SLOW", b"launch", 1)
launch(s)
"""
    env = environment(null_driver(), agent.path)
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code], env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        time.sleep(0.1)  # the call takes 0.3 s
        section = agent.board.gpus[0]
        (slot,) = slots(agent)
        assert (slot.before, slot.after, section.bubble_seq % 2) == (2, 1, 0)
        assert process.wait(10) == 0


def test_a_handle_that_is_used_again_is_another_stream(agent: FakeAgent) -> None:
    code = """
s = stream(1)
launch(s)
assert cu.cuStreamDestroy_v2(s) == 0
cu.null_rename(s)                    # the driver gives the same handle to a new stream
launch(s)
assert cu.cuStreamSynchronize(s) == 0
time.sleep(0.1)
os._exit(print(1) or 0)
"""
    run(agent, code)
    assert agent.board.head.shut == Shut.NO
    assert slots(agent)[-1].stream_id >> 60 == 1


def test_the_legacy_stream_is_left_to_its_own_thread_once_there_is_a_blocking_stream(
    agent: FakeAgent,
) -> None:
    code = """
other = stream(0)
launch()
time.sleep(0.1)
late = cu.null_calls(b"cuStreamWriteValue64_v2")
launch(other)
time.sleep(0.1)
cu.cuStreamSynchronize(other)
other_only = cu.null_calls(b"cuStreamWriteValue64_v2")
cu.cuStreamSynchronize(None)
print(json.dumps([late, other_only, cu.null_calls(b"cuStreamWriteValue64_v2")]))
"""
    assert run(agent, code) == [0, 1, 2]
    assert [slot.done >> 2 for slot in slots(agent)] == [1, 1]


def test_the_legacy_stream_is_marked_by_the_helper_while_no_stream_blocks(
    agent: FakeAgent,
) -> None:
    code = """
other = stream(1); launch(other); launch()
gone = stream(0); cu.cuStreamDestroy_v2(gone)
time.sleep(0.1); os._exit(print(1) or 0)
"""
    run(agent, code)
    assert [slot.done >> 2 for slot in slots(agent)] == [1, 1]


def test_a_threads_own_default_stream_is_marked_by_that_thread_alone(agent: FakeAgent) -> None:
    code = """
seen = []
def work():
    cu.cuCtxSetCurrent(context)
    launch(C.c_void_p(2))
    time.sleep(0.1)
    seen.append(cu.null_calls(b"cuStreamWriteValue64_v2"))
    cu.cuStreamSynchronize(C.c_void_p(2))
    seen.append(cu.null_calls(b"cuStreamWriteValue64_v2"))
threads = [threading.Thread(target=work) for _ in range(2)]
for t in threads: t.start(); t.join()
print(json.dumps(seen))
"""
    assert run(agent, code) == [0, 1, 1, 2]
    assert sum(slot.before for slot in slots(agent)) == 2
    assert sum(slot.done >> 2 for slot in slots(agent)) == 2


def test_a_context_synchronisation_proves_other_threads_streams_done(agent: FakeAgent) -> None:
    code = """
def work():
    cu.cuCtxSetCurrent(context)
    launch(None, "_ptsz")
t = threading.Thread(target=work); t.start(); t.join()
cu.cuCtxSynchronize()
print(0)
"""
    run(agent, code)
    (slot,) = slots(agent)
    assert (slot.before, slot.done >> 2) == (1, 1)
    assert agent.board.head.shut == Shut.NO


def test_streams_that_come_and_go_do_not_use_up_the_board(agent: FakeAgent) -> None:
    code = """
for _ in range(3000):
    s = stream(1); launch(s); cu.cuStreamDestroy_v2(s)
time.sleep(0.05)
print(0)
"""
    run(agent, code)
    assert agent.board.head.shut == Shut.NO
    assert agent.board.slots_used < 512


def test_default_streams_of_threads_that_end_do_not_use_up_the_board(agent: FakeAgent) -> None:
    code = """
def work():
    cu.cuCtxSetCurrent(context)
    launch(C.c_void_p(2))
    cu.cuStreamSynchronize(C.c_void_p(2))
for _ in range(800):
    t = threading.Thread(target=work); t.start(); t.join()
launch(); time.sleep(0.1)
os._exit(print(1) or 0)
"""
    run(agent, code)
    assert agent.board.head.shut == Shut.NO
    assert agent.board.slots_used < 512
    # No blocking stream is left, so the helper may mark the legacy stream.
    assert sum(slot.before for slot in slots(agent)) == sum(slot.done >> 2 for slot in slots(agent))


def test_more_streams_than_a_board_holds_shut_it(agent: FakeAgent) -> None:
    run(agent, "for s in [stream(1) for _ in range(600)]: launch(s)\nprint(0)")
    assert agent.board.head.shut == Shut.STREAMS


def test_a_marker_that_fails_shuts_the_board_for_good(agent: FakeAgent) -> None:
    run(agent, "s = stream(1); launch(s); time.sleep(0.1); print(launch(s))", NULL_FAIL="write")
    assert agent.board.head.shut == Shut.MARKER


def test_a_board_that_cannot_be_registered_is_shut(agent: FakeAgent) -> None:
    assert run(agent, "print(launch())", NULL_FAIL="register") == 0
    assert agent.board.head.shut == Shut.UNSUPPORTED


@pytest.mark.parametrize("lacking", ["mig", "memops"])
def test_gpus_that_cannot_be_followed_shut_the_board(agent: FakeAgent, lacking: str) -> None:
    assert run(agent, "print(launch())", NULL_FAIL=lacking, SFILL_LOG="0") == 0
    assert agent.board.head.shut == Shut.UNSUPPORTED


def test_the_board_is_registered_again_with_a_new_context(agent: FakeAgent) -> None:
    code = """
launch(); cu.cuCtxSynchronize()
first = cu.null_registered()
assert cu.cuDevicePrimaryCtxRelease_v2(0) == 0
start()
launch(); cu.cuCtxSynchronize()
print(json.dumps([first, cu.null_registered()]))
"""
    assert run(agent, code) == [1, 2]


def test_the_board_is_not_registered_during_a_capture(agent: FakeAgent) -> None:
    code = """
s, graph = stream(1), C.c_void_p()
assert cu.cuDevicePrimaryCtxRelease_v2(0) == 0
assert cu.cuStreamBeginCapture_v2(s, 0) == 0
start()
launch(stream(1))
meanwhile = cu.null_registered()
assert cu.cuStreamEndCapture(s, C.byref(graph)) == 0
launch(stream(1)); cu.cuCtxSynchronize()
print(json.dumps([meanwhile, cu.null_registered()]))
"""
    assert run(agent, code) == [1, 2]
    assert agent.board.head.shut == Shut.NO


def test_the_helper_leaves_all_signals_to_the_program(agent: FakeAgent) -> None:
    code = """
import glob, time
launch()
found, until = None, time.monotonic() + 10
while found is None and time.monotonic() < until:  # the thread names itself
    for path in glob.glob("/proc/self/task/*/status"):
        lines = dict(line.split(":", 1) for line in open(path).read().splitlines())
        if lines["Name"].strip() == "specinf-mon":
            found = int(lines["SigBlk"], 16)
print(found)
"""
    blocked = run(agent, code)
    assert isinstance(blocked, int)
    usual = [signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD]
    assert [blocked >> number - 1 & 1 for number in usual] == [1] * len(usual)


def test_a_child_has_neither_the_board_nor_the_agents_connection(agent: FakeAgent) -> None:
    code = """
import subprocess
launch(); cu.cuCtxSynchronize()
mine = open("/proc/self/maps").read().count("memfd:")
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, b"%d" % open("/proc/self/maps").read().count("memfd:"))
    os._exit(0)
os.wait()
child = int(os.read(reader, 9))
listing = "ls -l /proc/self/fd | grep -cE 'socket:|memfd:' || true"
plain = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
opened = subprocess.run(["sh", "-c", listing], env=plain, close_fds=False,
                        capture_output=True, text=True)
print(json.dumps([mine > 0, child, int(opened.stdout)]))
"""
    assert run(agent, code) == [True, 0, 0]


def test_streams_end_with_their_context_and_a_new_one_is_followed(agent: FakeAgent) -> None:
    code = """
launch(); s = stream(1); launch(s)
cu.cuCtxSynchronize()
assert cu.cuDevicePrimaryCtxRelease_v2(0) == 0
start()
launch()
cu.cuCtxSynchronize()
print(0)
"""
    run(agent, code)
    live = [slot for slot in slots(agent) if slot.state]
    assert [slot.before - (slot.done >> 2) for slot in live] == [0]
    assert agent.board.head.shut == Shut.NO


def test_a_primary_context_that_others_hold_lives_on(agent: FakeAgent) -> None:
    code = """
start()
launch()
assert cu.cuDevicePrimaryCtxRelease_v2(0) == 0
launch()
cu.cuCtxSynchronize()
print(0)
"""
    run(agent, code)
    (slot,) = slots(agent)
    assert slot.before == slot.after == slot.done >> 2 >= 2
    assert agent.board.gpus[0].bubble_seq % 2 == 1


def test_no_marker_gets_into_a_graph(agent: FakeAgent) -> None:
    code = """
s, busy = stream(1), stream(1)
stop = []
def work():
    cu.cuCtxSetCurrent(context)
    while not stop:
        launch(busy); time.sleep(0.0002)
t = threading.Thread(target=work); t.start()
graph = C.c_void_p()
for _ in range(100):
    launch(s)
    assert cu.cuStreamBeginCapture_v2(s, 0) == 0
    time.sleep(0.001)
    assert cu.cuStreamEndCapture(s, C.byref(graph)) == 0
stop.append(1); t.join(); cu.cuCtxSynchronize()
print(0)
"""
    run(agent, code)
    assert agent.board.head.shut == Shut.NO
    assert sum(slot.before for slot in slots(agent)) > 150


def test_the_gpu_notes_its_return_to_training_while_a_fill_is_present(agent: FakeAgent) -> None:
    code = """
s = stream(1); launch(s); cu.cuStreamSynchronize(s)
time.sleep(0.1)
launch(s); cu.cuStreamSynchronize(s)
print(0)
"""
    agent.fill_present = True
    run(agent, code)
    section = agent.board.gpus[0]
    assert section.resume_seq > 0
    assert section.resumed_seq == section.resume_seq
    assert section.resume_launch_ns > section.bubble_begin_ns - 10**10
    assert (
        section.resume_launch_ns
        <= section.resume_mark_ns
        < section.resume_call_ns
        < section.resume_issued_ns
    )


def test_a_training_may_pause_lending(agent: FakeAgent) -> None:
    code = """
before = specinf.specinf_role()
print(json.dumps([before, specinf.specinf_lend(0), specinf.specinf_lend(0)]))
"""
    assert run(agent, code) == [1, 1, 0]
    assert agent.board.lend == 0


def test_a_forked_child_is_left_alone(agent: FakeAgent) -> None:
    code = """
launch(); cu.cuCtxSynchronize()
child = os.fork()
if child == 0:
    result = launch()                    # the driver's to refuse, not ours to crash in
    os._exit(result + 10 * specinf.specinf_role())
status = os.waitpid(child, 0)[1]
launch(); cu.cuCtxSynchronize()
print(json.dumps([status, specinf.specinf_role()]))
"""
    assert run(agent, code) == [0, 1]
    assert sum(slot.before for slot in slots(agent)) == 2


def test_a_program_that_a_training_starts_gets_a_board_of_its_own(agent: FakeAgent) -> None:
    code = """
import subprocess
launch(); cu.cuCtxSynchronize()
inner = '''
import ctypes as C
cu = C.CDLL("libcuda.so.1")
cu.cuInit(0)
print(C.CDLL(None).specinf_role())
'''
print(subprocess.run([sys.executable, "-c", inner], capture_output=True, text=True).stdout)
"""
    assert run(agent, code + "\nprint(1)") == 1
    assert len(agent.boards) == 2
    assert agent.boards[0].view.head.process_id != agent.boards[1].view.head.process_id


def test_work_left_at_the_end_of_the_process_shuts_the_board(agent: FakeAgent) -> None:
    run(agent, "launch(C.c_void_p(2)); print(0)")  # nobody marks it, nobody waits for it
    assert agent.board.head.shut == Shut.TEARDOWN


def test_a_restarted_agent_gets_the_board_back(agent: FakeAgent) -> None:
    code = (
        PRELUDE
        + """
launch(); cu.cuCtxSynchronize()
print("ready", flush=True)
for line in sys.stdin:
    launch(); cu.cuCtxSynchronize()
    print("done", flush=True)
"""
    )
    env = environment(null_driver(), agent.path)
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin and process.stdout
        assert process.stdout.readline() == "ready\n"
        agent.stop()
        with FakeAgent(agent.path) as second:
            assert second.attached.wait(5)
            process.stdin.write("go\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"
            deadline = time.monotonic() + 5
            while second.messages[-1].verb != "gpu" and time.monotonic() < deadline:
                time.sleep(0.01)
            verbs = {message.verb for message in second.messages}
            assert verbs == {"attach", "gpu"}
            assert second.messages[0].get("reattach") == "1"
            assert sum(slot.before for slot in slots(second)) == 2
            process.stdin.close()
            assert process.wait(10) == 0
