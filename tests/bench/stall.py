"""Measures the host-stall workload on a real GPU: what filling costs, what it yields.

    python -m tests.bench.stall --sandbox DIR --out FOLDER

needs a sandbox that runs on a real GPU (deploy/sandbox/up DIR --gpus real). Steps: inference alone
(rate, GPU-busy time of a batch); one training process with profile, harvest and alternating blocks;
the same training without interposer and with interposer + fill, A B A B. One JSON and one table.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from deploy.sandbox.jobs import JobError, Jobs
from tests.bench.cluster import commit, prepare, submit
from tests.bench.harvest import Progress, harvest, rate
from tests.bench.slurm_cell import FILL, ledger
from tests.bench.statistics import slowdown

HOST = ["--gres=gpu:1", "--exclusive", "--mem=0", "-t", "20"]
ALONE_S = 8


def read(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    return result


DESCRIPTIONS = {
    "transformer": "12-layer transformer, eager, bfloat16, batch {} x 256",
    "decode-graph": "decoder of 16 layers, one CUDA graph a token, bfloat16, 16 sequences",
    "transformer-graph": "12-layer transformer, one CUDA graph a batch, bfloat16, batch {} x 256",
}


def inference_alone(bench: Jobs, fill: list[str]) -> dict[str, float]:
    """Rate and GPU-busy time of a batch on a GPU of its own, no interposer."""
    report = bench.folder / "infer_alone.json"
    options = [*HOST, "--fill-host=off"]
    job = submit(
        bench,
        "infer_alone",
        options,
        "tests.bench.measured_fill",
        f"--report={report}",
        *fill,
        "--profile",
        f"--seconds={ALONE_S}",
    )
    bench.wait_ended(job, 120, "infer_alone")
    return read(report)


def submit_fill(bench: Jobs, name: str, report: Path, fill: list[str]) -> int:
    """A fill job that saturates: its id. `fill`: arguments of measured_fill."""
    return submit(bench, name, FILL, "tests.bench.measured_fill", f"--report={report}", *fill)


def wait_for_fill(bench: Jobs, report: Path) -> None:
    """Waits until a fill has done some hundred batches."""
    bench.wait(lambda: report.exists() and report.stat().st_size > 2000, 90, "fill to get going")


def filled_training(
    bench: Jobs, rounds: int, inference: list[str]
) -> tuple[dict[str, Any], int, Path]:
    """The measured training with a fill beside it: its report, job id and the fill's report."""
    report, go = bench.folder / "train.json", bench.folder / "go"
    fill_report = bench.folder / "fill.txt"
    go.unlink(missing_ok=True)
    report.unlink(missing_ok=True)
    job = submit(
        bench,
        "train",
        [*HOST, "--fill-host=on"],
        "tests.bench.measured_training",
        f"--report={report}",
        f"--go={go}",
        f"--rounds={rounds}",
    )
    bench.wait(report.exists, 90, "the training's profile")
    fill = submit_fill(bench, "fill", fill_report, inference)
    try:
        wait_for_fill(bench, fill_report)
        go.touch()
        bench.wait_ended(job, 60 + rounds * 12, "train")
    finally:
        bench.cancel(fill, job)
    return read(report), job, fill_report


def one_of_a_pair(bench: Jobs, name: str, iterations: int, fill: list[str] | None) -> float:
    """Median iteration of one short training, in ms. `fill`: with interposer and such a fill."""
    report, go = bench.folder / f"{name}.json", bench.folder / f"{name}.go"
    fill_report = bench.folder / f"{name}.txt"
    mode = "--fill-host=off" if fill is None else "--fill-host=on"
    arguments = [f"--report={report}", f"--plain={iterations}"]
    jobs = []
    if fill is not None:
        arguments.append(f"--go={go}")
        jobs.append(submit_fill(bench, f"fill-{name}", fill_report, fill))
    jobs.append(submit(bench, name, [*HOST, mode], "tests.bench.measured_training", *arguments))
    try:
        if fill is not None:
            wait_for_fill(bench, fill_report)
            go.touch()
        bench.wait_ended(jobs[-1], 120, name)
    finally:
        bench.cancel(*jobs)
    iterations_ms: list[float] = read(report)["plain_ms"]
    return statistics.median(iterations_ms)


def against_none(bench: Jobs, pairs: int, iterations: int, fill: list[str]) -> dict[str, Any]:
    """The same training without the interposer and with interposer and fill, A B A B.

    A pair that could not be measured ends it; the pairs before it count.
    """
    medians: dict[str, list[float]] = {"plain": [], "filled": []}
    result: dict[str, Any] = {"medians_ms": medians}
    try:
        for turn in range(pairs):
            plain = one_of_a_pair(bench, f"plain{turn}", iterations, None)
            filled = one_of_a_pair(bench, f"filled{turn}", iterations, fill)
            medians["plain"].append(plain)
            medians["filled"].append(filled)
            print(f"pair {turn}: {plain:.3f} ms without interposer, {filled:.3f} ms", flush=True)
    except JobError as error:
        result["error"] = str(error)
    if medians["plain"]:
        pairs_ms = zip(medians["plain"], medians["filled"], strict=True)
        ratios = [filled / plain - 1 for plain, filled in pairs_ms]
        result["slowdowns"] = ratios
        result["slowdown_against_no_interposer"] = statistics.median(ratios)
    return result


def measure_filled(
    bench: Jobs, options: argparse.Namespace, inference: list[str]
) -> dict[str, Any]:
    """Inference alone, then the measured training with it: the fields of the result."""
    alone = inference_alone(bench, inference)
    print(f"inference alone: {alone}", flush=True)
    train, job, fill_report = filled_training(bench, options.rounds, inference)
    began, ended = train["harvest_began_ns"], train["harvest_ended_ns"]
    stretches = [(began, ended)]
    cost = slowdown(train["blocks"]["filled"], train["blocks"]["shut"])
    control = slowdown(train["blocks"]["control"], train["blocks"]["shut"])
    share = train["bubble_share"]
    got = harvest(rate(Progress(fill_report), stretches), alone, share)
    return {
        "gpu": train["gpu"],
        "torch": train["torch"],
        "pairs": cost.rounds,
        "slowdown_median": cost.median,
        "slowdown_lower95": cost.lower95,
        "slowdown_upper95": cost.upper95,
        "slowdown_p95": cost.p95,
        "control_median": control.median,
        "control_upper95": control.upper95,
        "bubble_share": share,
        "harvest_efficiency": got.efficiency,
        "rate_ratio": got.rate_ratio,
        "fill_rate": got.rate,
        "fill_rate_alone": alone["batches_per_s"],
        **ledger(bench, job, stretches, 1, share),
        "iteration_alone_ms": statistics.median(train["alone_ms"]),
        "iteration_filled_ms": train["harvest_median_ms"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sandbox", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/sfill-bench"))
    parser.add_argument("--user", default="sfilluser1")
    parser.add_argument("--rounds", type=int, default=20, help="0: pairs only")
    parser.add_argument("--pairs", type=int, default=2, help="against no interposer")
    parser.add_argument("--inference", choices=DESCRIPTIONS, default="transformer")
    parser.add_argument("--infer-batch", type=int, default=32, help="batch of the inference")
    parser.add_argument("--name", default="stall-ours-timeslice", help="of the result's file")
    parser.add_argument("--driver", default="")
    parser.add_argument("--cuda", default="")
    options = parser.parse_args()
    bench = Jobs(options.sandbox, options.folder, options.user)
    prepare(bench)
    inference = [f"--inference={options.inference}", f"--batch={options.infer_batch}"]
    result: dict[str, Any] = {
        "workload": "stall",
        "policy": "ours",
        "mode": "timeslice",
        "driver": options.driver,
        "cuda": options.cuda,
        "commit": commit(),
        "inference": DESCRIPTIONS[options.inference].format(options.infer_batch),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    target = options.out / f"{options.name}.json"
    if options.rounds:
        result |= measure_filled(bench, options, inference)
        target.write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps(result, indent=1), flush=True)
    if options.pairs:
        result["against_none"] = against_none(bench, options.pairs, 80, inference)
        target.write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps(result["against_none"]), flush=True)


if __name__ == "__main__":
    main()
