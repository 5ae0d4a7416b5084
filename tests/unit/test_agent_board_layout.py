"""agent/board.py is the same memory as board.h, by the C compiler's own word."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agent import board

ROOT = Path(__file__).resolve().parents[2]
STRUCTURES: dict[str, type[ctypes.Structure]] = {
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
    "sfill_account_place": board.AccountPlace,
    "sfill_account_page": board.AccountPage,
}


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    program = tmp_path_factory.mktemp("layout") / "board_layout"
    source = ROOT / "agent/shim/board_layout.c"
    subprocess.run([compiler, "-std=gnu11", "-o", program, source], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(printed)
    return found


@pytest.mark.parametrize("name", STRUCTURES)
def test_structure_has_the_same_members_at_the_same_offsets(
    layout: dict[str, Any], name: str
) -> None:
    mirror = STRUCTURES[name]
    expected = layout[name]
    assert ctypes.sizeof(mirror) == expected["size"]
    own = {
        field[0]: [getattr(mirror, field[0]).offset, getattr(mirror, field[0]).size]
        for field in mirror._fields_
        if not field[0].startswith(("reserved", "_align"))
    }
    assert own == expected["members"]


def test_every_structure_that_c_prints_is_mirrored(layout: dict[str, Any]) -> None:
    assert {name for name in layout if name.startswith("sfill_")} == STRUCTURES.keys()
