"""Fills that are evicted together all go on: none runs without its gate, none is lost."""

from __future__ import annotations

from tests.cluster.cluster import USERS, Cluster
from tests.cluster.workloads import results, submit_fill, submit_training, wait_kernels, wait_lends

ITEMS = 250


def test_four_fills_of_one_training_go_on_elsewhere(cluster: Cluster) -> None:
    host = submit_training(cluster, "-w", "n1", user=USERS[0])
    wait_lends(cluster, "f1")
    outputs = [cluster.files / f"together-{n}.jsonl" for n in range(4)]
    fills = [
        submit_fill(
            cluster,
            memory="2G",
            arguments=("--items", ITEMS, "--output", str(output), "--kernels-per-batch", 40),
            user=USERS[1],
        )
        for output in outputs
    ]
    for fill in fills:
        wait_kernels(cluster, fill)
    submit_training(cluster, "-w", "n2", user=USERS[0])
    wait_lends(cluster, "f2")
    cluster.check("scancel", str(host), user=USERS[0])
    for fill, output in zip(fills, outputs, strict=True):
        assert cluster.wait_end(fill, timeout_s=200.0) == "COMPLETED"
        assert results(output) == list(range(ITEMS))


def tasks(cluster: Cluster, array: int) -> list[list[str]]:
    """Name, state and restarts of each task of an array."""
    said = cluster.check(
        *("squeue", "-har", "-t", "all", "-j", str(array)),
        *("-O", "JobArrayID:40,State:20,RestartCnt:8"),
    )
    return sorted(line.split() for line in said.splitlines())


def test_the_last_task_of_an_array_is_evicted_alone(cluster: Cluster) -> None:
    """Its number is the array's, by which Slurm's commands mean all tasks."""
    host = submit_training(cluster, "-w", "n1", user=USERS[0])
    wait_lends(cluster, "f1")
    array = submit_fill(
        cluster, "--array=0-1", memory="2G", arguments=("--seconds", 100), user=USERS[1]
    )
    first, last = f"{array}_0", f"{array}_1"
    running = [[first, "RUNNING", "0"], [last, "RUNNING", "0"]]
    cluster.wait(lambda: tasks(cluster, array) == running, 30.0, "both tasks to run")
    cluster.check("scancel", first, user=USERS[1])
    cluster.check("scancel", str(host), user=USERS[0])
    cluster.wait(
        lambda: [last, "PENDING", "1"] in tasks(cluster, array),
        30.0,
        lambda: f"the other task to be requeued: {tasks(cluster, array)}",
    )
    assert [first, "CANCELLED", "0"] in tasks(cluster, array)
