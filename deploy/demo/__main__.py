"""python -m deploy.demo SANDBOX: runs the demo on a sandbox that deploy/demo.sh has booted."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from deploy.demo import workload as workloads
from deploy.demo.record import count_uses, read_record
from deploy.demo.watch import Mark, iterations_ms, mark, rate
from deploy.sandbox.jobs import JobError, Jobs

TRAINER, FILLER = "sfilluser1", "sfilluser2"
ALIVE = ("RUNNING", "COMPLETING")
console = Console()


def say(text: str) -> None:
    console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {text}", highlight=False)


class Demo:
    """One run: alone, beside a fill, and what the ledger says."""

    def __init__(self, sandbox: Path, simulated: bool, alone_s: float, filled_s: float) -> None:
        self.sandbox = sandbox
        self.folder = sandbox / "demo"
        self.folder.mkdir(exist_ok=True)
        self.folder.chmod(0o777)
        self.trainer = Jobs(sandbox, self.folder / "train", TRAINER)
        self.filler = Jobs(sandbox, self.folder / "infer", FILLER)
        for jobs in (self.trainer, self.filler):
            jobs.folder.mkdir(exist_ok=True)
            jobs.folder.chmod(0o777)
            for old in jobs.folder.glob("*"):
                if old.is_file():
                    old.unlink()
        self.work = workloads.simulated(sandbox) if simulated else workloads.real(self.folder)
        self.source = self.filler.folder / "items.jsonl"
        workloads.write_input(self.source)
        self.database = f"sqlite:///{sandbox}/db/sfill.db"
        self.alone_s, self.filled_s = alone_s, filled_s

    def rate_alone(self) -> float:
        """Items a second of the inference with a GPU of its own and no interposer."""
        output = self.filler.folder / "alone.jsonl"
        job = self.filler.submit(
            "infer-alone",
            ["--gres=gpu:1", "--fill-host=off"],
            self.work.infer_to(self.source, output),
        )
        nothing = self.filler.folder / "none"
        try:
            self.filler.wait_for_output(job, "infer-alone", lambda: mark(nothing, output).items > 0)
            begin = mark(nothing, output)
            time.sleep(4)
            return rate(begin, mark(nothing, output))
        finally:
            self.filler.cancel(job)
            self.filler.wait(lambda: self.filler.state(job) not in ALIVE, 30, "its end")

    def run(self) -> dict[str, Any]:
        say("inference alone, on a GPU of its own ...")
        alone_rate = self.rate_alone()
        say(f"inference alone: {alone_rate:.0f} items/s")

        host = self.trainer.submit("train", ["--gres=gpu:1", "--fill-host=on"], self.work.train)
        log = self.trainer.log("train")
        output = self.filler.folder / "filled.jsonl"
        fill = 0
        try:
            self.trainer.wait_for_output(host, "train", lambda: len(iterations_ms(log)) >= 10)
            say(f"training (job {host}) runs alone for {self.alone_s:.0f} s ...")
            begin = mark(log, output)
            time.sleep(self.alone_s)
            alone_end = mark(log, output)

            options = [f"--fill=mem={self.work.fill_memory}"]
            fill = self.filler.submit("infer", options, self.work.infer_to(self.source, output))
            say(f"sbatch {options[0]} infer.sh: fill job {fill}")
            self.filler.wait_for_output(fill, "infer", lambda: mark(log, output).items > 0)
            filled_begin = mark(log, output)
            say(f"the fill runs in the training's bubbles for {self.filled_s:.0f} s ...")
            self.progress(log, output, fill)
            filled_end = mark(log, output)
            time.sleep(3)  # the last records travel to the database
            return self.result(host, fill, alone_rate, (begin, alone_end, filled_begin, filled_end))
        finally:
            self.filler.cancel(*[job for job in (fill,) if job])
            self.trainer.cancel(host)

    def audit_rows(self, fill: int) -> int:
        """Rows of the audit once the fill has ended and its last records have been stored."""
        self.filler.wait(lambda: self.filler.state(fill) not in ALIVE, 30, "the fill's end")
        rows, before = count_uses(self.database, fill), -1
        while rows != before:
            time.sleep(1.5)  # agents report every half second
            rows, before = count_uses(self.database, fill), rows
        return rows

    def progress(self, log: Path, output: Path, fill: int) -> None:
        until = time.monotonic() + self.filled_s
        last = mark(log, output)
        while time.monotonic() < until:
            time.sleep(min(5.0, max(0.5, until - time.monotonic())))
            now = mark(log, output)
            uses = count_uses(self.database, fill)
            say(f"  fill {rate(last, now):6.0f} items/s, {uses} bubbles used so far")
            last = now

    def result(
        self, host: int, fill: int, alone_rate: float, marks: tuple[Mark, Mark, Mark, Mark]
    ) -> dict[str, Any]:
        begin, alone_end, filled_begin, filled_end = marks
        times = iterations_ms(self.trainer.log("train"))
        alone_ms = statistics.median(times[begin.iterations : alone_end.iterations])
        filled_ms = statistics.median(times[filled_begin.iterations + 1 : filled_end.iterations])
        span_us = filled_end.at_us - filled_begin.at_us
        record = read_record(
            self.database, host, fill, begin.at_us, filled_begin.at_us, filled_end.at_us
        )
        bubble_us = record.bubble_share * span_us if record.bubble_share else None
        status = json.loads(self.filler.slurm("sfill", "status", "--json"))
        result: dict[str, Any] = {
            "gpu": gpu_name(status),
            "simulated": self.work.simulated,
            "slurm": self.trainer.slurm("sbatch", "--version").removeprefix("slurm-wlm ").strip(),
            "train": {
                "job_id": host,
                "median_ms_alone": alone_ms,
                "median_ms_filled": filled_ms,
                "slowdown": filled_ms / alone_ms - 1,
            },
            "fill": {
                "job_id": fill,
                "rate_alone": alone_rate,
                "rate_filled": rate(filled_begin, filled_end),
                "bubbles_used": record.bubbles,
                "gpu_time_s": record.gpu_time_us / 1e6,
            },
            "bubble_share": record.bubble_share,
            "filled_share_of_bubbles": record.gpu_time_us / bubble_us if bubble_us else None,
            "intrusion_fraction": record.intrusion_us / span_us,
        }
        if self.work.simulated:
            result["driver_log"] = driver_log(self.sandbox, host, fill, filled_begin, filled_end)
        return result


def gpu_name(status: Any) -> str:
    """The first GPU's name in `sfill status --json`."""
    rows = status if isinstance(status, list) else status.get("gpus", [])
    return str(rows[0]["name"]) if rows else "unknown"


def driver_log(sandbox: Path, host: int, fill: int, begin: Mark, end: Mark) -> dict[str, float]:
    """The same figures by the simulated driver's own log, which our ledger must agree with."""
    from deploy.demo.driver_log import figures

    return figures(sandbox, host, fill, int(begin.at_s * 1e9), int(end.at_s * 1e9))


def percent(value: float | None) -> str:
    return "not known" if value is None else f"{100 * value:.2f} %"


def show(result: dict[str, Any], audit: str, dashboard: str) -> None:
    table = Table(title=f"{result['gpu']}, Slurm {result['slurm']}", title_justify="left")
    table.add_column("what")
    table.add_column("alone", justify="right")
    table.add_column("beside fill", justify="right")
    train, fill = result["train"], result["fill"]
    table.add_row(
        "training, ms an iteration (median)",
        f"{train['median_ms_alone']:.2f}",
        f"{train['median_ms_filled']:.2f} ({100 * train['slowdown']:+.2f} %)",
    )
    table.add_row("inference, items/s", f"{fill['rate_alone']:.0f}", f"{fill['rate_filled']:.0f}")
    table.add_row("bubble share of the training", percent(result["bubble_share"]), "")
    table.add_row("bubble time filled", "", percent(result["filled_share_of_bubbles"]))
    table.add_row("intrusion (ready training waited)", "", percent(result["intrusion_fraction"]))
    table.add_row(
        "bubbles used / GPU time", "", f"{fill['bubbles_used']} / {fill['gpu_time_s']:.2f} s"
    )
    if "driver_log" in result:
        log = result["driver_log"]
        table.add_row("  by the driver's log: bubbles filled", "", percent(log["filled_share"]))
        table.add_row("  by the driver's log: waited for fill", "", percent(log["waited_fraction"]))
    console.print(table)
    if result["simulated"]:
        console.print("The GPU is simulated: this shows the path and says nothing of speed.")
    console.print("the newest lines of the audit (sfill audit):")
    print(audit)
    console.print(f"dashboard: {dashboard}", highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sandbox", type=Path)
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--dashboard", default="")
    parser.add_argument("--alone-s", type=float, default=8.0)
    parser.add_argument("--filled-s", type=float, default=20.0)
    options = parser.parse_args()
    demo = Demo(options.sandbox, options.simulated, options.alone_s, options.filled_s)
    try:
        result = demo.run()
        result["audit_rows"] = demo.audit_rows(result["fill"]["job_id"])
        result["dashboard"] = options.dashboard
        audit = demo.filler.slurm(
            *("env", "COLUMNS=180", "sfill", "audit"),
            *("--fill-job", str(result["fill"]["job_id"]), "--limit", "5"),
        )
    except JobError as error:
        raise SystemExit(f"demo: {error}") from error
    show(result, audit, options.dashboard)
    target = options.sandbox / "demo-result.json"
    target.write_text(json.dumps(result, indent=1) + "\n")
    print(target)


if __name__ == "__main__":
    main()
