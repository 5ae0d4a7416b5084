"""The agent of a node is stopped while one training ends and the next one begins on its GPU."""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import datetime
from typing import Any, cast

import pytest

from tests.cluster.agent_socket import agent_status
from tests.cluster.cluster import USERS, Cluster
from tests.cluster.driver import kernels_of, truth_of
from tests.cluster.workloads import submit_fill, submit_training, wait_kernels, wait_lends
from tests.slow import SLOW

FIRST_S = 14
NEXT_S = 20
LATE_S = 2.0
"""Most that a silent agent may hold up the next training: with its epilog and prolog together."""
SLURM_S = 3.0
"""What Slurm takes to end a job and begin the one that waits for it."""


def host_row(cluster: Cluster, job: int) -> dict[str, Any]:
    rows = cast(list[dict[str, Any]], cluster.sfill_json("jobs", "--job", str(job)))
    return next(row for row in rows if row["kind"] == "host")


def started_s(cluster: Cluster, job: int) -> float:
    return datetime.fromisoformat(cluster.job(job)["StartTime"]).timestamp()


def ended_s(cluster: Cluster, job: int) -> float:
    return datetime.fromisoformat(cluster.job(job)["EndTime"]).timestamp()


def comment(cluster: Cluster, job: int) -> dict[str, Any]:
    text = cluster.check("sacct", "-X", "-n", "-P", "-j", str(job), "-o", "AdminComment")
    return cast(dict[str, Any], json.loads(text.replace("`", '"'))["sfill"]) if text.strip() else {}


@SLOW
def test_a_training_that_ends_and_one_that_begins_before_a_stopped_agent(cluster: Cluster) -> None:
    cluster.wait(lambda: cluster.supply("f1") == 0, 20.0, "the last test's supply to go")
    first = submit_training(cluster, "-w", "n1", "--exclusive", seconds=FIRST_S)
    wait_lends(cluster, "f1")
    fill = submit_fill(cluster, "-w", "f1", user=USERS[1], arguments=("--seconds", 120))
    wait_kernels(cluster, fill, 30)
    following = submit_training(cluster, "-w", "n1", "--exclusive", seconds=NEXT_S)
    gpu = kernels_of(cluster, first)[0].gpu
    agent = cluster.pid("sfilld-n1")
    os.kill(agent, signal.SIGSTOP)
    stopped = time.monotonic()
    try:
        # Nobody waits for the agent for long, with neither the end nor the beginning.
        cluster.wait_end(first)
        wait_kernels(cluster, following, timeout_s=SLURM_S + LATE_S + 5)
        last_ns = kernels_of(cluster, first)[-1].end_ns
        gap_s = (kernels_of(cluster, following)[0].start_ns - last_ns) / 1e9
        print(f"next training's first kernel {gap_s:.1f} s after the last of the one before")
        assert gap_s < SLURM_S + LATE_S
        time.sleep(5)
        assert {kernel.gpu for kernel in kernels_of(cluster, following)} == {gpu}
    finally:
        os.kill(agent, signal.SIGCONT)
    stood_s = time.monotonic() - stopped
    woke_ns = time.monotonic_ns()

    # What the first one held is free; its fill is sent away and disturbs the next one no more.
    cluster.wait(lambda: agent_status(cluster, "n1")["fills"] == [], 15.0, "the fill to have left")
    assert sum(each["boards"] for each in agent_status(cluster, "n1")["gpus"]) == 0
    assert all(kernel.end_ns < woke_ns for kernel in kernels_of(cluster, fill))
    cluster.check("scancel", str(fill))

    cluster.wait(lambda: host_row(cluster, first)["ended_at_us"], 10.0, "its end on record")
    row, truth = host_row(cluster, first), truth_of(cluster, gpu, first, fill)
    assert row["ended_at_us"] / 1e6 == pytest.approx(ended_s(cluster, first), abs=1.5)
    assert row["gpu_wall_us"] / len(row["gpus"]) / 1e6 < FIRST_S + 3
    assert row["bubble_us"] / 1e3 == pytest.approx(truth.bubble_ns / 1e6, rel=0.15)
    assert row["filled_us"] / 1e3 == pytest.approx(truth.filled_ns / 1e6, rel=0.2)
    told = cast(list[dict[str, Any]], cluster.sfill_json("events", "--what", "stood_still"))
    assert any(f"stood still for {whole}" in told[0]["text"] for whole in _about(stood_s))

    # Nobody watched the next one, and the record says so.
    cluster.wait_end(following)
    cluster.wait(lambda: host_row(cluster, following)["ended_at_us"], 10.0, "its end on record")
    row = host_row(cluster, following)
    assert row["started_at_us"] / 1e6 == pytest.approx(started_s(cluster, following), abs=2.0)
    assert (row["bubble_share"], row["watched_us"]) == (None, 0)
    events = cast(list[dict[str, Any]], cluster.sfill_json("events", "--what", "unknown"))
    assert events[0]["slurm_job_id"] == following
    cluster.wait(lambda: comment(cluster, following) != {}, 15.0, "its comment")
    assert comment(cluster, following)["bubble_share"] is None


def _about(seconds: float) -> list[str]:
    return [f"{seconds + tenths / 10:.1f} s" for tenths in range(-5, 6)]
