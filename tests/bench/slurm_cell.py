"""Measures one cell of the product: jobs of a sandbox's Slurm, as users run them.

`ours`: a host job, and a fill job on each of its GPUs; blocks are switched with specinf_lend.
`observe`: what the monitor alone costs. A training under it and two without it are alive at once
and take turns on the GPU, block by block in random order; the second plain one is the control.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, func, select

from db.models import BubbleUse, HostJob
from deploy.sandbox.jobs import UNFINISHED, JobError, Jobs
from tests.bench import outcome
from tests.bench.cells import DISTRIBUTED, Cell
from tests.bench.cluster import prepare, submit
from tests.bench.harvest import Stretch
from tests.bench.page import Page, Word
from tests.bench.peer_cell import (
    SLOW_LINK,
    Bench,
    base_environment,
    gpu_of,
    policy_environment,
    read_other_ranks,
)
from tests.bench.programs import Programs

FILL = ["--fill=mem=16G", "-t", "20"]
# A fill's first ten seconds have more hold-outs than the rest (calibration).
SETTLE_S = 12.0
PROFILE_S, FILL_S, TURN_S, END_S = 90, 90, 60, 20
FILL_GOING_BYTES = 400
TURNS = ("observed", "plain", "control")


def host_options(cell: Cell, mode: str) -> list[str]:
    """sbatch options of the training."""
    return [f"--gres=gpu:{cell.gpus}", "--exclusive", "--mem=0", "-t", "20", f"--fill-host={mode}"]


def link_setup(cell: Cell) -> str:
    """Shell lines for the link that the cell asks for."""
    return "\n".join(f"export {k}={v}" for k, v in SLOW_LINK.items()) if cell.link == "slow" else ""


def submit_training(cell: Cell, bench: Bench, jobs: Jobs, mode: str, *arguments: str) -> int:
    """The training as a host job; its id."""
    command = bench.training(cell, *arguments)
    at = command.index("-m")
    options = host_options(cell, mode)
    rest = command[at + 2 :]
    return submit(jobs, "train", options, command[at + 1], *rest, setup=link_setup(cell))


def run_ours(
    cell: Cell, bench: Bench, jobs: Jobs, alone: Mapping[str, Any] | None
) -> outcome.Result:
    """Measures policy `ours`. Raises when it can't."""
    prepare(jobs)
    folder = jobs.folder
    report, go = folder / "train.json", folder / "go"
    fills = [folder / f"fill.{rank}.txt" for rank in range(cell.gpus)]
    for old in (report, go, *fills):
        old.unlink(missing_ok=True)
    arguments = [f"--report={report}", f"--go={go}", f"--settle-s={SETTLE_S}", "--switch=lend"]
    train = submit_training(cell, bench, jobs, "on", *arguments)
    started = [train]
    try:
        jobs.wait_for_output(train, "train", report.exists, PROFILE_S)
        for rank, fill in enumerate(fills):
            command = bench.fill(cell, fill)
            at = command.index("-m")
            started.append(submit(jobs, f"fill{rank}", FILL, command[at + 1], *command[at + 2 :]))
        jobs.wait(lambda: all(is_going(fill) for fill in fills), FILL_S, "fills to get going")
        go.touch()
        jobs.wait_ended(train, bench.timeout_s, "train")
    finally:
        end_jobs(jobs, started)
    first = json.loads(report.read_text())
    result = outcome.of_training(first, cell.mode)
    if alone is not None:
        reports = [first, *read_other_ranks(cell, folder)]
        result |= outcome.harvested(cell.mode, reports, fills, dict(alone))
    return result | ledger(
        jobs, train, first["filled_ns"], cell.gpus, result["bubble_share"] or 0.0
    )


def end_jobs(jobs: Jobs, started: list[int]) -> None:
    """Cancels, fills first, and waits until they have left the GPU to the next cell."""
    jobs.cancel(*reversed(started))
    for job in started:
        with contextlib.suppress(JobError):
            jobs.wait(partial(has_ended, jobs, job), END_S, "a job's end")


def has_ended(jobs: Jobs, job: int) -> bool:
    """Whether Slurm has done with it."""
    return jobs.state(job) not in UNFINISHED


def is_going(report: Path) -> bool:
    """Whether a fill has done some batches."""
    return report.exists() and report.stat().st_size > FILL_GOING_BYTES


def ledger(
    jobs: Jobs, job_id: int, stretches: list[Stretch], gpus: int, share: float
) -> outcome.Result:
    """What our database says of a host job's bubbles in those stretches."""
    to_utc_ns = time.time_ns() - time.monotonic_ns()
    uses, gpu_us, intrusion_us, kernels = 0, 0.0, 0.0, 0
    engine = create_engine(f"sqlite:///{jobs.sandbox}/db/sfill.db")
    with engine.connect() as connection:
        for begin_ns, end_ns in stretches:
            row = connection.execute(
                select(
                    func.count(),
                    func.coalesce(func.sum(BubbleUse.gpu_time_us), 0),
                    func.coalesce(func.sum(BubbleUse.intrusion_us), 0),
                    func.coalesce(func.sum(BubbleUse.kernels), 0),
                ).where(
                    BubbleUse.host_slurm_job_id == job_id,
                    BubbleUse.first_release_at_us >= (begin_ns + to_utc_ns) // 1000,
                    BubbleUse.first_release_at_us < (end_ns + to_utc_ns) // 1000,
                )
            ).one()
            uses += int(row[0])
            gpu_us += float(row[1])
            intrusion_us += float(row[2])
            kernels += int(row[3])
        calibrated = connection.execute(
            select(HostJob.calibrated_slowdown).where(HostJob.slurm_job_id == job_id)
        ).scalar()
    seconds = sum(end - begin for begin, end in stretches) / 1e9
    bubble_s = seconds * share * gpus
    return {
        "uses": uses,
        "kernels": kernels,
        "intrusion_fraction": intrusion_us / 1e6 / seconds,
        "harvest_efficiency_ledger": gpu_us / 1e6 / bubble_s if bubble_s else None,
        "calibrated_slowdown": calibrated,
    }


def run_observe(cell: Cell, bench: Bench, jobs: Jobs) -> outcome.Result:
    """Measures policy `observe`. Raises when it can't."""
    prepare(jobs)
    folder = jobs.folder
    pages = {who: [turn_page(folder, who, rank) for rank in range(cell.gpus)] for who in TURNS}
    reports = {who: folder / f"{who}.json" for who in TURNS}
    for report in reports.values():
        report.unlink(missing_ok=True)

    def arguments(who: str) -> list[str]:
        return ["--turns", f"--report={reports[who]}", f"--pages={folder / f'turns-{who}'}"]

    watched = submit_training(cell, bench, jobs, "observe", *arguments("observed"))
    try:
        with Programs(folder) as programs:
            environment = base_environment(cell) | policy_environment(cell, "training")
            if cell.workload not in DISTRIBUTED:
                environment |= gpu_of(0)
            for who in TURNS[1:]:
                programs.start(who, bench.training(cell, *arguments(who)), environment)
            every = [page for who in TURNS for page in pages[who]]
            plain = list(programs.started)
            programs.wait(
                lambda: all(page[Word.FREE_RATE] for page in every),
                PROFILE_S,
                "three trainings to warm up",
                plain,
            )
            take_turns(pages, bench.rounds)
            for page in every:
                page[Word.STOP] = 1
            programs.wait(
                lambda: all(program.ended for program in plain),
                TURN_S,
                "the plain trainings to end",
                [],
            )
            jobs.wait_ended(watched, TURN_S, "train")
    finally:
        end_jobs(jobs, [watched])
    turns = {who: json.loads(reports[who].read_text()) for who in TURNS}
    blocks = {who: turns[who]["turns"] for who in TURNS}
    return {
        "torch": turns["plain"]["torch"],
        **outcome.cost(blocks["observed"], blocks["plain"]),
        **outcome.control(blocks["control"], blocks["plain"]),
        "block": len(blocks["plain"][0]),
    }


def turn_page(folder: Path, who: str, rank: int) -> Page:
    """A fresh page for one rank of one of the trainings that take turns."""
    path = folder / f"turns-{who}.{rank}"
    path.unlink(missing_ok=True)
    return Page.create(path)


def take_turns(pages: Mapping[str, list[Page]], rounds: int) -> None:
    """Gives every training one block a round, in random order, one at a time."""
    order = random.Random(5)
    for _ in range(rounds):
        turns = list(TURNS)
        order.shuffle(turns)
        for who in turns:
            for run in (True, False):
                for page in pages[who]:
                    page.order(run)
                for page in pages[who]:
                    page.wait_obeyed(TURN_S)


def fresh(folder: Path) -> Path:
    """An empty folder that jobs of any user may write to."""
    shutil.rmtree(folder, ignore_errors=True)
    for left in Path("/dev/shm").glob("sfill-bench-state-*"):  # by a training that was killed
        left.unlink(missing_ok=True)
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    return folder
