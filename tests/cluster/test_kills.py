"""Whatever is killed, training goes on, fill stops or moves, and nothing stays behind.

What stays behind would show in the agent's own account (boards, reservations), in Slurm's (supply)
or on the GPU; all three are asked, the GPU through the simulated driver's own log.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from tests.cluster.agent_socket import agent_status
from tests.cluster.cluster import USERS, Cluster
from tests.cluster.driver import kernels_launched, kernels_of, truth_of
from tests.cluster.workloads import (
    UNDER_WAY,
    submit_fill,
    submit_training,
    wait_kernels,
    wait_lends,
    wait_named_gpus,
)
from tests.slow import SLOW
from tests.stolen_time import stolen_time

SECOND_NS = 1_000_000_000
SLURM_SAVES_S = 6.0
"""After so long slurmctld has a job on disk; one that is killed sooner forgets the job."""
BLOCK = 50
"""Iterations of a training, of 100 ms each, that are compared with as many others."""
LONG_S = 100
"""A training that outlasts five such blocks, and what is waited for between them."""
LEAST_SPREAD_MS = 1.0
"""Two cores that others use as well move medians of a block by so much, agent or none."""
MOST_WAITED = 0.01
"""Share of the wall time for which training work that was ready may wait for fill."""


def filling(cluster: Cluster, **options: Any) -> tuple[int, int]:
    """A training on n1 and a fill job in its bubbles, of two users."""
    cluster.wait(lambda: cluster.supply("f1") == 0, 20.0, "the last test's supply to go")
    host = submit_training(cluster, "-w", "n1", user=USERS[0])
    wait_lends(cluster, "f1")
    fill = submit_fill(cluster, "-w", "f1", user=USERS[1], **options)
    wait_kernels(cluster, fill, 100)
    return host, fill


def latest_start_ns(cluster: Cluster, job: int) -> int:
    return kernels_of(cluster, job)[-1].start_ns


def goes_on(cluster: Cluster, job: int, timeout_s: float = 10.0) -> None:
    """Until the job has started kernels after now."""
    since_ns = time.monotonic_ns()
    cluster.wait(
        lambda: latest_start_ns(cluster, job) > since_ns,
        timeout_s,
        lambda: f"job {job} to go on; it is {cluster.job(job)}",
    )


def processes(job: int, name: str) -> list[int]:
    """Processes of a job whose program has this name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            program = (folder / "comm").read_text().strip()
        except OSError:
            continue
        if program == name and f"SLURM_JOB_ID={job}".encode() in variables:
            found.append(int(folder.name))
    return found


def kill_process(job: int, name: str) -> None:
    """SIGKILL to the one process of a job that has this name."""
    [process] = processes(job, name)
    os.kill(process, signal.SIGKILL)


def kill_slurmstepd(job: int) -> None:
    """SIGKILL to the slurmstepd of a job's batch step."""
    answer = subprocess.run(
        ["pgrep", "-f", f"slurmstepd: \\[{job}.batch\\]"], capture_output=True, text=True
    )
    [process] = answer.stdout.split()
    os.kill(int(process), signal.SIGKILL)


def iterations_ms(cluster: Cluster, job: int) -> list[float]:
    lines = (line.split() for line in cluster.output(job).splitlines())
    return [float(words[2]) for words in lines if words[:1] == ["iteration"] and len(words) == 3]


@dataclass(frozen=True)
class Block:
    """Some iterations of a training, one after another."""

    median_ms: float
    stolen: float  # share of the processors' time that the machine did not give meanwhile

    @property
    def delayed_ms(self) -> float:
        """What that can have added to an iteration: its share of one."""
        return self.stolen * self.median_ms


def run_block(cluster: Cluster, job: int) -> Block:
    """The next iterations of a training."""
    first = len(iterations_ms(cluster, job))
    with stolen_time() as stolen:
        cluster.wait(
            lambda: len(iterations_ms(cluster, job)) >= first + BLOCK, 30.0, "a block of iterations"
        )
    median_ms = statistics.median(iterations_ms(cluster, job)[first : first + BLOCK])
    return Block(median_ms, stolen.share)


def events(cluster: Cluster, job: int) -> list[str]:
    """What the audit log says of a job, newest first."""
    found = cast(list[dict[str, Any]], cluster.sfill_json("events", "--job", str(job)))
    return [row["what"] for row in found]


def wait_told(cluster: Cluster, job: int, what: str) -> None:
    """Until the audit log says it of a job."""
    cluster.wait(
        lambda: what in events(cluster, job),
        10.0,
        lambda: f"{what} of job {job} in the audit log: {events(cluster, job)}",
    )


def left_clean(cluster: Cluster, *jobs: int) -> None:
    """The jobs, the training first, are gone: no board, reservation, supply or kernel is left."""

    def account() -> tuple[int, list[object], int]:
        status = agent_status(cluster, "n1")
        boards = sum(gpu["boards"] for gpu in status["gpus"])
        return boards, status["fills"], cluster.supply("f1")

    cluster.wait(
        lambda: account() == (0, [], 0),
        30.0,
        lambda: f"boards, fills and supply to be gone, not {account()}",
    )
    since_ns = time.monotonic_ns()
    time.sleep(0.5)
    assert all(latest_start_ns(cluster, job) < since_ns for job in jobs)
    for job in jobs:
        wait_told(cluster, job, "host_ends" if job == jobs[0] else "fill_ends")
    cluster.wait(lambda: cluster.node_state("n1") == "idle", 10.0, "n1 to be idle")


@pytest.mark.parametrize("by", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=SLOW)])
def test_without_a_living_agent_fill_stops_within_a_second_and_training_does_not_notice(
    cluster: Cluster, by: signal.Signals
) -> None:
    cluster.wait(lambda: cluster.supply("f1") == 0, 20.0, "the last test's supply to go")
    host = submit_training(cluster, "-w", "n1", user=USERS[0], seconds=LONG_S)
    wait_lends(cluster, "f1")
    alone, again = run_block(cluster, host), run_block(cluster, host)
    spread_ms = max(abs(alone.median_ms - again.median_ms), LEAST_SPREAD_MS)
    fill = submit_fill(cluster, "-w", "f1", user=USERS[1], arguments=("--seconds", LONG_S))
    wait_kernels(cluster, fill, 100)
    later = {"beside fill": run_block(cluster, host)}
    agent = cluster.pid("sfilld-n1")
    began_ns = time.monotonic_ns()
    if by == signal.SIGKILL:
        cluster.kill("sfilld-n1", by)
    else:
        os.kill(agent, by)
    gone_ns = time.monotonic_ns()
    try:
        later["without an agent"] = run_block(cluster, host)
        # It was at work until then, or nothing had to stop.
        assert began_ns - SECOND_NS < latest_start_ns(cluster, fill) < gone_ns + SECOND_NS
        assert {cluster.state(host), cluster.state(fill)} == {"RUNNING"}
    finally:
        if by == signal.SIGKILL:
            cluster.start("sfilld-n1")
        else:
            os.kill(agent, signal.SIGCONT)
    goes_on(cluster, fill)
    later["after its return"] = run_block(cluster, host)
    print(f"alone {alone}, {again}; later {later}")
    for when, block in later.items():
        slower_ms = block.median_ms - alone.median_ms
        assert slower_ms <= spread_ms + block.delayed_ms, (when, alone, again, later)
    assert truth_of(cluster, 0, host, fill).waited_fraction <= MOST_WAITED
    assert "CUDA_ERROR" not in cluster.output(host)
    cluster.check("scancel", str(fill), str(host))
    left_clean(cluster, host, fill)


def test_a_killed_training_takes_its_supply_along_and_sends_its_fill_away(
    cluster: Cluster,
) -> None:
    host, fill = filling(cluster)
    kill_process(host, "simtrain")
    cluster.wait_end(host)
    cluster.wait(lambda: cluster.state(fill) == "PENDING", 15.0, "the fill to be requeued")
    assert "evicted" in events(cluster, fill)
    left_clean(cluster, host, fill)


def test_a_killed_fill_gives_its_reservation_back(cluster: Cluster) -> None:
    host, fill = filling(cluster)
    kill_process(fill, "siminfer")
    cluster.wait(
        lambda: agent_status(cluster, "n1")["fills"] == [], 20.0, "the reservation to be free"
    )
    goes_on(cluster, host)
    # More than was left beside the killed one, of the 20 GiB that the training leaves free.
    following = submit_fill(cluster, memory="18G", user=USERS[1])
    wait_kernels(cluster, following, timeout_s=30.0)
    cluster.check("scancel", str(following), str(host))
    left_clean(cluster, host, fill, following)


def test_a_fill_whose_slurmstepd_is_killed_can_be_cancelled_and_leaves_nothing(
    cluster: Cluster,
) -> None:
    host, fill = filling(cluster)
    kill_slurmstepd(fill)
    goes_on(cluster, host)
    left = processes(fill, "siminfer")  # Slurm lets the processes of such a job run on
    cluster.check("scancel", str(fill))
    cluster.wait_end(fill)
    cluster.wait(
        lambda: not agent_status(cluster, "n1")["fills"], 10.0, "the reservation to be free"
    )
    # A process of a fill that has ended is not let in, and does not stand in the next one's way.
    for process in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    following = submit_fill(cluster, user=USERS[1])
    wait_kernels(cluster, following)
    cluster.check("scancel", str(following), str(host))
    left_clean(cluster, host, following)


@pytest.mark.parametrize("name", ["simtrain", pytest.param("siminfer", marks=SLOW)])
def test_after_a_stop_both_go_on_and_training_never_waits_for_a_stopped_fill(
    cluster: Cluster, name: str
) -> None:
    host, fill = filling(cluster)
    [process] = processes(host if name == "simtrain" else fill, name)
    os.kill(process, signal.SIGSTOP)
    try:
        time.sleep(2)
        if name == "siminfer":
            goes_on(cluster, host)
    finally:
        os.kill(process, signal.SIGCONT)
    goes_on(cluster, host)
    goes_on(cluster, fill)


def kernels_on_record(cluster: Cluster, fill: int) -> int:
    """Kernels of a fill job by the audit rows."""
    rows = cluster.sfill_json("audit", "--fill-job", str(fill), "--limit", "100000")
    return sum(row["kernels"] for row in cast(list[dict[str, Any]], rows))


@pytest.mark.parametrize(
    "daemons", [["sfillctld"], ["slurmctld"], ["slurmd-f1", "slurmd-n1"]], ids="-and-".join
)
def test_filling_goes_on_without_daemons_and_every_use_is_on_record_once(
    cluster: Cluster, daemons: list[str]
) -> None:
    host, fill = filling(cluster)
    if "slurmctld" in daemons:
        time.sleep(SLURM_SAVES_S)
    for daemon in daemons:
        cluster.kill(daemon, signal.SIGKILL)
    try:
        time.sleep(3)
        goes_on(cluster, host)
        goes_on(cluster, fill)
    finally:
        for daemon in daemons:
            cluster.start(daemon)
        started_s = time.monotonic()
    cluster.wait(lambda: cluster.state(fill) == "RUNNING", 15.0, "Slurm to know the fill")
    goes_on(cluster, fill)
    wait_lends(cluster, "f1", 30.0)
    cluster.check("scancel", str(fill))
    cluster.wait_end(fill)
    launched = kernels_launched(cluster, fill)
    cluster.wait(
        lambda: kernels_on_record(cluster, fill) >= launched,
        15.0,
        lambda: f"{launched} kernels on record, not {kernels_on_record(cluster, fill)}",
    )
    time.sleep(1)  # for whatever might come a second time
    assert kernels_on_record(cluster, fill) <= launched + UNDER_WAY
    cluster.check("scancel", str(host))
    left_clean(cluster, host, fill)
    if "slurmctld" in daemons:
        wait_named_gpus(started_s)
