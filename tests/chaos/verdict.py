"""What must hold after a chaos run."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from typing import Any, cast

from tests.chaos.run import Run
from tests.chaos.witness import Witness
from tests.cluster.agent_socket import agent_status
from tests.cluster.cluster import Cluster

BUDGET = 0.02
LEAST_SPREAD = 0.01
"""A machine that others use as well moves medians by so much, fill or none."""
LOST_TO_A_KILL = 130
"""Kernels of 400 us that a bubble of 40 ms holds, and those in flight: a fill that is killed, or an
agent, may leave the record of one bubble unread."""
WITHIN_S = 30.0

Check = dict[str, Any]


def checks(run: Run, witness: Witness | None) -> dict[str, Check]:
    """Every check by its name; each has `ok` and what it rests on."""
    found = {
        "training_ends_well": _training(run),
        "training_output": run.workload.check_output(run.cluster, run.host),
        "iteration_times": _times(run),
        "nothing_leaked": _leaks(run.cluster),
        "events": _events(run),
    }
    if witness is not None:
        witness.read()
        found["shut_means_shut"] = _shut(run, witness)
        found["ledger"] = _ledger(run, witness)
    return found


def _training(run: Run) -> Check:
    job = run.cluster.job(run.host)
    ok = (job.get("JobState"), job.get("ExitCode")) == ("COMPLETED", "0:0")
    return {"ok": ok, "state": job.get("JobState"), "exit_code": job.get("ExitCode")}


def _times(run: Run) -> Check:
    figures = run.slowdown()
    allowed = BUDGET + max(figures["spread"], LEAST_SPREAD)
    return {"ok": figures["slowdown"] <= allowed, "allowed": allowed, **figures}


def _leaks(cluster: Cluster) -> Check:
    def account() -> Check:
        status = agent_status(cluster, "n1")
        return {
            "boards": sum(gpu["boards"] for gpu in status["gpus"]),
            "reservations": len(status["fills"]),
            "supply": cluster.supply("f1"),
            "node_idle": cluster.node_state("n1") == "idle",
        }

    clean = {"boards": 0, "reservations": 0, "supply": 0, "node_idle": True}
    with contextlib.suppress(AssertionError):
        cluster.wait(lambda: account() == clean, WITHIN_S, "all to be given back")
    last = account()
    return {"ok": last == clean, **last}


def _audit(cluster: Cluster, *filters: str) -> list[dict[str, Any]]:
    answer = cluster.check("sfill", "audit", *filters, "--limit", "0", "--json", timeout_s=120.0)
    return cast(list[dict[str, Any]], json.loads(answer))


def _events(run: Run) -> Check:
    """Each kill and each switch is in the audit log."""

    def missing() -> dict[str, int]:
        found = cast(list[dict[str, Any]], run.cluster.sfill_json("events", "--limit", "100000"))
        kinds = Counter(row["what"] for row in found)
        ended = {row["slurm_job_id"] for row in found if row["what"] == "fill_ends"}
        return {
            "fill_ends": len(set(run.storm.killed_fills) - ended),
            "agent_begins": max(0, 1 + run.storm.agent_starts - kinds["agent_begins"]),
            "off": max(0, run.storm.switched_off - kinds["off"]),
        }

    with contextlib.suppress(AssertionError):
        run.cluster.wait(lambda: not any(missing().values()), WITHIN_S, "the events")
    last = missing()
    return {"ok": not any(last.values()), "missing": last, "kills": len(run.storm.killed_fills)}


def _shut(run: Run, witness: Witness) -> Check:
    """No fill kernel begins while no agent lives or the switch is off."""
    late = witness.starts_in(run.storm.shut)
    seconds = sum(end - begin for begin, end in run.storm.shut) / 1e9
    return {"ok": late == 0, "kernels": late, "windows": len(run.storm.shut), "seconds": seconds}


def _ledger(run: Run, witness: Witness) -> Check:
    """The ledger has no kernel that the GPU has not run, and lacks few."""
    ends = 3 * len(run.storm.fills) + len(run.storm.killed_fills) + run.storm.agent_starts
    allowed = LOST_TO_A_KILL * ends
    ran = sum(witness.kernels[job] for job in run.storm.fills)
    ran_ns = sum(witness.gpu_ns[job] for job in run.storm.fills)

    def on_record() -> tuple[int, float, dict[int, int]]:
        rows = _audit(run.cluster, "--host-job", str(run.host))
        each: Counter[int] = Counter()
        for row in rows:
            each[row["fill_slurm_job_id"]] += row["kernels"]
        return each.total(), sum(row["gpu_time_us"] for row in rows) * 1000, dict(each)

    deadline = time.monotonic() + WITHIN_S
    while True:
        kernels, gpu_ns, each = on_record()
        if kernels >= ran - allowed or time.monotonic() > deadline:
            break
        time.sleep(1)
    too_many = {
        job: [count, witness.kernels[job]]
        for job, count in each.items()
        if count > witness.kernels[job] + LOST_TO_A_KILL
    }
    share = gpu_ns / ran_ns if ran_ns else 0.0
    return {
        "ok": not too_many and kernels >= ran - allowed and 0.9 <= share <= 1.1 and ran > 0,
        "kernels_ran": ran,
        "kernels_on_record": kernels,
        "gpu_time_on_record_share": share,
        "jobs_with_too_many": too_many,
        "allowed_missing": allowed,
    }
