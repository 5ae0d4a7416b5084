"""Sharing by MPS through Slurm: what steps of trainings and fills are given, and when it is over.

The control daemon is a stand-in: the simulated GPU itself shares by time slicing. tests/hardware
tries the real one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import USERS, Cluster, program
from tests.cluster.driver import kernels_of
from tests.cluster.workloads import wait_kernels, wait_lends
from tests.unit.stand_in_mps import StandInMps, is_there, process_of

SHOW = "env | grep -E '^CUDA_MPS_' | sort"


@pytest.fixture
def mps(cluster: Cluster, tmp_path: Path) -> Iterator[StandInMps]:
    """An agent of n1 whose site shares by MPS, with fills of anyone."""
    stand_in = StandInMps(tmp_path)
    file = cluster.sandbox.node_conf("n1")
    before = file.read_text()
    own = f'share = "mps"\nmps_for = "any"\nmps_program = "{stand_in.program}"\n'
    file.write_text(before + own + "mps_thread_percentage = 70\n")
    restart(cluster)
    yield stand_in
    cluster.cancel_all()
    file.write_text(before)
    restart(cluster)


def restart(cluster: Cluster) -> None:
    """Restarts the agent of n1; returned once it serves."""
    cluster.restart("sfilld-n1")
    cluster.wait(cluster.sandbox.agent_socket("n1").exists, 10.0, "the agent to serve")


def test_training_and_fill_of_two_users_meet_at_the_trainings_own_mps_daemon(
    cluster: Cluster, mps: StandInMps
) -> None:
    train = cluster.submit(
        *("-w", "n1", "--gres=gpu:1", "--fill-host=on"),
        script=f"{SHOW}\n" + program("simtrain", "--seconds", 60, "--stall-ms", 40),
    )
    wait_lends(cluster, "f1")
    fill = cluster.submit(
        *("--fill=mem=1G", "--export=NONE"),
        script=f"{SHOW}\n{cluster.sandbox.folder}/bin/siminfer --seconds 60",
        user=USERS[1],
    )
    wait_kernels(cluster, fill)
    pipe = cluster.sandbox.run / f"mps-n1/{train}/pipe"
    assert cluster.output(train).splitlines()[0] == f"CUDA_MPS_PIPE_DIRECTORY={pipe}"
    assert cluster.output(fill).splitlines()[:3] == [
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=70",
        "CUDA_MPS_CLIENT_PRIORITY=1",
        f"CUDA_MPS_PIPE_DIRECTORY={pipe}",
    ]
    gpus = {each.gpu for each in kernels_of(cluster, train)}
    assert gpus == {each.gpu for each in kernels_of(cluster, fill)}
    (begins,) = mps.calls("begins")
    assert begins.endswith("-d -M") and len(begins.split()[1].split(",")) == 1
    (row,) = [each for each in listed(cluster) if each["job_id"] == train]
    assert (row["share_mode"], row["share_reason"]) == ("mps", "the node's setting")

    daemon = process_of(pipe)
    restart(cluster)
    assert is_there(daemon)
    cluster.check("scancel", str(train))
    cluster.wait_end(train)
    cluster.wait(lambda: not is_there(daemon), 10.0, "the daemon to go with its training")
    assert not pipe.exists()


def listed(cluster: Cluster) -> list[dict[str, object]]:
    found = cluster.sfill_json("jobs", "--kind", "host")
    assert isinstance(found, list)
    return found


def test_a_job_from_within_a_job_keeps_nothing_of_its_daemon(
    cluster: Cluster, mps: StandInMps
) -> None:
    inner = cluster.files / "inner.txt"
    outer = cluster.submit(
        *("-w", "n1", "--gres=gpu:1", "--fill-host=on"),
        script=f"sbatch -w n1 --gres=gpu:1 --fill-host=on,share=timeslice --output={inner} "
        f"--wrap='env | grep MPS; echo end'\nsleep 60",
    )

    def done() -> bool:
        return inner.exists() and "end" in inner.read_text()

    cluster.wait(done, 20.0, lambda: f"the inner job's output; {cluster.output(outer)}")
    assert inner.read_text() == "end\n"
