"""The bench goes on where it stopped, keeps to its time, and survives a cell that fails."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.bench import __main__ as bench
from tests.bench import machine, peer_cell
from tests.bench.cells import GRID, INFERENCES, PEERS, WORKLOADS, Cell, Machine, estimate_s, plan
from tests.bench.mps import is_alive
from tests.bench.outcome import Store
from tests.bench.peer_cell import ROOT, Bench

ALONE = {"batches_per_s": 100.0, "busy_us_per_batch": 9000.0}
FIGURES = {
    "torch": "2.11",
    "pairs": 10,
    "slowdown_median": 0.1,
    "slowdown_lower95": 0.09,
    "slowdown_upper95": 0.11,
    "slowdown_p95": 0.2,
    "control_median": 0.0,
    "bubble_share": 0.5,
    "harvest_efficiency": 0.8,
    "rate_ratio": 0.8,
    "fill_rate_by_gpu": [40.0],
    "block": 8,
}


class Fake:
    """Stands for the measuring: notes what was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, out: Path) -> None:
        self.measured: list[str] = []
        self.alone: list[str] = []
        self.failing: set[str] = set()
        self.blind: set[str] = set()  # cells whose profiler sees nothing
        self.commit = "abc1234"
        self.out = out
        self.here = Machine("NVIDIA H200", "580", 1, mps=True)
        self._patch = monkeypatch
        monkeypatch.setattr(peer_cell, "run", self._run)
        monkeypatch.setattr(peer_cell, "inference_alone", self._alone)
        monkeypatch.setattr(machine, "look", lambda *_: self.here)
        monkeypatch.setattr(bench, "commit", lambda: self.commit)

    def _run(self, cell: Cell, _: Bench, alone: Mapping[str, Any] | None) -> dict[str, Any]:
        assert (alone is None) == (not cell.inference)
        self.measured.append(cell.name)
        if cell.name in self.failing:
            raise RuntimeError("the GPU fell off the bus")
        return FIGURES | ({"bubble_share": None} if cell.name in self.blind else {})

    def _alone(self, inference: str, _: Bench) -> dict[str, Any]:
        self.alone.append(inference)
        return dict(ALONE)

    def call(self, *arguments: str) -> int:
        """One call of the bench; what was measured before is forgotten."""
        self.measured.clear()
        self.alone.clear()
        words = ["bench", f"--out={self.out}", f"--folder={self.out / 'cell'}", *arguments]
        self._patch.setattr(sys, "argv", words)
        return bench.main()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fake:
    return Fake(monkeypatch, tmp_path / "out")


TIMESLICE = ("--workload", "stall", "--policy", "timeslice", "mps")
TWO = ["stall-timeslice-transformer", "stall-mps-transformer"]


def test_what_is_done_at_this_commit_is_not_measured_again(fake: Fake) -> None:
    only = (*TIMESLICE, "--inference", "transformer")
    assert fake.call(*only) == 0
    assert fake.measured == TWO
    assert fake.alone == ["transformer"]  # once for all cells
    assert fake.call(*only) == 0
    assert (fake.measured, fake.alone) == ([], [])
    assert fake.call(*only, "--again") == 0
    assert fake.measured == TWO


def test_another_commit_is_measured_anew_unless_any_will_do(fake: Fake) -> None:
    only = (*TIMESLICE, "--inference", "transformer")
    fake.call(*only)
    fake.commit = "def5678"
    fake.call(*only, "--any-commit")
    assert fake.measured == []
    fake.call(*only)
    assert (fake.measured, fake.alone) == (TWO, ["transformer"])


def test_a_cell_that_fails_stops_no_other_and_is_tried_again(fake: Fake) -> None:
    only = (*TIMESLICE, "--inference", "transformer")
    fake.failing.add(TWO[0])
    assert fake.call(*only) == 1
    assert fake.measured == TWO
    kept = Store(fake.out).read(TWO[0])
    assert kept is not None
    assert kept["error"] == "the GPU fell off the bus"
    assert "Traceback" in (fake.out / "bench-log.txt").read_text()
    fake.failing.clear()
    assert fake.call(*only) == 0
    assert fake.measured == [TWO[0]]


def test_a_failure_does_not_replace_a_result(fake: Fake) -> None:
    only = (*TIMESLICE, "--inference", "transformer")
    fake.call(*only)
    fake.failing.add(TWO[0])
    fake.call(*only, "--again")
    kept = Store(fake.out).read(TWO[0])
    assert kept is not None
    assert kept["slowdown_median"] == 0.1


def test_no_cell_is_begun_that_would_not_end_in_time(fake: Fake) -> None:
    assert fake.call(*TIMESLICE, "--seconds", "40") == 0
    assert fake.measured == []
    fake.call("--workload", "stall", "--policy", "timeslice", "--seconds", "100")
    assert fake.measured[0] == TWO[0]


def test_cells_that_the_machine_cannot_run_are_named_and_passed_over(
    fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fake.call("--policy", "timeslice", "ours", "--inference", "transformer") == 0
    assert {name.split("-")[0] for name in fake.measured} == {"stall", "dataload", "checkpoint"}
    said = capsys.readouterr().out
    assert "pp-2gpus-slow-timeslice-transformer: needs 2 GPUs" in said
    assert "stall-ours-transformer: needs a sandbox (--sandbox)" in said
    fake.here = Machine("", "", 0)
    fake.call("--again")
    assert fake.measured == []


def test_results_of_earlier_sessions_are_taken_in_and_merged(fake: Fake, tmp_path: Path) -> None:
    only = (*TIMESLICE, "--inference", "transformer")
    fake.call(*only)
    merged = tmp_path / "earlier.json"
    merged.write_text((fake.out / "bench.json").read_text())
    fake.out = tmp_path / "fresh"
    fake.call("--known", str(merged), "--workload", "dataload", "--policy", "timeslice")
    names = {each["cell"] for each in json.loads((fake.out / "bench.json").read_text())}
    assert {*TWO, "dataload-timeslice-transformer"} <= names
    assert not {*TWO} & {*fake.measured}


def test_a_file_cut_off_half_way_counts_as_not_done(fake: Fake) -> None:
    only = (*TIMESLICE, "--inference", "transformer")
    fake.call(*only)
    path = Store(fake.out).path(TWO[1])
    path.write_text(path.read_text()[:40])
    fake.call(*only)
    assert fake.measured == [TWO[1]]


def test_the_list_shows_what_is_done(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    fake.call("--workload", "stall", "--policy", "timeslice", "--inference", "transformer")
    capsys.readouterr()
    fake.call(*TIMESLICE, "--inference", "transformer", "--list")
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert [[name, state.strip()] for name, state in lines] == [[TWO[0], "done"], [TWO[1], "to do"]]


def test_the_plan_has_every_policy_on_every_workload_once_and_the_most_telling_first() -> None:
    cells = plan()
    assert len(cells) == len({cell.name for cell in cells})
    first = [(cell.workload, cell.policy) for cell in cells[: 1 + sum(len(GRID[p]) for p in PEERS)]]
    assert first[0] == ("stall", "ours")
    assert {policy for _, policy in first} == {"ours", *PEERS}
    assert {workload for workload, _ in first} == {"stall"}
    for workload in WORKLOADS:
        for policy in (*PEERS, "ours"):
            beside = {c.inference for c in cells if (c.workload, c.policy) == (workload, policy)}
            assert beside == set(INFERENCES)
        assert {c.policy for c in cells if c.workload == workload} >= {"alone", "observe"}


def test_every_result_has_the_published_fields(fake: Fake) -> None:
    fake.call("--workload", "stall", "--policy", "timeslice", "--inference", "transformer")
    (kept,) = json.loads((fake.out / "bench.json").read_text())
    fields = "workload policy inference mode gpu driver cuda torch commit pairs slowdown_median "
    fields += "slowdown_upper95 slowdown_p95 harvest_efficiency rate_ratio bubble_share "
    fields += "intrusion_fraction settings"
    assert set(fields.split()) <= set(kept)
    assert kept["intrusion_fraction"] is None  # only our own ledger knows one


def test_a_measured_cell_corrects_the_estimate() -> None:
    cell = Cell("stall", "mps", "transformer")
    known = [{"workload": "stall", "policy": "mps", "wall_s": 33.0, "pairs": 10, "block": 8}]
    assert estimate_s(cell, known, 10) == pytest.approx(33.0)
    assert 33 < estimate_s(cell, known, 20) < 66  # starts take no longer
    assert estimate_s(cell, known, 20) == estimate_s(cell, known, 10, block=16)
    assert estimate_s(cell, [], 20) > estimate_s(cell, [], 10)


def test_a_cell_without_a_bubble_share_takes_that_of_the_same_training(fake: Fake) -> None:
    only = (*TIMESLICE, "--inference", "transformer")
    fake.blind.add(TWO[1])
    fake.call(*only)
    kept = Store(fake.out).read(TWO[1])
    assert kept is not None
    assert (kept["bubble_share"], kept["bubble_share_from"]) == (0.5, TWO[0])
    fake.blind.add(TWO[0])
    fake.out = fake.out / "other"
    assert fake.call(*only) == 1  # nobody knows it


ENDLESS = """
import os, sys
from tests.bench import __main__ as bench, machine, peer_cell
from tests.bench.cells import Machine
from tests.bench.programs import Programs

def run(cell, shared, alone):
    with Programs(shared.folder) as programs:
        code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
        train = programs.start("train", [sys.executable, "-c", code], dict(os.environ))
        programs.wait(lambda: bool(train.tail()), 30, "its number", [train])
        print("pid", train.tail(), flush=True)
        programs.wait(lambda: train.ended, 60, "the end", [train])

peer_cell.run = run
machine.look = lambda *_: Machine("NVIDIA H200", "580", 1)
bench.main()
"""


def test_a_bench_that_is_ended_ends_what_it_started(tmp_path: Path) -> None:
    words = ["--policy", "alone", "--workload", "stall", f"--out={tmp_path / 'out'}"]
    command = [sys.executable, "-c", ENDLESS, *words, f"--folder={tmp_path / 'cell'}"]
    called = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert called.stdout is not None
    pid = next(int(line.split()[1]) for line in called.stdout if line.startswith("pid "))
    assert is_alive(pid)
    called.terminate()
    called.wait(20)
    assert not is_alive(pid)
