"""A training that grows into fill's memory, and an endless fill kernel beside it, on a real GPU.

    python -m tests.hardware.rescue --sandbox DIR --out FOLDER

needs a sandbox on a real GPU (tests/hardware/run.sh, stage `rescue`). Writes and prints two JSONs:
rescue.json (losses with and without fill compared to the bit, how long the allocation took) and
endless.json (how long until the kernel was evicted, what training lost by its own clock, what our
ledger booked). Fails when a loss differs, or when either eviction is missing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, select

from db.models import Event, HostJob
from deploy.sandbox.jobs import Jobs
from tests.bench.cluster import REPOSITORY, commit, prepare, submit

DETERMINISTIC = "export CUBLAS_WORKSPACE_CONFIG=:4096:8"
HOST = ["--gres=gpu:1", "--exclusive", "--mem=0", "-t", "10"]
GIB = 1 << 30


def train(bench: Jobs, name: str, mode: str, sizes: list[str], *more: str) -> int:
    """Submits the growing training; its report is NAME.json."""
    report = f"--report={bench.folder / name}.json"
    options = [*HOST, f"--fill-host={mode}"]
    module = "tests.hardware.growing_training"
    return submit(bench, name, options, module, report, *sizes, *more, setup=DETERMINISTIC)


def fill(bench: Jobs, name: str, memory: str, *more: str) -> int:
    """Submits a fill; it writes NAME.txt when it has what it wants."""
    report = f"--report={bench.folder / name}.txt"
    options = [f"--fill=mem={memory}", "-t", "10"]
    return submit(bench, name, options, "tests.hardware.unwelcome_fill", report, *more)


def events(bench: Jobs, what: str) -> list[tuple[int, str]]:
    """(UTC microseconds, text) of the events of one kind in the ledger, oldest first."""
    engine = create_engine(f"sqlite:///{bench.sandbox}/db/sfill.db")
    with engine.connect() as connection:
        rows = connection.execute(
            select(Event.at_us, Event.text).where(Event.what == what).order_by(Event.at_us)
        )
        return [(int(at), str(text)) for at, text in rows]


def intrusion_s(bench: Jobs, job_id: int) -> float:
    """What the ledger has booked for a host job."""
    engine = create_engine(f"sqlite:///{bench.sandbox}/db/sfill.db")
    with engine.connect() as connection:
        where = HostJob.slurm_job_id == job_id
        return (
            float(connection.execute(select(HostJob.intrusion_us).where(where)).scalar() or 0) / 1e6
        )


def iterations(path: Path) -> list[tuple[int, float]]:
    """(CLOCK_MONOTONIC at its end, milliseconds) of each iteration."""
    rows = [line.split() for line in path.read_text().splitlines()]
    return [(int(row[0]), float(row[1])) for row in rows if len(row) == 2]


def sizes_for(total_gib: int) -> tuple[int, list[str]]:
    """What a fill holds, and the training's options: together more than the GPU has."""
    fill_gib = total_gib // 4
    hold = total_gib // 3
    grow = total_gib - hold - fill_gib + fill_gib // 2
    return fill_gib, [f"--hold-gib={hold}", f"--grow-gib={min(grow, total_gib - hold - 8)}"]


def alone(bench: Jobs, sizes: list[str]) -> list[dict[str, Any]]:
    """The training twice without fill and without interposer."""
    job = train(bench, "alone", "off", sizes, "--repeats=2")
    bench.wait_ended(job, 90, "alone")
    found: list[dict[str, Any]] = json.loads((bench.folder / "alone.json").read_text())
    return found


def rescue(
    bench: Jobs, stay: Path, fill_gib: int, expected: list[dict[str, Any]]
) -> dict[str, Any]:
    """Lets the waiting training grow while a fill holds its memory."""
    job = fill(bench, "holder", f"{fill_gib + 4}G", f"--hold-gib={fill_gib}")
    bench.wait_for_output(job, "holder", (bench.folder / "holder.txt").exists)
    (stay / "go").touch()
    report = bench.folder / "grown.json"
    bench.wait(report.exists, 60, "the training to grow")
    bench.wait(lambda: bool(events(bench, "rescue")), 10, "the rescue in the ledger")
    state = bench.state(job)
    bench.cancel(job)
    [run] = json.loads(report.read_text())
    return {
        "what": "a training grows into the memory that a fill holds",
        "fill_held_gib": fill_gib,
        "losses": len(run["losses"]),
        "alone_equals_alone": expected[0]["losses"] == expected[1]["losses"],
        "filled_equals_alone": run["losses"] == expected[0]["losses"],
        "allocation_s": run["grow_s"],
        "allocation_alone_s": expected[0]["grow_s"],
        "free_gib_that_training_saw": run["free_gib"],
        "free_gib_alone": expected[0]["free_gib"],
        "fill_state_afterwards": state,
        "events": [text for _, text in events(bench, "rescue")],
    }


def endless(bench: Jobs, stay: Path) -> dict[str, Any]:
    """Has a fill launch a kernel without an end beside the training that goes on."""
    known = len(events(bench, "evicted"))
    job = fill(bench, "endless", "4G", "--endless")
    launched = bench.folder / "endless.txt"
    bench.wait_for_output(job, "endless", lambda: launched.exists() and bool(launched.read_text()))
    began_ns = int(launched.read_text().split()[0])  # now: the job is requeued
    bench.wait(lambda: len(events(bench, "evicted")) > known, 40, "the eviction")
    bench.wait(lambda: bool(events(bench, "estimated")), 20, "the fill's process to end")
    ended_ns = events(bench, "estimated")[-1][0] * 1000 - (time.time_ns() - time.monotonic_ns())
    time.sleep(2)  # some iterations after it, and the ledger's last reports
    (stay / "end").touch()
    bench.cancel(job)
    rows = iterations(stay / "iterations.txt")
    during = [ms for at, ms in rows if began_ns < at <= ended_ns + 200_000_000]
    others = [ms for at, ms in rows if not began_ns < at <= ended_ns + 200_000_000]
    usual = statistics.median(others)
    at_us, reason = events(bench, "evicted")[-1]
    return {
        "what": "a fill kernel that does not end",
        "reason": reason,
        "evicted_after_s": (at_us * 1000 - (time.time_ns() - time.monotonic_ns()) - began_ns) / 1e9,
        "gone_after_s": (ended_ns - began_ns) / 1e9,
        "iteration_usual_ms": usual,
        "iteration_beside_ms": statistics.median(during) if during else None,
        "training_lost_s": sum(ms - usual for ms in during) / 1e3,
        "events": [text for _, text in events(bench, "estimated") + events(bench, "stuck")],
    }


def write(out: Path, name: str, result: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1)
    (out / f"{name}.json").write_text(text + "\n")
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sandbox", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/sfill-rescue"))
    parser.add_argument("--user", default="sfilluser1")
    parser.add_argument("--driver", default="")
    parser.add_argument("--gpu-gib", type=int, default=0, help="memory of the GPU; 0: ask NVML")
    options = parser.parse_args()
    bench = Jobs(options.sandbox, options.folder, options.user)
    stay = options.folder / "stay"
    shutil.rmtree(options.folder, ignore_errors=True)
    shutil.copytree(REPOSITORY / "tests/hardware", options.folder / "code/tests/hardware")
    stay.mkdir()
    prepare(bench)
    fill_gib, sizes = sizes_for(options.gpu_gib or gpu_gib())
    about = {"commit": commit(), "driver": options.driver}
    expected = alone(bench, sizes)
    host = train(bench, "grown", "on", sizes, f"--stay={stay}")
    try:
        bench.wait_for_output(host, "grown", (stay / "ready").exists)
        grown = rescue(bench, stay, fill_gib, expected)
        write(options.out, "rescue", {**about, **grown})
        stood = endless(bench, stay)
        bench.wait_ended(host, 30, "grown")
        time.sleep(2)  # the job's last record is on its way
        stood["ledger_intrusion_of_the_whole_job_s"] = intrusion_s(bench, host)
        write(options.out, "endless", {**about, **stood})
    finally:
        bench.cancel(host)
    return 0 if grown["alone_equals_alone"] and grown["filled_equals_alone"] else 1


def gpu_gib() -> int:
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0]) // 1024


if __name__ == "__main__":
    sys.exit(main())
