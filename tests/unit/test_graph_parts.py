"""Long CUDA graphs of a fill are launched in parts: nothing but their lengths changes.

On a simulated GPU; its log says what ran.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.unit.gated_machine import FILL, Machine, gated_machine
from tests.unit.graph_lab import beside_training, launches, named, run
from tests.unit.shim_lab import SHIM
from tests.unit.test_monitor_sanitizers import runtime


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return gated_machine(tmp_path)


def test_launches_of_one_graph_follow_each_other_over_streams(machine: Machine) -> None:
    work = run(
        machine,
        "g = gpu.instantiate(graph('g'))\n"
        "for i in range(24): run(g, (s, t)[i % 2])\n"
        "gpu.call('cuCtxSynchronize')\n",
    )
    heads, tails = named(work, "g-head"), named(work, "g-tail")
    assert len(heads) == len(tails) == 24
    assert len(named(work, "g")) == 24 * 38
    assert launches(work, "g") > 5 * 24
    for tail, head in zip(tails, heads[1:], strict=False):
        assert head.start_ns >= tail.end_ns


def test_edges_are_heeded_across_parts(machine: Machine) -> None:
    work = run(
        machine,
        "fork, join = gpu.event(), gpu.event()\n"
        "gpu.capture(s)\n"
        "for i in range(8):\n"
        "    gpu.launch(f'head{i}', 50, s); gpu.call('cuEventRecord', fork, s)\n"
        "    gpu.call('cuStreamWaitEvent', t, fork, 0)\n"
        "    for _ in range(4): gpu.launch(f'side{i}', 100, t)\n"
        "    gpu.launch(f'main{i}', 50, s)\n"
        "    gpu.call('cuEventRecord', join, t); gpu.call('cuStreamWaitEvent', s, join, 0)\n"
        "    gpu.launch(f'tail{i}', 50, s)\n"
        "g = gpu.instantiate(gpu.end_capture(s))\n"
        "for _ in range(20): run(g); gpu.synchronize(s)\n",
    )
    assert len({op.graph_launch for op in work}) > 5 * 20
    for i in range(8):
        heads, sides, mains, tails = (
            named(work, f"{each}{i}") for each in ("head", "side", "main", "tail")
        )
        assert [len(each) for each in (heads, sides, mains, tails)] == [20, 80, 20, 20]
        for n in range(20):
            own = sides[4 * n : 4 * n + 4]
            assert all(side.start_ns >= heads[n].end_ns for side in (*own, mains[n]))
            assert tails[n].start_ns >= max(op.end_ns for op in (*own, mains[n]))


def test_a_graph_that_is_changed_runs_as_it_is_now(machine: Machine) -> None:
    work = run(
        machine,
        "g = gpu.instantiate(graph('before')); other = graph('after')\n"
        "for _ in range(12): run(g)\n"
        "info = (ctypes.c_uint64 * 4)()\n"
        "gpu.call('cuGraphExecUpdate_v2', g, other, ctypes.byref(info))\n"
        "for i in range(4): run(g, (t, s)[i % 2])\n"
        "gpu.call('cuCtxSynchronize')\n",
    )
    assert launches(work, "before") > 5 * 12
    assert len(named(work, "before-tail")) == 12
    assert len(named(work, "after-tail")) == 4
    assert named(work, "after-head")[0].start_ns >= named(work, "before-tail")[-1].end_ns


@pytest.fixture
def addresses_checked(tmp_path: Path) -> dict[str, str]:
    """The environment of a fill whose interposer is built with the address sanitizer."""
    flags = os.environ | {"CFLAGS": "-O1 -g -fsanitize=address,undefined"}
    subprocess.run(["make", "-s", "-C", str(SHIM), f"BUILD={tmp_path}"], env=flags, check=True)
    preload = f"{runtime('address')}:{tmp_path / 'shim' / 'libspecinf.so'}"
    return {"LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0"}


def test_a_graph_may_end_while_its_parts_run_and_another_have_its_handle(
    machine: Machine, addresses_checked: dict[str, str]
) -> None:
    work = run(
        machine,
        "for i in range(12):\n"
        "    g = gpu.instantiate(graph(f'g{i}'))\n"
        "    for _ in range(6): run(g)\n"
        "    gpu.call('cuGraphExecDestroy', g)\n"
        "gpu.call('cuCtxSynchronize')\n",
        **addresses_checked,
    )
    for i in range(12):
        assert len(named(work, f"g{i}-head")) == len(named(work, f"g{i}-tail")) == 6
        assert len(named(work, f"g{i}")) == 6 * 38
        assert launches(work, f"g{i}") > 2 * 6


def test_a_graph_whose_nodes_can_change_unseen_stays_whole(machine: Machine) -> None:
    work = run(
        machine,
        "called = []\n"
        "function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(called.append)\n"
        "gpu.capture(s)\n"
        "for _ in range(40): gpu.launch('g', 50, s)\n"
        "gpu.call('cuLaunchHostFunc', s, function, None)\n"
        "g = gpu.instantiate(gpu.end_capture(s))\n"
        "for _ in range(12): run(g); gpu.synchronize(s)\n"
        "assert len(called) == 12\n",
    )
    assert len(named(work, "g")) == 12 * 40
    assert launches(work, "g") == 12


def test_the_results_of_items_are_all_there(machine: Machine, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    with beside_training(machine, 20, "--compute-us", "10000", "--stall-ms", "20"):
        more = ("--graph", "--kernels-per-batch", "40", "--kernel-us", "50", "--output", str(out))
        fill = machine.infer(30, *more, "--items", "60")
        assert fill.wait(40) == 0
    assert [json.loads(line)["item"] for line in out.read_text().splitlines()] == list(range(60))
    assert len([op for op in machine.fill_work(FILL) if op.in_graph]) == 60 * 40
