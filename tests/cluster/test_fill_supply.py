"""A fill starts when, and only when, a training lends: no supply, no kernel."""

from __future__ import annotations

import time

import pytest

from tests.cluster.cluster import USERS, Cluster
from tests.cluster.driver import kernels_of
from tests.cluster.workloads import submit_fill, submit_training, wait_kernels, wait_lends

SLOTS = 4
START_LIMIT_S = 3.0
"""From supply to the first kernel, with the sandbox's scheduler settings (issue 2, Accept 2)."""


def test_a_fill_waits_without_supply_and_starts_within_three_seconds_of_it(
    cluster: Cluster,
) -> None:
    fill = submit_fill(cluster, memory=f"{SLOTS}G", user=USERS[1])
    time.sleep(2.0)
    assert cluster.state(fill) == "PENDING"
    assert kernels_of(cluster, fill) == []

    submit_training(cluster, "-w", "n1", user=USERS[0])
    last_without_ns = time.monotonic_ns()
    while cluster.supply("f1") < SLOTS:
        last_without_ns = time.monotonic_ns()
        time.sleep(0.02)
    wait_kernels(cluster, fill)
    first = kernels_of(cluster, fill)[0]
    assert first.node == "n1"
    assert first.start_ns > last_without_ns
    assert (first.start_ns - last_without_ns) / 1e9 <= START_LIMIT_S


@pytest.mark.parametrize("lends", [None, "observe", "off"])
def test_a_training_that_does_not_lend_is_not_filled(cluster: Cluster, lends: str | None) -> None:
    fill = submit_fill(cluster)
    training = submit_training(cluster, lends=lends)
    wait_kernels(cluster, training, least=300)  # it runs, past the agent's warm-up
    time.sleep(2.0)
    assert cluster.supply("f1") == cluster.supply("f2") == 0
    assert cluster.state(fill) == "PENDING"
    assert kernels_of(cluster, fill) == []


def test_a_fill_that_asks_for_more_than_is_lent_waits_and_is_not_refused(cluster: Cluster) -> None:
    training = submit_training(cluster, "-w", "n1", lends="on,mem=6G")
    wait_lends(cluster, "f1")
    cluster.wait(lambda: cluster.supply("f1") == 6, 10.0, "f1 to lend 6 slots")
    large = submit_fill(cluster, memory="12G")
    small = submit_fill(cluster, memory="4G")
    wait_kernels(cluster, small)
    assert cluster.state(large) == "PENDING"
    assert kernels_of(cluster, large) == []

    # Another training that lends more: now it fits.
    submit_training(cluster, "-w", "n2", user=USERS[1])
    wait_kernels(cluster, large)
    assert {kernel.node for kernel in kernels_of(cluster, large)} == {"n2"}
    assert cluster.state(training) == "RUNNING"
