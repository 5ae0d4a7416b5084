"""What runs beside what on a simulated GPU: communication, kernels that wait for a peer, priority,
kernels that never end, and faults, all under time slicing."""

import itertools
import json
import time
from pathlib import Path

import pytest

from deploy.sandbox.simgpu.log_file import GpuLog, Operation
from tests.unit.simgpu_machine import Machine, finish, wait_line

REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def named(log: GpuLog, name: str) -> list[Operation]:
    return [op for op in log.operations if op.name == name]


def test_communication_runs_beside_compute_and_takes_a_tenth_of_the_gpu(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.run(
        "a, b = gpu.stream(), gpu.stream()\n"
        "gpu.function('k'); name, got = '" + REDUCE + "', ctypes.c_char_p()\n"
        "gpu.call('cuFuncGetName', ctypes.byref(got), gpu.function(name))\n"
        "assert got.value.decode() == name\n"
        "gpu.launch(name, 200000, b); gpu.launch('k', 9000, a); gpu.launch('k', 9000, a)\n"
        "gpu.call('cuCtxSynchronize')\n"
    )
    log = machine.log()
    (reduce,) = named(log, REDUCE)
    first, second = named(log, "k")
    assert reduce.communication
    assert reduce.end_ns - reduce.start_ns == 200_000_000  # not slowed down
    assert first.start_ns < reduce.end_ns
    for kernel in (first, second):  # a millisecond for every nine
        assert kernel.end_ns - kernel.start_ns == pytest.approx(10_000_000, abs=2)
        assert kernel.lost_ns == 0  # to no other process
    assert second.start_ns == first.end_ns


def test_a_collective_lasts_until_the_peer_has_come_to_its_own(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.run(
        "import time\n"
        "s, words = gpu.stream(), gpu.words(); at = ctypes.addressof(words)\n"
        f"gpu.spin('{REDUCE}', 100, s, at, 1); gpu.launch('after', 10, s)\n"
        "time.sleep(0.05); assert gpu.cuda.cuStreamQuery(s) == 600\n"
        "words[0] = 1; gpu.synchronize(s)\n"
        f"gpu.spin('{REDUCE}', 30000, s, at, 1); gpu.synchronize(s)\n"  # already there
        "try: gpu.spin('k', 1, s, 8, 1)\n"  # a word out of its reach
        "except Exception as error: assert error.code == 1\n"
        "else: assert False\n"
    )
    log = machine.log()
    waited, told = named(log, REDUCE)
    assert waited.spins
    assert waited.end_ns - waited.start_ns >= 50_000_000
    assert told.end_ns - told.start_ns == 30_000_000
    assert named(log, "after")[0].start_ns >= waited.end_ns


def test_a_kernel_that_spins_makes_room_at_the_end_of_its_slice_and_goes_on(tmp_path: Path) -> None:
    """Else two processes on one GPU that wait for each other would stand for ever."""
    machine = Machine(tmp_path)
    waiting = machine.start(
        "import sys\n"
        "s, words = gpu.stream(), gpu.words(); at = ctypes.addressof(words)\n"
        f"gpu.spin('{REDUCE}', 100, s, at, 1); print('spins', flush=True); sys.stdin.readline()\n"
        "words[0] = 1; gpu.synchronize(s)\n"
    )
    wait_line(waiting, "spins")
    machine.run(
        "gpu.launch('other', 3000); gpu.launch('other', 3000); gpu.synchronize()\n"
        "import time; time.sleep(0.01); gpu.launch('other', 3000); gpu.synchronize()\n"
    )
    waiting.communicate("\n", timeout=60)
    log = machine.log()
    (spin,) = named(log, REDUCE)
    others = named(log, "other")
    assert len(others) == 3
    assert all(op.end_ns < spin.end_ns for op in others)
    assert all(op.ran_ns == op.end_ns - op.start_ns == 3_000_000 for op in others)
    away = spin.end_ns - spin.start_ns - spin.ran_ns
    assert away >= 9_000_000
    # In turns: the second waits for the spinning kernel's slice and two switches.
    assert others[1].start_ns - others[0].end_ns == 1_000_000 + 2 * 130_000
    assert all(switch.end_ns - switch.begin_ns == 130_000 for switch in log.switches)


def test_a_stream_that_stands_in_a_wait_does_not_keep_the_gpu(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    waiting = machine.start(
        "import sys\n"
        "a, b, e, words = gpu.stream(), gpu.stream(), gpu.event(), gpu.words()\n"
        "gpu.launch('mine', 10, a); gpu.wait(a, ctypes.addressof(words), 1)\n"
        "gpu.call('cuEventRecord', e, a); gpu.call('cuStreamWaitEvent', b, e, 0)\n"
        "gpu.launch('mine', 10, b); print('waits', flush=True); sys.stdin.readline()\n"
        "words[0] = 1; gpu.synchronize(b)\n"
    )
    wait_line(waiting, "waits")
    machine.run("for _ in range(20): gpu.launch('other', 500)\ngpu.synchronize()\n")
    waiting.communicate("\n", timeout=60)
    log = machine.log()
    others = named(log, "other")
    assert others[0].start_ns - others[0].ready_ns <= 130_000
    assert others[-1].end_ns - others[0].start_ns == 20 * 500_000
    assert named(log, "mine")[1].start_ns > others[-1].end_ns


def test_a_stream_of_higher_priority_goes_first(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.run(
        "low, high = gpu.stream(), gpu.stream(priority=-5)\n"
        "priority = ctypes.c_int()\n"
        "gpu.call('cuStreamGetPriority', high, ctypes.byref(priority))\n"
        "assert priority.value == -5\n"
        "gpu.launch('first', 100000, low)\n"
        "for _ in range(5): gpu.launch('low', 100, low)\n"
        "for _ in range(5): gpu.launch('high', 100, high)\n"
        "gpu.call('cuCtxSynchronize')\n"
    )
    log = machine.log()
    assert named(log, "high")[-1].end_ns <= named(log, "low")[0].start_ns


def test_an_endless_kernel_leaves_others_their_slices_until_it_is_killed(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    endless = machine.program("siminfer", "--items", 5)
    finish(endless)
    hangs = machine.start(
        "gpu.launch('fine', 10); gpu.launch('hangs', 10); gpu.launch('hangs', 10)\n"
        "for _ in range(3): gpu.launch('late', 10)\n"
        "print('up', flush=True); gpu.synchronize()\n",
        SIMGPU_ENDLESS_KERNEL="hangs:2",
    )
    wait_line(hangs, "up")
    machine.run("for _ in range(10): gpu.launch('other', 700)\ngpu.synchronize()\n")
    time.sleep(0.05)
    assert hangs.poll() is None
    hangs.kill()
    hangs.communicate()
    machine.run("gpu.launch('after', 10); gpu.synchronize()\n")
    log = machine.log()
    first, second = named(log, "hangs")
    assert not first.spins
    assert second.killed
    assert (named(log, "late"), list(log.dropped.values())) == ([], [3])
    assert second.end_ns - second.start_ns > 50_000_000
    others = named(log, "other")
    assert len(others) == 10
    gaps = [b.start_ns - a.end_ns for a, b in itertools.pairwise(others)]
    assert set(gaps) <= {0, 1_000_000 + 2 * 130_000}  # the endless kernel's slices
    assert max(gaps) > 0


@pytest.mark.parametrize("wish", ["bad:2", ""])
def test_a_fault_ends_only_its_own_process_under_time_slicing(tmp_path: Path, wish: str) -> None:
    machine = Machine(tmp_path)
    steady = machine.program("simtrain", "--seconds", 1, "--stall-ms", 2, "--compute-us", 4000)
    name = "bad" if wish else "sim_illegal_address"
    machine.run(
        "e, s, words, text = gpu.event(), gpu.stream(), gpu.words(), ctypes.c_char_p()\n"
        + ("gpu.launch('bad', 100, s)\n" if wish else "")
        + f"gpu.launch('{name}', 100, s); gpu.write(s, ctypes.addressof(words), 1)\n"
        "gpu.call('cuEventRecord', e, s)\n"
        "codes = [gpu.cuda.cuStreamSynchronize(s), gpu.cuda.cuStreamQuery(s),\n"
        "         gpu.cuda.cuEventQuery(e), gpu.cuda.cuEventSynchronize(e),\n"
        "         gpu.cuda.cuCtxSynchronize(), gpu.cuda.cuStreamWaitEvent(s, e, 0),\n"
        "         gpu.cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(64)),\n"
        "         gpu.cuda.cuLaunchKernel(gpu.function('k'), 1, 1, 1, 1, 1, 1, 0, s, None, None)]\n"
        "assert codes == [700] * 8, codes\n"
        "gpu.call('cuGetErrorName', 700, ctypes.byref(text))\n"
        "assert text.value == b'CUDA_ERROR_ILLEGAL_ADDRESS' and words[0] == 0\n",
        SIMGPU_FAULT_KERNEL=wish,
    )
    report = json.loads(finish(steady).splitlines()[-1])
    assert report["stopped"] is False
    assert report["iterations"] > 20
    assert [op.faulted for op in named(machine.log(), name)][-1]


@pytest.mark.parametrize("graph", [(), ("--graph",)])
def test_training_overlaps_a_collective_in_its_own_stream(
    tmp_path: Path, graph: tuple[str, ...]
) -> None:
    machine = Machine(tmp_path)
    options = ["--iterations", 6, "--kernels", 20, "--kernel-us", 100, "--stall-ms", 1]
    options += ["--comm-us", 3000, "--comm-stream", "side", "--overlap", 10, "--stream", "own"]
    out = finish(machine.program("simtrain", *options, "--no-times", *graph))
    plain = finish(machine.program("simtrain", *options[:6], "--no-times"))
    assert out == plain  # the same losses
    log = machine.log()
    side = named(log, REDUCE)
    assert len(side) == 6
    for reduce in side:
        beside = [
            op
            for op in named(log, "train_gemm")
            if op.start_ns >= reduce.start_ns and op.end_ns <= reduce.end_ns
        ]
        assert len(beside) == 10
        assert reduce.in_graph == bool(graph)
        assert {op.graph_launch for op in beside} == {reduce.graph_launch}


def test_two_trainings_wait_for_each_other_in_their_collectives(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus=2)
    options = ["--iterations", 10, "--kernel-us", 500, "--comm-us", 200, "--peer", tmp_path / "p"]
    fast, slow = (
        machine.program(
            "simtrain",
            *(*options, "--rank", rank, "--kernels", kernels, "--stall-ms", stall),
            CUDA_VISIBLE_DEVICES=str(rank),
        )
        for rank, (kernels, stall) in enumerate(((4, 1), (40, 5)))
    )
    finish(fast)
    finish(slow)
    waits = named(machine.log(0), REDUCE)
    ends = named(machine.log(1), REDUCE)
    for mine, theirs in zip(waits, ends, strict=True):
        assert mine.end_ns >= theirs.start_ns - 1_000_000
    assert sum(op.end_ns - op.start_ns for op in waits[1:]) > 9 * 10_000_000


@pytest.mark.parametrize("options", [("--graph",), ("--streams", 2), ("--graph", "--streams", 2)])
def test_inference_gives_the_same_results_in_graphs_and_two_streams(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    machine = Machine(tmp_path)
    for name, more in (("plain", ()), ("other", options)):
        finish(machine.program("siminfer", "--items", 20, "--output", tmp_path / name, *more))
    assert (tmp_path / "plain").read_text() == (tmp_path / "other").read_text()
    kernels = [op for op in named(machine.log(), "infer_gemm") if op.context == 2]
    assert len(kernels) == 20 * 20
    launches = {op.graph_launch for op in kernels}
    assert len(launches) == (20 if "--graph" in options else 1)
    assert len({op.stream for op in kernels}) == (2 if "--streams" in options else 1)
