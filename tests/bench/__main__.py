"""The bench: cell by cell, resumable.

    python -m tests.bench --list
    python -m tests.bench --out FOLDER [--sandbox DIR] [--seconds 540]
    python -m tests.bench --out FOLDER --report

Measures every cell that this machine can run and that is not done yet at this commit, the most
telling first, and starts none that would not end in time. Results are one JSON a cell in the
folder, and bench.json with all of them; --known takes in results of earlier sessions. --dry-run
tries all of it in tiny sizes on a CPU; with a sandbox of simulated GPUs also ours and observe.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.bench import cells, machine, outcome, peer_cell, slurm_cell
from tests.bench.cells import Cell, Machine, estimate_s
from tests.bench.cluster import commit
from tests.bench.outcome import Result, Store, describe
from tests.bench.peer_cell import Bench
from tests.bench.report import write_page, write_table

ALONE_S = 20.0
ALONE_LIMIT_S = 90.0
LEAST_LIMIT_S, LIMIT = 120.0, 2.5  # a cell that takes so many times what it should is ended
SPARE_S = 10.0


class Session:
    """One call of the bench."""

    def __init__(self, options: argparse.Namespace, store: Store, here: Machine) -> None:
        self.options, self.store, self.here = options, store, here
        self.commit = commit()
        self.began = time.monotonic()
        self.log = (store.collect / "bench-log.txt").open("a", encoding="utf-8")
        self.failures = 0

    def left_s(self) -> float:
        """Seconds until the call's end."""
        return float(self.options.seconds - (time.monotonic() - self.began))

    def say(self, line: str) -> None:
        """To the screen and into the log."""
        print(line, flush=True)
        self.log.write(line + "\n")
        self.log.flush()

    def bench(self, timeout_s: float) -> Bench:
        """What the cells share, with an empty folder."""
        options = self.options
        return Bench(
            folder=slurm_cell.fresh(options.folder),
            rounds=options.rounds,
            block=options.block,
            tiny=options.dry_run,
            python=peer_cell.default_python(),
            batch=options.batch,
            simulated=self.simulated(),
            timeout_s=timeout_s,
        )

    def estimate_s(self, cell: Cell) -> float:
        """How long the cell should take."""
        options = self.options
        return estimate_s(cell, self.store.all(), options.rounds, options.block)

    def simulated(self) -> Path | None:
        """In a dry run, the simulated driver of the sandbox."""
        options = self.options
        if not (options.dry_run and options.sandbox):
            return None
        library: Path = options.sandbox / "gpu" / "lib" / "libcuda.so.1"
        return library if library.exists() else None

    def alone(self, inference: str) -> dict[str, Any] | None:
        """The inference alone on this GPU, measured once a commit; None without an inference."""
        if not inference:
            return None
        path = self.store.folder / f"alone-{inference}.json"
        if path.exists():
            known: dict[str, Any] = json.loads(path.read_text())
            same = (known["commit"], known["gpu"], known["batch"])
            if same == (self.commit, self.here.gpu, self.options.batch):
                return known
        found = peer_cell.inference_alone(inference, self.bench(ALONE_LIMIT_S))
        found |= {"inference": inference, "gpu": self.here.gpu, "driver": self.here.driver}
        found |= {"commit": self.commit, "batch": self.options.batch}
        path.write_text(json.dumps(found, indent=1) + "\n")
        self.say(f"   {inference} alone: {found['batches_per_s']:.1f} batches/s")
        return found

    def measure(self, cell: Cell) -> Result:
        """One cell, complete. Raises when it can't be measured."""
        alone = self.alone(cell.inference)
        began = time.monotonic()
        bench = self.bench(max(LEAST_LIMIT_S, LIMIT * self.estimate_s(cell)))
        if cell.policy in cells.NEED_SLURM:
            from deploy.sandbox.jobs import Jobs

            jobs = Jobs(self.options.sandbox, bench.folder, self.options.user)
            if cell.policy == "ours":
                found = slurm_cell.run_ours(cell, bench, jobs, alone)
            else:
                found = slurm_cell.run_observe(cell, bench, jobs)
        else:
            found = peer_cell.run(cell, bench, alone)
        if found.get("bubble_share") is None and cell.policy != "observe":
            found |= self.share_of_another(cell, found, alone)
        whole = describe(cell, self.here, self.commit, self.options.dry_run) | found
        return whole | {"wall_s": round(time.monotonic() - began, 1)}

    def share_of_another(self, cell: Cell, found: Result, alone: dict[str, Any] | None) -> Result:
        """What the profiler did not see here it has seen of the same training in another cell."""
        same = (cell.workload, cell.link or None, cell.gpus, self.here.gpu)
        for each in self.store.all():
            like = (each["workload"], each["link"], each["gpus"], each["gpu"]) == same
            counts_alike = each.get("mode") == cell.mode or not cell.link
            if like and counts_alike and each.get("bubble_share"):
                share = float(each["bubble_share"])
                return outcome.with_share(found, share, str(each["cell"]), alone)
        raise RuntimeError(
            "the profiler saw no work on the GPU, and no other cell knows its bubbles"
        )

    def attempt(self, cell: Cell) -> None:
        """One cell; a failure is kept in its file and in the log, and stops nothing."""
        self.say(f"== {cell.name}")
        try:
            result = self.measure(cell)
        except Exception as error:
            self.failures += 1
            self.say(f"   failed: {error}")
            self.log.write(traceback.format_exc())
            failed = describe(cell, self.here, self.commit, self.options.dry_run)
            if not self.store.is_done(cell.name, None):
                self.store.write(cell.name, failed | {"error": str(error)[-1500:]})
            return
        self.store.write(cell.name, result)
        self.say(f"   {summary(result)}")


def summary(result: Result) -> str:
    """A cell in one line."""

    def percent(name: str) -> str:
        value = result.get(name)
        return "-" if value is None else f"{100 * value:.2f} %"

    interval = f"{percent('slowdown_lower95')} .. {percent('slowdown_upper95')}"
    return (
        f"slowdown {percent('slowdown_median')} ({interval}), control {percent('control_median')}, "
        f"harvest {percent('harvest_efficiency')}, {result['wall_s']} s"
    )


def chosen(options: argparse.Namespace, gpus: int) -> list[Cell]:
    """The cells that the filters leave."""
    return [
        cell
        for cell in cells.plan(gpus)
        if (not options.workload or cell.workload in options.workload)
        and (not options.policy or cell.policy in options.policy)
        and (not options.inference or not cell.inference or cell.inference in options.inference)
    ]


def status(cell: Cell, session_commit: str | None, store: Store, here: Machine) -> str:
    """done, why not, or to do."""
    if store.is_done(cell.name, session_commit):
        return "done"
    found = store.read(cell.name)
    state = "failed" if found and "error" in found else "to do"
    return here.why_not(cell) or state


def run_all(session: Session, todo: list[Cell], wanted_commit: str | None) -> None:
    """Measures what is to do and fits into the time."""
    options = session.options
    for cell in todo:
        if not options.again and session.store.is_done(cell.name, wanted_commit):
            continue
        reason = session.here.why_not(cell)
        if reason:
            session.say(f"== {cell.name}: {reason}")
            continue
        needed = session.estimate_s(cell) + SPARE_S
        if cell.inference and not (session.store.folder / f"alone-{cell.inference}.json").exists():
            needed += ALONE_S
        if needed > session.left_s():
            left = f"{session.left_s():.0f} s are left"
            session.say(f"== {cell.name}: would take {needed:.0f} s, {left}")
            continue
        session.attempt(cell)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--collect", type=Path, help="merged results, log and page; else --out")
    parser.add_argument("--known", type=Path, action="append", default=[], help="a bench.json")
    parser.add_argument("--sandbox", type=Path, help="running on a real GPU: ours and observe")
    parser.add_argument("--user", default="sfilluser1", help="whose jobs they are")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/sfill-bench-cell"))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time of this call")
    parser.add_argument("--rounds", type=int, default=10, help="of alternating blocks")
    parser.add_argument("--block", type=int, default=0, help="iterations; 0: the workload's own")
    parser.add_argument("--batch", type=int, default=32, help="rows of a batch of the inference")
    parser.add_argument("--gpus", type=int, default=2, help="ranks of distributed workloads")
    parser.add_argument("--workload", nargs="+", choices=cells.WORKLOADS)
    parser.add_argument("--policy", nargs="+", choices=cells.POLICIES)
    parser.add_argument("--inference", nargs="+", choices=cells.INFERENCES)
    parser.add_argument("--again", action="store_true", help="measure what is done as well")
    parser.add_argument("--any-commit", action="store_true", help="done at any commit is done")
    parser.add_argument("--list", action="store_true", help="show the cells, measure nothing")
    parser.add_argument("--report", action="store_true", help="table and page, measure nothing")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU: no figures")
    return parser.parse_args()


def main() -> int:
    """0 when no cell failed."""
    options = parse()
    # As an exception, so that programs, jobs and an MPS daemon are ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    store = Store(options.out, options.collect)
    for known in options.known:
        store.take_in(json.loads(known.read_text()))
    if options.report:
        write_table(store.all())
        print(write_page(store.all(), store.collect / "bench.html"))
        return 0
    here = machine.look(options.sandbox, peer_cell.default_python(), options.dry_run)
    wanted_commit = None if options.any_commit else commit()
    todo = chosen(options, options.gpus)
    if options.list:
        for cell in todo:
            print(f"{cell.name:60} {status(cell, wanted_commit, store, here)}")
        return 0
    session = Session(options, store, here)
    run_all(session, todo, wanted_commit)
    store.merge()
    write_table(store.all())
    print(write_page(store.all(), store.collect / "bench.html"))
    return 1 if session.failures else 0


if __name__ == "__main__":
    sys.exit(main())
