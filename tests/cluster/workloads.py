"""The jobs that most tests submit: a training that lends and an inference that fills."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.cluster.cluster import USERS, Cluster, program
from tests.cluster.driver import kernels_of

UNDER_WAY = 1
"""A fill may be killed when it has been let go ahead with a launch and has not made it: it is then
on record, and the driver has not seen it."""


def submit_training(
    cluster: Cluster,
    *options: str,
    lends: str | None = "on",
    seconds: int = 60,
    user: str = USERS[0],
    stall_ms: int = 40,
) -> int:
    """A training on one GPU: 60 ms of kernels, then a host stall, again and again.

    `lends` is the value of --fill-host; None leaves the option out.
    """
    if lends is not None:
        options = (f"--fill-host={lends}", *options)
    script = program("simtrain", "--seconds", seconds, "--stall-ms", stall_ms)
    return cluster.submit("--gres=gpu:1", *options, script=script, user=user)


def submit_fill(
    cluster: Cluster,
    *options: str,
    memory: str = "4G",
    arguments: tuple[str | int, ...] = ("--seconds", 60),
    user: str = USERS[0],
) -> int:
    """An inference that fills bubbles; `arguments` are those of siminfer."""
    script = program("siminfer", *arguments)
    return cluster.submit(f"--fill=mem={memory}", *options, script=script, user=user)


def wait_lends(cluster: Cluster, twin: str, timeout_s: float = 20.0, slots: int = 4) -> None:
    """Until Slurm may place a fill of so many slots on `twin`; it refuses one that names a twin
    and asks for more than that lends just now."""
    cluster.wait(lambda: cluster.supply(twin) >= slots, timeout_s, f"{twin} to lend {slots} slots")


def wait_kernels(cluster: Cluster, job_id: int, least: int = 1, timeout_s: float = 15.0) -> None:
    """Until the job has run so many kernels, by the driver's log."""
    cluster.wait(
        lambda: len(kernels_of(cluster, job_id)) >= least,
        timeout_s,
        lambda: (
            f"{least} kernels of job {job_id}; it is {cluster.job(job_id)} and wrote:\n"
            f"{cluster.output(job_id)}"
        ),
    )


def write_items(cluster: Cluster, name: str, count: int) -> Path:
    """An input of `count` items for siminfer, one a line."""
    file = cluster.files / f"{name}.jsonl"
    lines = (json.dumps({"item": item, "text": f"text {item}"}) for item in range(count))
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def results(file: Path) -> list[int]:
    """The items that have a result, in the order in which they were written."""
    if not file.exists():
        return []
    # A line that is being written has no end yet.
    complete = file.read_text().rpartition("\n")[0].splitlines()
    return [json.loads(line)["item"] for line in complete]


def wait_named_gpus(slurmctld_started_s: float) -> None:
    """Until the prolog of a job that begins is told of its GPUs again: the next test's training
    would go unwatched (README, "Not there yet"; 4.9 s after its start slurmctld named none)."""
    time.sleep(max(0.0, slurmctld_started_s + 7.0 - time.monotonic()))
