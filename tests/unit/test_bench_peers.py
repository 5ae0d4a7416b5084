"""The bench's own policies: what the library counts, what it holds, and when it lets go."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.bench.cells import GRID, PEERS, Cell
from tests.bench.page import MAGIC, Page, Word
from tests.bench.peer_cell import POLICY_WORD, library, make_pages
from tests.unit.shim_lab import ROOT, null_driver, python
from tests.unit.simgpu_machine import Machine, finish

HEADER = ROOT / "tests/bench/peers/page.h"
LAUNCHES = """
import ctypes as C, json, os, time
cu = C.CDLL("libcuda.so.1")
context = C.c_void_p()
assert cu.cuInit(0) == 0
assert cu.cuDevicePrimaryCtxRetain(C.byref(context), 0) == 0
assert cu.cuCtxSetCurrent(context) == 0
def launch():
    assert cu.cuLaunchKernel(C.c_void_p(1), 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
def timed(count):
    began = time.monotonic()
    for _ in range(count):
        launch()
    return time.monotonic() - began
"""


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page.create(tmp_path / "page.0")


def peer(tmp_path: Path, role: str) -> dict[str, str]:
    """The environment of a program under the bench's library, on a driver that does nothing."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SFILL_", "LD_"))}
    return kept | {
        "LD_PRELOAD": str(library()),
        "LD_LIBRARY_PATH": str(null_driver()),
        "SFILL_BENCH_ROLE": role,
        "SFILL_BENCH_PAGE": str(tmp_path / "page.0"),
    }


def test_the_page_is_the_same_in_c_and_in_python() -> None:
    text = HEADER.read_text()
    words = re.findall(r"^\s+_Atomic uint64_t (\w+);", text, re.M)
    assert words == [word.name.lower() for word in Word]
    assert f"{MAGIC:#x}ull" in text
    policies = dict(re.findall(r"PAGE_POLICY_(\w+) = (\d)", text))
    assert {name.replace("-", "_").upper(): str(n) for name, n in POLICY_WORD.items()} | {
        "NONE": "0"
    } == {{"RATE": "RATE_CONTROL"}.get(name, name): n for name, n in policies.items()}


def test_a_training_is_counted_and_never_held(tmp_path: Path, page: Page) -> None:
    page[Word.POLICY] = POLICY_WORD["launch-count"]
    page[Word.QUIET_NS] = 10**12
    page.order(True)
    took = python(LAUNCHES + "print(json.dumps(timed(200)))", peer(tmp_path, "training"))
    assert page[Word.TRAINING_LAUNCHES] == 200
    assert 0 < time.monotonic_ns() - page[Word.TRAINING_LAST_NS] < 30e9
    assert took < 1


def test_the_launch_count_gate_opens_once_training_has_been_quiet(
    tmp_path: Path, page: Page
) -> None:
    page[Word.POLICY] = POLICY_WORD["launch-count"]
    page[Word.QUIET_NS] = 300_000_000
    page.order(True)
    busy = threading.Event()

    def train() -> None:
        while not busy.wait(0.01):
            page[Word.TRAINING_LAST_NS] = time.monotonic_ns()

    training = threading.Thread(target=train)
    training.start()
    threading.Timer(2.0, busy.set).start()
    try:
        code = "began = time.monotonic_ns(); launch(); print(json.dumps(time.monotonic_ns()))"
        launched_ns = python(LAUNCHES + code, peer(tmp_path, "fill"))
    finally:
        busy.set()
        training.join()
    assert launched_ns - page[Word.TRAINING_LAST_NS] >= 300_000_000
    assert page[Word.FILL_LAUNCHES] == 1


def test_the_rate_policy_keeps_to_the_rate(tmp_path: Path, page: Page) -> None:
    page[Word.POLICY] = POLICY_WORD["rate-control"]
    page[Word.RATE] = 200
    page.order(True)
    took = python(LAUNCHES + "print(json.dumps(timed(100)))", peer(tmp_path, "fill"))
    assert took >= 0.48


@pytest.mark.parametrize("policy", sorted(POLICY_WORD))
def test_a_pausing_fill_is_held_by_nothing(tmp_path: Path, page: Page, policy: str) -> None:
    page[Word.POLICY] = POLICY_WORD[policy]
    page[Word.QUIET_NS] = 10**15
    page[Word.TRAINING_LAST_NS] = time.monotonic_ns()
    took = python(LAUNCHES + "print(json.dumps(timed(100)))", peer(tmp_path, "fill"))
    assert took < 1
    assert page[Word.FILL_LAUNCHES] == 100


def test_without_a_page_the_library_does_nothing(tmp_path: Path) -> None:
    environment = peer(tmp_path, "fill")
    del environment["SFILL_BENCH_PAGE"]
    assert python(LAUNCHES + "print(json.dumps(timed(10)))", environment) < 1


def test_a_file_that_is_no_page_ends_the_program(tmp_path: Path) -> None:
    (tmp_path / "page.0").write_bytes(bytes(4096))
    with pytest.raises(AssertionError, match="is no page of the bench"):
        python(LAUNCHES + "launch(); print(1)", peer(tmp_path, "fill"))


PROGRAM = [sys.executable, str(ROOT / "tests/unit/cuda_program.py"), "infer"]


@pytest.mark.parametrize(("most", "ahead_ms"), [(2, 40), (0, 1000)])
def test_work_in_flight_is_bounded_where_the_grid_says_so(
    tmp_path: Path, most: int, ahead_ms: int
) -> None:
    """Kernels of 20 ms: how far the last launch runs ahead of the end of its kernel."""
    machine = Machine(tmp_path)
    page = Page.create(tmp_path / "page.0")
    page[Word.POLICY] = POLICY_WORD["launch-count"]
    page[Word.IN_FLIGHT] = most
    page.order(True)
    machine.environment |= {
        "LD_PRELOAD": str(library()),
        "SFILL_BENCH_ROLE": "fill",
        "SFILL_BENCH_PAGE": str(tmp_path / "page.0"),
    }
    finish(machine._start([*PROGRAM, "0.1", "20000", "12", "0"], 0, {}))
    kernels = [each for each in machine.log().operations if each.name == "infer"]
    ahead = [(each.end_ns - each.launch_ns) / 1e6 for each in kernels]
    assert len(kernels) >= 12
    assert max(ahead) < ahead_ms + 15
    if not most:
        assert max(ahead) > 150  # unbounded: the whole row was launched at once


def test_every_point_of_the_grid_makes_its_page(tmp_path: Path) -> None:
    for policy in PEERS:
        for settings in GRID[policy]:
            cell = Cell("stall", policy, "transformer", tuple(settings.items()))
            page = make_pages(cell, tmp_path)[0]
            assert page[Word.POLICY] == POLICY_WORD.get(policy, 0)
            assert page[Word.QUIET_NS] == 1000 * settings.get("quiet_us", 0)
