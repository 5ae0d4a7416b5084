"""The simulated GPU's clock is exact: order, slices, switches and barriers by its own log."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.sandbox.simgpu.log_file import GpuLog, Kind, Operation
from tests.unit.simgpu_machine import Machine, finish, wait_line


def named(log: GpuLog, name: str) -> list[Operation]:
    return [op for op in log.operations if op.name == name]


@contextlib.contextmanager
def loaded_cores() -> Iterator[None]:
    """Keeps every core busy for as long as the body runs, 20 s at most."""
    spin = "import time\nend = time.time() + 20\nwhile time.time() < end: pass"
    spinners = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def test_a_queue_runs_without_a_gap_even_when_the_cores_are_busy(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with loaded_cores():
        machine.run(
            "s = gpu.stream()\n"
            "for _ in range(3):\n"
            "    for i in range(200): gpu.launch('k', 150 + i % 7, s)\n"
            "    gpu.synchronize(s)\n"
        )
    ops = named(machine.log(), "k")
    assert len(ops) == 600
    for i, op in enumerate(ops):
        assert op.end_ns - op.start_ns == (150 + i % 200 % 7) * 1000
        assert op.start_ns == op.ready_ns
        if i % 200 and op.launch_ns < ops[i - 1].end_ns:
            assert op.start_ns == ops[i - 1].end_ns


def test_a_launch_costs_microseconds_and_a_wait_ends_when_the_work_does(tmp_path: Path) -> None:
    took = Machine(tmp_path).run(
        "import time\n"
        "gpu.launch('k', 10); gpu.synchronize()\n"
        "a = time.monotonic()\n"
        "for _ in range(500): gpu.launch('k', 100)\n"
        "b = time.monotonic(); gpu.synchronize(); c = time.monotonic()\n"
        "print((b - a) / 500 * 1e6, (c - a) * 1e3)\n"
    )
    launch_us, total_ms = map(float, took.split())
    assert launch_us < 100  # 1 us on a free core
    assert 50 <= total_ms < 200


def two_contend(machine: Machine) -> GpuLog:
    code = (
        "import sys\n"
        "print('up', flush=True); sys.stdin.readline()\n"
        "for _ in range(300): gpu.launch('{}', 200)\n"
        "gpu.synchronize()\n"
    )
    both = [machine.start(code.format(name), job) for name, job in (("left", 1), ("right", 2))]
    for process in both:
        wait_line(process, "up")
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in both:
        finish(process)
    return machine.log()


def test_contexts_take_turns_by_slices_and_every_change_costs_the_switch(tmp_path: Path) -> None:
    log = two_contend(Machine(tmp_path))
    kernels = sorted((op for op in log.operations if op.name), key=lambda op: op.start_ns)
    assert len(kernels) == 600
    turns: list[list[Operation]] = []
    for before, op in zip([None, *kernels], kernels, strict=False):
        if before and before.context == op.context:
            turns[-1].append(op)
        else:
            turns.append([op])
        if before:
            gap = op.start_ns - before.end_ns
            assert gap >= (0 if before.context == op.context else 130_000)
    assert len(turns) > 50
    for turn, following in itertools.pairwise(turns[3:-2]):
        assert following[0].start_ns - turn[-1].end_ns == 130_000
        assert turn[-1].end_ns - turn[0].start_ns == 1_000_000  # five kernels fill a slice
    assert all(s.end_ns - s.begin_ns == 130_000 for s in log.switches)


def test_slice_and_switch_times_are_settings(tmp_path: Path) -> None:
    machine = Machine(tmp_path, slice_us=400)
    machine.state.mkdir()
    (machine.state / "simgpu.conf").write_text("switch_us = 50 # microseconds\nslice_us = 9\n")
    log = two_contend(machine)
    assert {s.end_ns - s.begin_ns for s in log.switches} == {50_000}
    longest = max(
        b.begin_ns - a.end_ns for a, b in zip(log.switches[2:-2], log.switches[3:-1], strict=True)
    )
    assert longest == 400_000  # two kernels: the environment goes before the file


def test_an_idle_holder_pays_nothing_and_a_newcomer_pays_the_switch(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    other = machine.start(
        "import sys\n"
        "print('up', flush=True); sys.stdin.readline()\n"
        "gpu.launch('other', 100); gpu.synchronize()\n",
    )
    wait_line(other, "up")
    machine.run(
        "import time\n"
        "for _ in range(5): gpu.launch('first', 100); gpu.synchronize(); time.sleep(0.003)\n"
    )
    finish(other) if other.stdin is None else other.communicate("\n", timeout=60)
    log = machine.log()
    assert all(op.start_ns == op.launch_ns for op in named(log, "first"))
    (late,) = named(log, "other")
    assert late.start_ns - late.ready_ns == 130_000


def test_a_frozen_context_writes_nothing_until_it_has_the_gpu(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    holder = machine.start(
        "import sys\n"
        "print('up', flush=True); sys.stdin.readline()\n"
        "gpu.launch('long', 300000); print('running', flush=True); gpu.synchronize()\n"
    )
    wait_line(holder, "up")
    writer = machine.start(
        "import sys, time\n"
        "s, words = gpu.stream(), gpu.words()\n"
        "print('up', flush=True); sys.stdin.readline()\n"
        "gpu.write(s, ctypes.addressof(words), 7)\n"
        "time.sleep(0.1); early = words[0]\n"
        "gpu.synchronize(s); print(early, words[0])\n"
    )
    wait_line(writer, "up")
    assert holder.stdin is not None
    holder.stdin.write("\n")
    holder.stdin.flush()
    wait_line(holder, "running")
    out, err = writer.communicate("\n", timeout=60)
    finish(holder)
    assert out.split() == ["0", "7"], err
    log = machine.log()
    (mark,) = [op for op in log.operations if op.kind == Kind.MARK]
    (long,) = named(log, "long")
    assert mark.start_ns == long.end_ns + 130_000


def test_a_killed_process_leaves_the_gpu_to_the_others(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    victim = machine.start(
        "gpu.allocate(1 << 30)\n"
        "for _ in range(900): gpu.launch('doomed', 5000)\n"
        "print('queued', flush=True); gpu.synchronize()\n"
    )
    wait_line(victim, "queued")
    time.sleep(0.05)
    victim.send_signal(signal.SIGKILL)  # a zombie until it is waited for, below
    before = time.monotonic()
    out = machine.run("gpu.launch('next', 100); gpu.synchronize(); print(*gpu.memory_info())")
    assert time.monotonic() - before < 2
    victim.communicate()
    free, total = map(int, out.split())
    assert total - free == 256 << 20  # the survivor's context only
    log = machine.log()
    assert 0 < len(named(log, "doomed")) < 200
    assert named(log, "doomed")[-1].killed
    assert not named(log, "next")[0].killed


def test_many_kills_in_the_middle_of_launching_never_stop_the_machine(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    steady = machine.start(
        "import time\n"
        "end = time.monotonic() + 6\n"
        "while time.monotonic() < end:\n"
        "    for _ in range(20): gpu.launch('steady', 50)\n"
        "    gpu.synchronize()\n"
        "print('done')\n"
    )
    for round_number in range(8):
        victim = machine.start(
            "print('up', flush=True)\n"
            "s, words = gpu.stream(), gpu.words()\n"
            "while True:\n"
            "    gpu.launch('victim', 1, s); gpu.write(s, ctypes.addressof(words), 1)\n"
        )
        wait_line(victim, "up")
        time.sleep(0.05 + round_number / 100)
        victim.kill()
        victim.communicate()
    assert "done" in finish(steady)
    finish(machine.start("gpu.launch('after', 10); gpu.synchronize()"))
    kernels = sorted((op for op in machine.log().operations if op.name), key=lambda op: op.start_ns)
    assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(kernels))


BARRIER = """
a, b, free = gpu.stream(blocking=True), gpu.stream(blocking=True), gpu.stream()
gpu.launch('a1', 3000, a); gpu.launch('b1', 1000, b); gpu.launch('free1', 100, free)
gpu.launch('legacy', 500)
gpu.launch('a2', 100, a); gpu.launch('b2', 100, b); gpu.launch('free2', 100, free)
gpu.launch('own', 100, None, '_ptsz')
gpu.call('cuCtxSynchronize')
"""


def test_the_legacy_stream_is_a_barrier_over_blocking_streams_only(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.run(BARRIER)
    at = {op.name: op for op in machine.log().operations}
    assert at["legacy"].start_ns >= max(at["a1"].end_ns, at["b1"].end_ns)
    assert at["legacy"].ready_ns >= max(at["a1"].end_ns, at["b1"].end_ns)
    for name in ("a2", "b2", "own"):
        assert at[name].start_ns >= at["legacy"].end_ns
    assert at["free2"].ready_ns == at["free1"].end_ns < at["legacy"].end_ns
    assert len({at[name].stream for name in ("legacy", "own", "a1", "b1", "free1")}) == 5


@pytest.mark.parametrize("device", [0, 1])
def test_a_stream_waits_for_an_event_of_another_stream_or_gpu(tmp_path: Path, device: int) -> None:
    machine = Machine(tmp_path, gpus=2)
    machine.run(
        f"gpu.use({device}); gpu.use(0)\n"  # a context costs 30 ms: made before the measurement
        "a, e = gpu.stream(), gpu.event()\n"
        "f = gpu.function('after')\n"
        "gpu.launch('before', 5000, a); gpu.call('cuEventRecord', e, a)\n"
        f"gpu.use({device}); b = gpu.stream()\n"
        "gpu.call('cuStreamWaitEvent', b, e, 0); gpu.launch('after', 100, b)\n"
        "gpu.synchronize(b)\n"
    )
    (before,) = named(machine.log(0), "before")
    (after,) = named(machine.log(device), "after")
    assert after.start_ns == after.ready_ns == before.end_ns
