"""No marker is made while an operation is being launched that it would not count (GATE.md, 1)."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHIM = ROOT / "agent" / "shim"
PARTS = ("gate_stream", "gate_clock", "inflight", "flight_exact", "durations")
ALL = 2**64 - 1
"""As who is about to wait asks: however young."""
OLD = 2**63
"""As the helper asks: what has been unmarked since then."""
STREAM, OTHER = 32, 48


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    target = tmp_path_factory.mktemp("marking") / "libmarking.so"
    command = ["cc", "-O2", "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fPIC"]
    command += ["-shared", f"-I{SHIM}", "-o", str(target)]
    command += [str(Path(__file__).with_name("stream_glue.c"))]
    command += [str(SHIM / f"{part}.c") for part in PARTS]
    subprocess.run([*command, "-pthread"], check=True)
    lib = ctypes.CDLL(str(target))
    lib.glue_open.restype = ctypes.c_void_p
    lib.glue_release.restype = lib.glue_markers.restype = lib.glue_last.restype = ctypes.c_uint64
    lib.glue_issue.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64]
    lib.glue_fail.argtypes = [ctypes.c_uint64]
    lib.glue_mark.argtypes = [ctypes.c_uint64]
    return lib


class Fill:
    """A context of a fill, whose markers are counted."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self.lib = lib
        self.context = lib.glue_open()

    def release(self, *, blocking: bool = False) -> int:
        return int(self.lib.glue_release(int(blocking)))

    def issue(self, ticket: int, stream: int = STREAM) -> None:
        self.lib.glue_issue(self.context, ticket, stream)

    def mark(self, since_ns: int = ALL) -> None:
        self.lib.glue_mark(since_ns)

    @property
    def markers(self) -> int:
        return int(self.lib.glue_markers())


@pytest.fixture
def fill(library: ctypes.CDLL) -> Iterator[Fill]:
    yield Fill(library)
    library.glue_close()


@pytest.mark.parametrize("since_ns", [ALL, OLD])
def test_nothing_is_marked_while_an_operation_is_being_launched(fill: Fill, since_ns: int) -> None:
    fill.issue(fill.release())
    launching = fill.release()
    fill.mark(since_ns)
    assert fill.markers == 0
    fill.issue(launching)
    fill.mark(since_ns)
    assert fill.markers == 1
    assert fill.lib.glue_last() == 2, "it counts both"


def test_whoever_has_launched_makes_the_marker_that_was_put_off(fill: Fill) -> None:
    fill.issue(fill.release())
    first, second = fill.release(), fill.release()
    fill.mark()
    fill.issue(first)
    assert fill.markers == 0, "another is being launched still"
    fill.issue(second, OTHER)
    assert fill.markers == 2


def test_the_helper_comes_again_by_itself(fill: Fill) -> None:
    """Short operations share a marker; the helper's look does not give each one of its own."""
    fill.issue(fill.release())
    launching = fill.release()
    fill.mark(OLD)
    fill.issue(launching)
    assert fill.markers == 0


def test_a_blocking_call_does_not_put_markers_off(fill: Fill) -> None:
    fill.issue(fill.release())
    fill.release(blocking=True)
    fill.mark()
    assert fill.markers == 1


def test_a_launch_that_failed_does_not_put_markers_off(fill: Fill) -> None:
    fill.issue(fill.release())
    fill.lib.glue_fail(fill.release())
    fill.mark()
    assert fill.markers == 1


def test_a_capture_that_begins_meanwhile_leaves_it_to_the_captures_end(fill: Fill) -> None:
    fill.issue(fill.release())
    launching = fill.release()
    fill.lib.gate_stream_capture(1)
    fill.issue(launching)
    assert fill.markers == 0
    fill.lib.gate_stream_capture(-1)
    fill.mark(OLD)
    assert fill.markers == 1
    assert fill.lib.glue_last() == 2
