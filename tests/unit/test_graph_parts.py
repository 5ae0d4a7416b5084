"""Long CUDA graphs of a fill are launched in parts: they fit bubbles, and nothing else changes.

On a simulated GPU; its log says what ran.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.sandbox.simgpu.log_file import Operation
from tests.stolen_time import stolen_time
from tests.unit.gated_machine import FILL, Machine, gated_machine
from tests.unit.lending_agent import TUNING, LendingAgent
from tests.unit.shim_lab import SHIM
from tests.unit.test_monitor_sanitizers import runtime

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


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return gated_machine(tmp_path)


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


@pytest.mark.parametrize("part_us", [0, 150])
def test_a_graph_in_parts_fills_bubbles_and_its_time_is_told(
    machine: Machine, part_us: int
) -> None:
    with (
        beside_training(machine, 8, "--compute-us", "30000", "--stall-ms", "40") as agent,
        stolen_time() as stolen,
    ):
        agent.policy.write_tuning(replace(TUNING, graph_part_us=part_us))
        more = ("--graph", "--kernels-per-batch", "40", "--kernel-us", "50")
        fill = machine.infer(5, *more)
        assert fill.wait(30) == 0
    released = sum(use.kernels for use in agent.collect())
    work = machine.fill_work(FILL)
    graphs = len([op for op in work if op.in_graph]) / 40
    truly = sum(op.end_ns - op.start_ns for op in work)
    if part_us == 0:
        assert released <= 1.1 * graphs
    else:
        assert released >= 8 * graphs
        assert machine.truth(FILL).filled_share >= 0.8 * stolen.given
    assert agent.gpu_time_ns() == pytest.approx(truly, rel=0.02)


def test_a_graph_longer_than_every_bubble_runs_all_the_same(machine: Machine) -> None:
    with (
        beside_training(machine, 8, "--compute-us", "20000", "--stall-ms", "5"),
        stolen_time() as stolen,
    ):
        more = ("--graph", "--kernels-per-batch", "200", "--kernel-us", "50", "--in-flight", "1")
        fill = machine.infer(5, *more)
        assert fill.wait(30) == 0
    assert machine.truth(FILL).filled_share >= 0.3 * stolen.given


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


@pytest.mark.parametrize("sanitized", [False, True], ids=["plain", "sanitized"])
def test_a_graph_may_end_while_its_parts_run_and_another_have_its_handle(
    machine: Machine, sanitized: bool, request: pytest.FixtureRequest
) -> None:
    more = request.getfixturevalue("addresses_checked") if sanitized else {}
    work = run(
        machine,
        "for i in range(12):\n"
        "    g = gpu.instantiate(graph(f'g{i}'))\n"
        "    for _ in range(6): run(g)\n"
        "    gpu.call('cuGraphExecDestroy', g)\n"
        "gpu.call('cuCtxSynchronize')\n",
        **more,
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


def test_short_graphs_stay_whole(machine: Machine) -> None:
    work = run(
        machine,
        "g = gpu.instantiate(graph('g', kernels=10, us=15))\n"
        "for _ in range(50): run(g)\n"
        "gpu.synchronize(s)\n",
    )
    assert launches(work, "g") == 50


def test_the_results_of_items_are_all_there(machine: Machine, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    with beside_training(machine, 20, "--compute-us", "10000", "--stall-ms", "20"):
        more = ("--graph", "--kernels-per-batch", "40", "--kernel-us", "50", "--output", str(out))
        fill = machine.infer(30, *more, "--items", "60")
        assert fill.wait(40) == 0
    assert [json.loads(line)["item"] for line in out.read_text().splitlines()] == list(range(60))
    assert len([op for op in machine.fill_work(FILL) if op.in_graph]) == 60 * 40
