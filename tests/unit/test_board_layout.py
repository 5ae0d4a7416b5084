"""agent/board.py and board.h describe the same memory."""

from __future__ import annotations

import ctypes
import json
import subprocess

import pytest

from agent import board
from tests.unit.shim_lab import interposer

MIRRORS: dict[str, type[ctypes.Structure]] = {
    "sfill_stream_slot": board.StreamSlot,
    "sfill_gpu_section": board.GpuSection,
    "sfill_bubble": board.Bubble,
    "sfill_board_head": board.BoardHead,
    "sfill_training_board": board.TrainingBoard,
    "sfill_use": board.Use,
    "sfill_fill_gpu": board.FillGpu,
    "sfill_fill_board": board.FillBoard,
    "sfill_policy_fill": board.PolicyFill,
    "sfill_policy_page": board.PolicyPage,
}


def layout() -> dict[str, dict[str, object]]:
    """The C compiler's layout of each structure."""
    program = interposer().parent / "board_layout"
    printed = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    structures: dict[str, dict[str, object]] = json.loads(printed)
    return structures


def test_every_structure_of_the_board_is_mirrored() -> None:
    assert layout().keys() == MIRRORS.keys()


@pytest.mark.parametrize("name", MIRRORS)
def test_size_and_every_member_are_the_same(name: str) -> None:
    mirror = MIRRORS[name]
    named = [field[0] for field in mirror._fields_ if not field[0].startswith(("reserved", "_"))]
    members = {
        field: [getattr(mirror, field).offset, getattr(mirror, field).size] for field in named
    }
    assert layout()[name] == {"size": ctypes.sizeof(mirror), "members": members}
