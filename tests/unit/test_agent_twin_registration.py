"""The twin's slurmd, and no other, is told to register again."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from agent.twin_registration import TwinRegistration


def process(proc: Path, number: int, name: str, *words: str, conf: str | None = "/a") -> None:
    folder = proc / str(number)
    folder.mkdir(parents=True)
    (folder / "comm").write_text(f"{name}\n")
    (folder / "cmdline").write_bytes("\0".join([f"/usr/sbin/{name}", *words, ""]).encode())
    environment = ["PATH=/bin", *([f"SLURM_CONF={conf}"] if conf else []), ""]
    (folder / "environ").write_bytes("\0".join(environment).encode())


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLURM_CONF", "/a")
    process(tmp_path, 10, "slurmd", "-D", "-N", "f1", "-d", "/sbin/slurmstepd")
    process(tmp_path, 11, "slurmd", "-N", "n1")
    process(tmp_path, 12, "slurmd", "-Nf1")
    process(tmp_path, 13, "slurmd", "-N", "f1", conf="/another/cluster")
    process(tmp_path, 14, "slurmd", "-N", "f1", conf=None)
    process(tmp_path, 15, "bash", "-N", "f1")
    process(tmp_path, 16, "slurmd", "-N", "f11")
    (tmp_path / "17").mkdir()  # ended while we looked
    return tmp_path


def test_only_slurmds_of_the_twin_under_our_configuration_are_meant(proc: Path) -> None:
    assert sorted(TwinRegistration("f1", proc=proc).slurmds()) == [10, 12]


def test_a_process_whose_name_is_no_text_hides_no_slurmd(proc: Path) -> None:
    process(proc, 9, "bash")
    (proc / "9" / "comm").write_bytes(
        "a推理推理推理".encode()[:15] + b"\n"
    )  # as the kernel cuts it
    assert sorted(TwinRegistration("f1", proc=proc).slurmds()) == [10, 12]


def test_it_is_told_once_however_often_the_controller_asks(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda number, what: told.append((number, what)))
    registration = TwinRegistration("n1", proc=proc)
    for _ in range(5):
        registration.ask()
    deadline = time.monotonic() + 5
    while not told and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert told == [(11, signal.SIGHUP)]
