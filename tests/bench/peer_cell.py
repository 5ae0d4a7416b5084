"""Measures one cell without Slurm: a training and, but for `alone`, fills, as programs of ours.

All peers share the programs, the blocks and the stopwatch; what differs is the environment and what
the page says. Fill starts and warms up first, then the training; while the training lets no fill
run, the fill stands still with nothing in flight.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import outcome
from tests.bench.cells import BLOCK, DISTRIBUTED, Cell
from tests.bench.mps import MpsDaemon
from tests.bench.page import Page, Word
from tests.bench.programs import Program, Programs
from tests.bench.rate_control import Constants, Loop, LoopThread

ROOT = Path(__file__).resolve().parents[2]
POLICY_WORD = {"launch-count": 1, "rate-control": 2}
SETTLE_S = {"rate-control": 15.0}  # the loop needs some windows to find its rate
SETTLE_OTHERS_S = 1.5
SLOW_LINK = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}


@dataclass(frozen=True)
class Bench:
    """What all cells of one call share."""

    folder: Path
    rounds: int
    block: int  # 0: the workload's own
    tiny: bool
    python: str
    batch: int
    timeout_s: float
    simulated: Path | None = None  # in a dry run: a simulated libcuda.so.1

    def training(self, cell: Cell, *arguments: str) -> list[str]:
        """The command of a cell's training."""
        block = self.block or BLOCK[cell.workload]
        module = ["-m", "tests.bench.measured_training", f"--workload={cell.workload}"]
        sizes = [f"--rounds={self.rounds}", f"--block={block}", *self.dry()]
        # Iterations before the blocks cost time as well: as many as two blocks.
        sizes += [f"--alone={2 * block}", f"--profile={max(4, block)}", "--harvest-s=0"]
        launcher = [self.python, "-u"]
        if cell.workload in DISTRIBUTED:
            launcher += [
                "-m",
                "torch.distributed.run",
                "--standalone",
                f"--nproc-per-node={cell.gpus}",
            ]
        return [*launcher, *module, *sizes, *arguments]

    def fill(self, cell: Cell, report: Path, *arguments: str) -> list[str]:
        """The command of a cell's fill."""
        module = [self.python, "-u", "-m", "tests.bench.measured_fill", f"--report={report}"]
        sizes = [f"--inference={cell.inference}", f"--batch={self.batch}"]
        return [*module, *sizes, *self.dry(), *arguments]

    def dry(self) -> list[str]:
        """What makes a program's run a dry one."""
        simulated = [f"--simulated={self.simulated}"] if self.simulated else []
        return ["--tiny", *simulated] if self.tiny else []


def library() -> Path:
    """The bench's own policies, built if need be (where there is no make: as they are)."""
    build = Path(os.environ.get("BUILD", ROOT / "build"))
    library = build / "peers" / "libpeer.so"
    command = ["make", "-s", "-C", str(ROOT / "tests/bench/peers"), f"BUILD={build}"]
    if shutil.which("make") or not library.exists():
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode:
            raise RuntimeError(f"the bench's peers do not build:\n{made.stderr}")
    return library


def base_environment(cell: Cell) -> dict[str, str]:
    """What every program gets: ours, and the link that the cell asks for."""
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("LD_PRELOAD", "SFILL_"))
    }
    environment["PYTHONPATH"] = str(ROOT)
    return environment | (SLOW_LINK if cell.link == "slow" else {})


def gpu_of(rank: int) -> dict[str, str]:
    """Lets a program see one GPU only."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else None
    return {"CUDA_VISIBLE_DEVICES": names[rank] if names else str(rank)}


def policy_environment(cell: Cell, role: str) -> dict[str, str]:
    """What a role's environment needs for the cell's policy."""
    if cell.policy in POLICY_WORD:
        return {"LD_PRELOAD": str(library()), "SFILL_BENCH_ROLE": role}
    if cell.policy == "mps-low" and role == "fill":
        return {
            "CUDA_MPS_CLIENT_PRIORITY": "1",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{cell.setting('sm_percent'):g}",
        }
    return {}


def make_pages(cell: Cell, folder: Path) -> list[Page]:
    """A page for each GPU, with the policy's settings."""
    pages = [Page.create(folder / f"page.{rank}") for rank in range(cell.gpus)]
    for page in pages:
        page[Word.POLICY] = POLICY_WORD.get(cell.policy, 0)
        if cell.policy == "launch-count":
            page[Word.QUIET_NS] = int(cell.setting("quiet_us") * 1000)
            page[Word.IN_FLIGHT] = int(cell.setting("in_flight"))
    return pages


def constants(cell: Cell) -> Constants:
    """The loop's constants at a point of the grid."""
    return Constants(window_s=cell.setting("window_s"), tolerance=cell.setting("tolerance"))


def run(cell: Cell, bench: Bench, alone: Mapping[str, Any] | None) -> outcome.Result:
    """Measures; what a cell's result needs beyond its description. Raises when it can't."""
    folder = bench.folder
    pages = make_pages(cell, folder)
    report = folder / "train.json"
    with ExitStack() as stack:
        shared = base_environment(cell)
        if cell.mode == "mps":
            shared |= stack.enter_context(MpsDaemon(folder)).environment
        programs = stack.enter_context(Programs(folder))
        fills = start_fills(cell, bench, programs, shared) if cell.inference else []
        settle = SETTLE_S.get(cell.policy, SETTLE_OTHERS_S) if cell.inference else 0.0
        train = programs.start(
            "train",
            bench.training(
                cell,
                f"--report={report}",
                f"--switch={'page' if cell.inference else 'none'}",
                f"--pages={folder / 'page'}",
                f"--settle-s={settle}",
            ),
            shared | policy_environment(cell, "training"),
        )
        loops = []
        if cell.policy == "rate-control":
            loops = [Loop(page, constants(cell)) for page in pages]
            for loop in loops:
                stack.enter_context(LoopThread(loop))
        essential = [train, *fills]
        programs.wait(lambda: train.ended, bench.timeout_s, "the end of the training", essential)
        if train.code:
            raise RuntimeError(f"the training ended with {train.code}:\n{train.tail()}")
        end_fills(pages, fills)
    return collect(cell, folder, alone, loops)


def start_fills(
    cell: Cell, bench: Bench, programs: Programs, shared: Mapping[str, str]
) -> list[Program]:
    """A fill on each GPU."""
    fills = []
    for rank in range(cell.gpus):
        page, report = bench.folder / f"page.{rank}", bench.folder / f"fill.{rank}.txt"
        report.unlink(missing_ok=True)
        environment = {**shared, **policy_environment(cell, "fill"), **gpu_of(rank)}
        environment["SFILL_BENCH_PAGE"] = str(page)
        command = bench.fill(cell, report, f"--page={page}")
        fills.append(programs.start(f"fill{rank}", command, environment))
    return fills


def end_fills(pages: list[Page], fills: list[Program]) -> None:
    """Lets them end by themselves: killing a client may upset an MPS server."""
    for page in pages:
        page[Word.STOP] = 1
    for fill in fills:
        fill.end(grace_s=5.0)


def collect(
    cell: Cell, folder: Path, alone: Mapping[str, Any] | None, loops: list[Loop]
) -> outcome.Result:
    """Reads the programs' reports."""
    first = json.loads((folder / "train.json").read_text())
    result = outcome.of_training(first, cell.mode)
    if cell.inference and alone is not None:
        reports = [first, *read_other_ranks(cell, folder)]
        fills = [folder / f"fill.{rank}.txt" for rank in range(cell.gpus)]
        result |= outcome.harvested(cell.mode, reports, fills, dict(alone))
    with contextlib.suppress(IndexError):
        history = loops[0].history
        result["rate_control"] = {
            "decisions": len(history),
            "fill_rate_last": history[-1][2],
            "constants": vars(constants(cell)),
        }
    return result


def read_other_ranks(cell: Cell, folder: Path) -> list[dict[str, Any]]:
    """The reports of the training's ranks but the first."""
    files = [folder / f"train.json.{rank}" for rank in range(1, cell.gpus)]
    return [json.loads(file.read_text()) for file in files]


def inference_alone(inference: str, bench: Bench) -> dict[str, Any]:
    """Rate and GPU-busy time of a batch with the GPU to itself."""
    cell = Cell("stall", "timeslice", inference)
    report = bench.folder / "alone.json"
    report.unlink(missing_ok=True)
    with Programs(bench.folder) as programs:
        command = bench.fill(cell, report, "--profile")
        environment = base_environment(cell) | gpu_of(0)
        program = programs.start("alone", command, environment)
        programs.wait(lambda: program.ended, bench.timeout_s, "the inference alone", [])
        if program.code:
            raise RuntimeError(f"the inference alone ended with {program.code}:\n{program.tail()}")
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def default_python() -> str:
    """The interpreter that has torch."""
    return os.environ.get("SFILL_BENCH_PYTHON", sys.executable)
