"""When the host job ends, its fill leaves at once and goes on elsewhere, and nothing is lost."""

from __future__ import annotations

import time
from typing import Any, cast

from tests.cluster.cluster import USERS, Cluster
from tests.cluster.driver import kernels_of
from tests.cluster.workloads import (
    results,
    submit_fill,
    submit_training,
    wait_kernels,
    wait_lends,
    write_items,
)

ITEMS = 1500
KERNELS_PER_ITEM = 10
LEAVE_LIMIT_S = 3.0
"""Longest time a fill may work beside a training after its scancel: Slurm's KillWait of 2 s, if the
training does not end by itself, and 1 s for the epilog to tell the agent, which shuts the gate at
once. Less than evict_grace_s (5 s): a fill that works on until its SIGTERM is too late."""


def test_a_fill_goes_on_elsewhere_when_its_host_ends_and_repeats_and_loses_nothing(
    cluster: Cluster,
) -> None:
    output = cluster.files / "requeue-results.jsonl"
    items = write_items(cluster, "requeue-items", ITEMS)
    first_host = submit_training(cluster, "-w", "n1", user=USERS[0])
    wait_lends(cluster, "f1")
    fill = submit_fill(
        cluster,
        arguments=(
            *("--input", str(items), "--output", str(output)),
            *("--kernels-per-batch", KERNELS_PER_ITEM, "--kernel-us", 200),
        ),
        user=USERS[1],
    )
    wait_kernels(cluster, fill)
    second_host = submit_training(cluster, "-w", "n2", user=USERS[0])
    wait_lends(cluster, "f2")
    cluster.wait(lambda: len(results(output)) >= 50, 20.0, "50 results beside the first host")

    # Not at the job's end, which comes only once its epilog has seen the fill off the GPU.
    cancelled_ns = time.monotonic_ns()
    cluster.check("scancel", str(first_host), user=USERS[0])
    cluster.wait_end(first_host)
    assert len(results(output)) < ITEMS, "the fill was done before its host ended: more items"

    assert cluster.wait_end(fill, timeout_s=60.0) == "COMPLETED"
    assert results(output) == list(range(ITEMS))
    # Once for its host's end; once more if the other training has meanwhile taken the room.
    told = cast(list[dict[str, Any]], cluster.sfill_json("events", "--job", str(fill)))
    refused = [row["text"] for row in told if row["what"] == "refused"]
    assert cluster.job(fill)["Restarts"] == str(1 + len(refused)), told
    ran = kernels_of(cluster, fill)
    assert [kernel.node for kernel in (ran[0], ran[-1])] == ["n1", "n2"]
    beside_first = [kernel for kernel in ran if kernel.node == "n1"]
    left_s = (beside_first[-1].end_ns - cancelled_ns) / 1e9
    print(f"the fill's last kernel there ended {left_s:.3f} s after the scancel")
    assert 0 < left_s < LEAVE_LIMIT_S  # it was at work until then
    # Each item's kernels ran; only those in flight at the eviction ran twice.
    assert ITEMS * KERNELS_PER_ITEM <= len(ran) <= ITEMS * KERNELS_PER_ITEM + 4 * KERNELS_PER_ITEM
    assert cluster.state(second_host) == "RUNNING"
    assert cluster.node_state("n1") == "idle"


def test_the_next_training_finds_its_gpu_clean(cluster: Cluster) -> None:
    host = submit_training(cluster, "-w", "n1")
    wait_lends(cluster, "f1")
    fill = submit_fill(cluster)
    wait_kernels(cluster, fill, least=100)
    gpu = kernels_of(cluster, fill)[0].gpu
    # The same GPU, as soon as it is free.
    following = submit_training(
        cluster, "-w", "n1", "--dependency", f"afterany:{host}", lends="off"
    )
    cluster.check("scancel", str(host), user=USERS[0])
    wait_kernels(cluster, following)
    started = kernels_of(cluster, following)[0]
    assert started.gpu == gpu
    last_of_fill = max(kernel.end_ns for kernel in kernels_of(cluster, fill) if kernel.gpu == gpu)
    assert last_of_fill < started.start_ns
