"""The sandbox's clean-up of cgroups, which jobs make and remove meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from deploy.sandbox.cgroups import folders_below


def test_inner_cgroups_come_after_outer_ones(tmp_path: Path) -> None:
    (tmp_path / "job_1/step_0/task_0").mkdir(parents=True)
    (tmp_path / "job_1/cgroup.procs").touch()
    inner = ["job_1", "job_1/step_0", "job_1/step_0/task_0"]
    assert folders_below(tmp_path) == [tmp_path / each for each in inner]


def test_a_cgroup_that_vanishes_while_they_are_walked_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("job_1/step_0", "job_2/step_0"):
        (tmp_path / name).mkdir(parents=True)
    listed = os.scandir

    def job_ends(path: Any) -> Any:
        if Path(path) == tmp_path / "job_1":
            (Path(path) / "step_0").rmdir()
            Path(path).rmdir()
        return listed(path)

    monkeypatch.setattr(os, "scandir", job_ends)
    found = folders_below(tmp_path)
    assert {tmp_path / "job_2", tmp_path / "job_2/step_0"} <= set(found)
    assert tmp_path / "job_1/step_0" not in found
