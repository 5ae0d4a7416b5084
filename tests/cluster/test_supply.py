"""Supply on a real Slurm: what twins lend follows the trainings, whatever befalls Slurm or us."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.cluster.cluster import USERS, Cluster, program
from tests.cluster.workloads import wait_named_gpus

TRAINING_S = 300
OPERATORS_REASON = "bad fan"


def train(cluster: Cluster, node: str, *options: str, mode: str = "on", gpus: int = 1) -> int:
    """A training of the first user on a node, running."""
    script = program("simtrain", "--seconds", TRAINING_S, "--devices", gpus)
    where = (f"--nodelist={node}", f"--gres=gpu:{gpus}", f"--fill-host={mode}")
    job_id = cluster.submit(*where, *options, script=script)
    cluster.wait_state(job_id, "RUNNING")
    return job_id


def fill(cluster: Cluster, *options: str, mem: str = "2G") -> int:
    """A fill job of the second user."""
    script = program("siminfer", "--seconds", TRAINING_S)
    return cluster.submit(f"--fill=mem={mem}", *options, script=script, user=USERS[1])


def lends(
    cluster: Cluster, twin: str, slots: int | None = None, *, timeout_s: float = 15.0
) -> None:
    """Until the twin lends that many slots, or any."""

    def right() -> bool:
        lent = cluster.supply(twin)
        return lent == slots if slots is not None else lent > 0

    cluster.wait(
        right, timeout_s, lambda: f"{twin} to lend {slots or 'some'}: {record(cluster, twin)}"
    )


def lends_nothing(cluster: Cluster, twin: str, *, timeout_s: float = 15.0) -> None:
    cluster.wait(lambda: cluster.supply(twin) == 0, timeout_s, f"{twin} to lend nothing")


def record(cluster: Cluster, node: str) -> str:
    return cluster.check("scontrol", "-d", "-o", "show", "node", node)


def partition_state(cluster: Cluster) -> str:
    return cluster.check("sinfo", "-h", "-p", "fill", "-o", "%a").split()[0]


def events(cluster: Cluster, what: str) -> list[dict[str, object]]:
    found = cluster.sfill_json("events", "--what", what, "--limit", "100000")
    rows = found["events"] if isinstance(found, dict) else found
    assert isinstance(rows, list)
    return rows


@pytest.fixture
def supplied(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with its supply published, nothing lent yet; an operator's doings are undone."""
    cluster.wait(lambda: partition_state(cluster) == "up", 20.0, "partition fill to be up")
    for twin in cluster.sandbox.twins:
        # What the trainings of the test before lent is taken back first.
        lends_nothing(cluster, twin)
    yield cluster
    cluster.cancel_all()
    cluster.run("scontrol", "update", "PartitionName=fill", "State=UP")
    for twin in cluster.sandbox.twins:
        if OPERATORS_REASON in record(cluster, twin):
            cluster.run("scontrol", "update", f"NodeName={twin}", "State=RESUME")


def test_a_twin_lends_while_a_training_does_and_is_drained_when_it_ends(supplied: Cluster) -> None:
    lends_nothing(supplied, "f1")
    nothing = "Reason=sfill: nothing to lend"
    supplied.wait(lambda: nothing in record(supplied, "f1"), 15.0, "the agent's first report")
    training = train(supplied, "n1", mode="on,mem=10G")
    lends(supplied, "f1", 10)
    assert supplied.supply("f2") == 0
    supplied.check("scancel", str(training))
    lends_nothing(supplied, "f1")


def test_a_training_that_is_only_observed_lends_nothing(supplied: Cluster) -> None:
    train(supplied, "n1", mode="observe")
    time.sleep(3)
    assert supplied.supply("f1") == 0


def test_the_count_is_what_is_in_use_and_the_largest_room_on_one_gpu(supplied: Cluster) -> None:
    train(supplied, "n1", mode="on,mem=6G", gpus=2)
    lends(supplied, "f1", 6)
    job = fill(supplied, mem="4G")
    supplied.wait_state(job, "RUNNING")
    # 4 GiB in use on one GPU, 6 GiB free on the other.
    lends(supplied, "f1", 10)
    assert "GresUsed=" in record(supplied, "f1") and "fill:4" in record(supplied, "f1")


def test_other_gres_of_a_twin_stay(supplied: Cluster) -> None:
    before = record(supplied, "f1")
    train(supplied, "n1", mode="on,mem=7G")
    lends(supplied, "f1", 7)
    after = record(supplied, "f1")
    assert ("nic:4" in before) == ("nic:4" in after)


def test_supply_reaches_a_waiting_fill_within_seconds(supplied: Cluster) -> None:
    job = fill(supplied)
    time.sleep(2)
    assert supplied.state(job) == "PENDING"
    train(supplied, "n2")
    supplied.wait(lambda: supplied.supply("f2") > 0, 15.0, "f2 to lend")
    took_s = supplied.wait(lambda: supplied.state(job) == "RUNNING", 5.0, "the fill to run")
    assert took_s <= 3.0


def test_supply_is_published_again_after_scontrol_reconfigure(supplied: Cluster) -> None:
    train(supplied, "n1", mode="on,mem=10G")
    lends(supplied, "f1", 10)
    before = len(events(supplied, "republished"))
    supplied.check("scontrol", "reconfigure")
    supplied.wait(lambda: len(events(supplied, "republished")) > before, 15.0, "a new publication")
    lends(supplied, "f1", 10)
    assert partition_state(supplied) == "up"
    assert supplied.supply("f2") == 0


def test_a_running_fill_outlives_reconfigure_and_its_twin_lends_on(supplied: Cluster) -> None:
    train(supplied, "n1", mode="on,mem=10G")
    lends(supplied, "f1", 10)
    job = fill(supplied)
    supplied.wait_state(job, "RUNNING")
    for _ in range(2):
        supplied.check("scontrol", "reconfigure")
        time.sleep(2)
    supplied.wait(
        lambda: supplied.supply("f1") == 10 and partition_state(supplied) == "up",
        25.0,
        lambda: f"f1 to lend 10 again: {record(supplied, 'f1')}",
    )
    assert supplied.state(job) == "RUNNING"
    assert supplied.job(job)["Restarts"] == "0"
    second = fill(supplied, "--nodelist=f1")
    supplied.wait_state(second, "RUNNING", timeout_s=10.0)


def test_a_twin_that_slurm_calls_invalid_comes_back_by_itself(supplied: Cluster) -> None:
    train(supplied, "n1", mode="on,mem=10G")
    lends(supplied, "f1", 10)
    # What Slurm does by itself every half hour: the slurmd registers, here with the count at 10 ...
    os.kill(supplied.pid("slurmd-f1"), signal.SIGHUP)
    time.sleep(2)
    job = fill(supplied)
    supplied.wait_state(job, "RUNNING")
    # ... and then while slots are in use with another count: slurm.conf's own.
    supplied.check("scontrol", "reconfigure")
    supplied.wait(
        lambda: "INVALID" not in record(supplied, "f1") and supplied.supply("f1") == 10,
        25.0,
        lambda: f"f1 to come back: {record(supplied, 'f1')}",
    )
    assert supplied.state(job) == "RUNNING"


def test_supply_is_published_again_after_a_restart_of_slurmctld(supplied: Cluster) -> None:
    train(supplied, "n1", mode="on,mem=10G")
    lends(supplied, "f1", 10)
    job = fill(supplied)
    supplied.wait_state(job, "RUNNING")
    supplied.restart("slurmctld")
    restarted_s = time.monotonic()
    supplied.wait(
        lambda: supplied.run("scontrol", "ping", timeout_s=5).returncode == 0, 20.0, "slurmctld"
    )
    supplied.wait(
        lambda: partition_state(supplied) == "up" and supplied.supply("f1") == 10,
        40.0,
        lambda: f"f1 to lend 10 again: {record(supplied, 'f1')}",
    )
    assert supplied.state(job) == "RUNNING"
    assert supplied.supply("f2") == 0
    wait_named_gpus(restarted_s)


def test_an_operators_drain_is_respected(supplied: Cluster) -> None:
    supplied.check("scontrol", "update", "NodeName=f1", "State=DRAIN", f"Reason={OPERATORS_REASON}")
    train(supplied, "n1")
    train(supplied, "n2")
    lends(supplied, "f2")
    assert f"Reason={OPERATORS_REASON}" in record(supplied, "f1") and supplied.supply("f1") == 0
    supplied.check("scontrol", "update", "NodeName=f1", "State=RESUME")
    lends(supplied, "f1")


def test_an_operators_down_of_the_partition_is_respected(supplied: Cluster) -> None:
    supplied.check("scontrol", "update", "PartitionName=fill", "State=DOWN")
    train(supplied, "n1")
    lends(supplied, "f1")
    time.sleep(3)
    assert partition_state(supplied) == "down"
    supplied.check("scontrol", "update", "PartitionName=fill", "State=UP")
    time.sleep(2)
    assert partition_state(supplied) == "up"


def test_a_dead_controller_leaves_fills_running_and_comes_back_consistent(
    supplied: Cluster,
) -> None:
    training = train(supplied, "n1", mode="on,mem=10G")
    lends(supplied, "f1", 10)
    job = fill(supplied)
    supplied.wait_state(job, "RUNNING")
    supplied.kill("sfillctld", signal.SIGKILL)
    supplied.check("scancel", str(training))  # the supply that stands is wrong from here on
    supplied.start("sfillctld")
    lends_nothing(supplied, "f1", timeout_s=20.0)
    # The fill that was evicted meanwhile is requeued once the controller is back.
    supplied.wait_state(job, "PENDING", timeout_s=30.0)
    train(supplied, "n2", mode="on,mem=10G")
    supplied.wait_state(job, "RUNNING", timeout_s=20.0)
    assert supplied.job(job)["NodeList"] == "f2"


def test_a_node_whose_agent_dies_is_drained(supplied: Cluster) -> None:
    train(supplied, "n1")
    lends(supplied, "f1")
    supplied.kill("sfilld-n1", signal.SIGKILL)
    try:
        lends_nothing(supplied, "f1", timeout_s=20.0)
        assert "Reason=sfill: the node does not report" in record(supplied, "f1")
        supplied.wait(
            lambda: any("n1" in str(event) for event in events(supplied, "silent")),
            5.0,
            lambda: f"an event; there is {events(supplied, 'silent')}",
        )
    finally:
        supplied.start("sfilld-n1")
    lends(supplied, "f1", timeout_s=30.0)
