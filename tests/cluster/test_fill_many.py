"""Several users' fills beside several users' trainings on several nodes, each in its place."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.cluster.cluster import USERS, Cluster
from tests.cluster.driver import kernels_launched, kernels_of, truth_of
from tests.cluster.workloads import submit_fill, submit_training, wait_kernels, wait_lends


def audited(cluster: Cluster, fill: int) -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], cluster.sfill_json("audit", "--fill-job", str(fill)))


def test_two_fills_beside_two_trainings_on_two_nodes(cluster: Cluster) -> None:
    hosts = {
        "n1": submit_training(cluster, "-w", "n1", user=USERS[0]),
        "n2": submit_training(cluster, "-w", "n2", user=USERS[1]),
    }
    for twin in ("f1", "f2"):
        wait_lends(cluster, twin)
    # More than half of what a GPU lends each: they cannot share one.
    fills = [
        submit_fill(cluster, memory="14G", user=user, arguments=("--seconds", 8))
        for user in reversed(USERS)
    ]
    for fill in fills:
        assert cluster.wait_end(fill, timeout_s=40.0) == "COMPLETED"
    places = {
        fill: {(kernel.node, kernel.gpu) for kernel in kernels_of(cluster, fill)} for fill in fills
    }
    assert all(len(place) == 1 for place in places.values())
    assert {node for place in places.values() for node, _ in place} == {"n1", "n2"}
    for fill, place in places.items():
        ((node, gpu),) = place
        host = hosts[node]
        assert kernels_of(cluster, host)[0].gpu == gpu
        truth = truth_of(cluster, gpu, host, fill)
        assert truth.fill[fill].kernels > 100
        assert truth.filled_ns > 0
        cluster.wait(
            lambda job=fill: bool(audited(cluster, job)),  # type: ignore[misc]
            10.0,
            f"the ledger's rows of fill {fill}",
        )
        assert {row["host_slurm_job_id"] for row in audited(cluster, fill)} == {host}
        assert cluster.state(host) == "RUNNING"


def test_two_fills_share_the_bubbles_of_one_training(cluster: Cluster) -> None:
    host = submit_training(cluster, "-w", "n1")
    wait_lends(cluster, "f1")
    fills = [submit_fill(cluster, user=user, arguments=("--seconds", 8)) for user in USERS]
    for fill in fills:
        wait_kernels(cluster, fill, least=100)
    for fill in fills:
        assert cluster.wait_end(fill, timeout_s=40.0) == "COMPLETED"
    gpu = kernels_of(cluster, host)[0].gpu
    truth = truth_of(cluster, gpu, host, *fills)
    shares = [truth.fill[fill].gpu_time_ns for fill in fills]
    assert min(shares) > 0.2 * max(shares), "turns are unfair"


def test_processes_of_one_fill_have_the_share_of_one_fill_and_are_on_record_once(
    cluster: Cluster,
) -> None:
    host = submit_training(cluster, "-w", "n1")
    wait_lends(cluster, "f1")
    infer = "siminfer --seconds 8"
    one = cluster.submit("--fill=mem=4G", script=infer, user=USERS[0])
    two = cluster.submit("--fill=mem=4G", script=f"{infer} & {infer} & wait", user=USERS[1])
    for fill in (one, two):
        assert cluster.wait_end(fill, timeout_s=40.0) == "COMPLETED"
    launched = kernels_launched(cluster, two)
    cluster.wait(
        lambda: sum(row["kernels"] for row in audited(cluster, two)) >= launched,
        15.0,
        f"{launched} kernels on record",
    )
    truth = truth_of(cluster, kernels_of(cluster, host)[0].gpu, host, one, two)
    told_ns = sum(row["gpu_time_us"] for row in audited(cluster, two)) * 1000
    print(f"told {told_ns / 1e6:.1f} ms; {truth.fill[two]}, {truth.fill[one]}")
    # Until the agent's next look at its board, 0.2 s, a process that begins has no turn yet.
    assert told_ns == pytest.approx(truth.fill[two].gpu_time_ns, rel=0.05)
    assert truth.fill[two].gpu_time_ns < 1.5 * truth.fill[one].gpu_time_ns, "turns are unfair"
