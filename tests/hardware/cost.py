"""What a launch costs the host more under the interposer: monitor and open gate.

    python -m tests.hardware.cost --out FOLDER

On a GPU host, no Slurm; about 40 s. A C program launches an empty kernel in bursts, each awaited
and followed by a rest of the host (a bubble), in a process of its own for each measurement:

  alone, again   without the interposer; twice a round, so that their difference says what the
                 method resolves
  monitor        as a training whose board has a fill present: markers included
  gate           as a fill whose gate is open because training is ignored
  gate-idle      as a fill beside a training that has stopped: its board is read before each release

All take turns, round after round, once with all CPUs and once with one CPU for all threads of the
process. Figures are medians over processes of each one's mean; CPU of the helper thread beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.hardware.bed import Bed, ChildError, compiled, spoken, write_json
from tests.unit.lending_agent import TUNING, LendingAgent, wait_until

BURST = 64
REST_US = 300
CHILD_S = 15.0
ROUNDS_MOST = 9
# Room for a burst in flight: what is measured is a release, not a wait for room.
ROOMY = replace(TUNING, in_flight_us=20_000)
GOALS_NS = {"monitor": 100.0, "gate": 2000.0, "gate-idle": 2000.0}
ROLES = {"monitor": 1, "gate": 2}  # as specinf_role() says it
HELPERS = ("sfill", "specinf")


@dataclass(frozen=True)
class Condition:
    """What a process runs under."""

    name: str
    role: str | None = None
    ignore_training: bool = False
    idle_training: bool = False


CONDITIONS = (
    Condition("alone"),
    Condition("monitor", role="monitor"),
    Condition("gate", role="gate", ignore_training=True),
    Condition("gate-idle", role="gate", idle_training=True),
    Condition("again"),
)


@contextlib.contextmanager
def idle_program(environment: dict[str, str]) -> Iterator[None]:
    """A program that has launched once and now does nothing."""
    process = subprocess.Popen(
        [str(compiled("cost")), "idle"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    limit = threading.Timer(CHILD_S, process.kill)
    limit.start()
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "idle":
            raise ChildError("the idle program did not start")
        limit.cancel()
        yield
    finally:
        limit.cancel()
        process.kill()
        process.communicate()


@contextlib.contextmanager
def idle_training(bed: Bed, agent: LendingAgent) -> Iterator[None]:
    """The same as a training, in its bubble."""
    with idle_program(bed.environment("monitor")):
        wait_until("the training's board", lambda: agent.training)
        board = next(iter(agent.training.values())).view
        wait_until("a bubble of the training", lambda: board.gpus[0].bubble_seq % 2 == 1)
        yield


def measured(bed: Bed, condition: Condition, cpu: int | None, seconds: float) -> dict[str, Any]:
    """One process."""
    command = [str(compiled("cost")), str(seconds), str(BURST), str(REST_US)]
    if cpu is not None:
        command = ["taskset", "-c", str(cpu), *command]
    if condition.role is None:
        return spoken(command, bed.environment(), CHILD_S)
    with contextlib.ExitStack() as stack:
        agent = stack.enter_context(
            bed.agent(tuning=ROOMY, ignore_training=condition.ignore_training)
        )
        if condition.idle_training:
            stack.enter_context(idle_training(bed, agent))
        found = spoken(command, bed.environment(condition.role), CHILD_S)
        if found["role"] != ROLES[condition.role]:
            raise ChildError(f"the interposer has role {found['role']}, not {condition.role}")
        if condition.role == "gate":
            face = agent.fills[0].view.gpus[0]
            found["released"] = face.released
            found["waited_ns_a_launch"] = round(face.wait_ns / max(1, face.released), 1)
    return found


def helper_share(run: dict[str, Any]) -> float:
    """CPU of the interposer's own threads, as a share of one core."""
    used = sum(t["cpu_ns"] for t in run["threads"] if t["name"].startswith(HELPERS))
    return float(used / run["wall_ns"])


def summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians over processes, and over rounds of the difference to `alone` in the same round."""
    found: dict[str, Any] = {}
    for name, each in runs.items():
        if not each:
            continue
        row: dict[str, Any] = {
            key: round(statistics.median(run[key] for run in each), 1)
            for key in ("mean_ns", "median_ns", "p99_ns", "with_wait_ns")
        }
        row["processes"] = len(each)
        row["helper_cpu_percent"] = round(100 * statistics.median(map(helper_share, each)), 3)
        if "waited_ns_a_launch" in each[0]:
            row["waited_ns_a_launch"] = statistics.median(r["waited_ns_a_launch"] for r in each)
        alone = {run["round"]: run for run in runs["alone"]}
        paired = [run for run in each if run["round"] in alone]
        for key in ("mean_ns", "median_ns", "with_wait_ns"):
            more = sorted(run[key] - alone[run["round"]][key] for run in paired)
            if not more:
                continue
            row[f"more_{key}"] = {
                "median": round(statistics.median(more), 1),
                "least": round(more[0], 1),
                "most": round(more[-1], 1),
            }
        found[name] = row
    return found


def print_table(results: dict[str, Any]) -> None:
    for setting in ("all_cpus", "one_cpu"):
        print(f"-- {setting}: ns a launch (median of processes), and more than alone")
        print(
            f"{'':10} {'mean':>8} {'median':>8} {'more':>8} {'least':>8} {'most':>8} {'helper':>8}"
        )
        for name, row in results[setting]["summary"].items():
            more = row.get("more_mean_ns", dict.fromkeys(("median", "least", "most"), math.nan))
            print(
                f"{name:10} {row['mean_ns']:8.0f} {row['median_ns']:8.0f} {more['median']:8.0f} "
                f"{more['least']:8.0f} {more['most']:8.0f} {row['helper_cpu_percent']:7.2f}%"
            )
        for error in results[setting]["errors"]:
            print("error:", error)
    print("goals met:", results["goals_met"])


def measure_all(bed: Bed, result: dict[str, Any], seconds: float, deadline: float) -> None:
    """Rounds of all conditions in both settings until the time is over."""
    settings: dict[str, int | None] = {
        "all_cpus": None,
        "one_cpu": sorted(os.sched_getaffinity(0))[-1],
    }
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {
        setting: {condition.name: [] for condition in CONDITIONS} for setting in settings
    }
    for setting in settings:
        result[setting] = {"runs": runs[setting], "errors": [], "summary": {}}
    longest_s = 0.0
    for number in range(ROUNDS_MOST):
        for setting, cpu in settings.items():
            began = time.monotonic()
            if number and began + longest_s > deadline:
                return
            order = CONDITIONS if number % 2 == 0 else CONDITIONS[::-1]
            for condition in order:
                try:
                    run = measured(bed, condition, cpu, seconds)
                    runs[setting][condition.name].append({"round": number, **run})
                except (ChildError, AssertionError, OSError) as error:
                    result[setting]["errors"].append(f"{condition.name}: {error}")
            longest_s = max(longest_s, time.monotonic() - began)


def goals_met(result: dict[str, Any]) -> dict[str, bool]:
    """Of each goal in each setting; one that was not measured is not met."""
    met: dict[str, bool] = {}
    for setting in ("all_cpus", "one_cpu"):
        for name, most_ns in GOALS_NS.items():
            row = result[setting]["summary"].get(name)
            met[f"{name}, {setting}"] = bool(
                row and "more_mean_ns" in row and row["more_mean_ns"]["median"] <= most_ns
            )
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--driver", default="")
    parser.add_argument("--cuda", default="")
    parser.add_argument("--simulated", action="store_true", help="dry run on the simulated GPU")
    parser.add_argument("--seconds", type=float, default=0.4, help="of launches in each process")
    parser.add_argument("--total", type=float, default=36, help="begin no round that ends later")
    options = parser.parse_args()
    deadline = time.monotonic() + options.total
    result: dict[str, Any] = {
        "what": "cost of a launch to the host",
        "simulated": options.simulated,
        "driver": options.driver,
        "cuda": options.cuda,
        "burst": BURST,
        "rest_us": REST_US,
        "in_flight_us": ROOMY.in_flight_us,
        "cpus": len(os.sched_getaffinity(0)),
    }
    with Bed(simulated=options.simulated) as bed:
        try:
            with idle_program(bed.environment()):  # the driver stays awake between processes
                measure_all(bed, result, options.seconds, deadline)
        finally:
            for setting in ("all_cpus", "one_cpu"):
                if setting in result:
                    result[setting]["summary"] = summary(result[setting]["runs"])
            write_json(options.out, "cost.json", result)
    result["goals_met"] = goals_met(result)
    write_json(options.out, "cost.json", result)
    print_table(result)
    whole = all(
        result[s]["summary"].keys() == {c.name for c in CONDITIONS} for s in ("all_cpus", "one_cpu")
    )
    return 0 if whole and (options.simulated or all(result["goals_met"].values())) else 1


if __name__ == "__main__":
    sys.exit(main())
