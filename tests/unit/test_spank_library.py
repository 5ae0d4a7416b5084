"""The interposer's file is looked at before a job is made to load it: one that was cut short would
kill every program of a training by SIGBUS."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from tests.unit.shim_lab import ROOT, interposer


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    made = tmp_path_factory.mktemp("library") / "library.so"
    source = ROOT / "slurm_plugin/spank/library.c"
    flags = ["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "-o", str(made), str(source)], check=True)
    library = ctypes.CDLL(str(made))
    library.library_defect.restype = ctypes.c_char_p
    return library


def defect(plugin: ctypes.CDLL, path: Path) -> str | None:
    said: bytes | None = plugin.library_defect(str(path).encode())
    return said.decode() if said else None


def test_the_interposer_as_it_is_built_has_no_defect(plugin: ctypes.CDLL) -> None:
    assert defect(plugin, interposer()) is None


@pytest.mark.parametrize("part", [0.0, 0.00001, 0.001, 0.3, 0.7, 0.999])
def test_a_library_that_was_cut_short_is_not_loaded(
    plugin: ctypes.CDLL, tmp_path: Path, part: float
) -> None:
    whole = interposer().read_bytes()
    short = tmp_path / "libspecinf.so"
    short.write_bytes(whole[: round(len(whole) * part)])
    assert defect(plugin, short) == ("is empty" if part == 0 else "is cut short")


def test_what_is_no_library_of_this_machine_is_not_loaded(
    plugin: ctypes.CDLL, tmp_path: Path
) -> None:
    text, other, program = tmp_path / "text.so", tmp_path / "other.so", tmp_path / "program.so"
    text.write_text("no library\n" * 100)
    whole = bytearray(interposer().read_bytes())
    other.write_bytes(whole[:18] + b"\x28\x00" + whole[20:])  # e_machine: 32-bit ARM
    program.write_bytes(whole[:16] + b"\x04\x00" + whole[18:])  # e_type: a core file
    for file in (text, other, program):
        assert defect(plugin, file) == "is no library of this machine"
    assert defect(plugin, tmp_path) == "is no file"
    assert defect(plugin, tmp_path / "missing.so") == "can't be read"
