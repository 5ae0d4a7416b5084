"""The simulated driver's memory pools take, keep and give back as the API says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.sharing_lab import SharingLab, result
from tests.unit.shim_lab import simulated_gpu

OUT_OF_MEMORY = 2
GPU_MB = 1024
BASE_MB = 256 + 1  # the context, and the page that the program works on


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[SharingLab]:
    simulated_gpu()
    started = SharingLab(tmp_path / "lab", None, GPU_MB)
    yield started
    started.stop()


def taken(lab: SharingLab, *steps: str) -> list[object]:
    """What the steps gave; of `info`, how much is in use beside the base."""
    found = result(lab.start(0, "", 0.2, *steps))["results"]
    return [GPU_MB - BASE_MB - each[0] if isinstance(each, list) else each for each in found]


def test_a_pool_keeps_up_to_its_threshold(lab: SharingLab) -> None:
    found = taken(lab, "pool:33", "info", "free", "sync", "info", "trim", "info")
    assert found == [0, 64, 0, 0, 64, 0, 0]


def test_the_devices_own_pool_gives_back_when_the_process_waits(lab: SharingLab) -> None:
    assert taken(lab, "async:33", "info", "free", "sync", "info") == [0, 64, 0, 0, 0]


def test_a_pool_that_is_destroyed_lives_until_its_last_free(lab: SharingLab) -> None:
    found = taken(lab, "pool:33", "destroy", "info", "free", "sync", "info")
    assert found == [0, 0, 64, 0, 0, 0]


def test_a_pool_cannot_take_what_is_not_there(lab: SharingLab) -> None:
    assert taken(lab, "pool:800", "pool:700", "info") == [OUT_OF_MEMORY, 0, 704]
