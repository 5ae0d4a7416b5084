"""Sharing by MPS through Slurm: what steps of trainings and fills are given, and when it is over.

The simulated GPU has MPS with a control program of its own; tests/hardware tries the real one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.mps_daemon import MpsDaemon
from tests.cluster.cluster import USERS, Cluster, program
from tests.cluster.driver import kernels_of
from tests.cluster.workloads import wait_kernels, wait_lends
from tests.slow import SLOW
from tests.unit.stand_in_mps import is_there, process_of

SHOW = "env | grep -E '^CUDA_MPS_' | sort"


CONTROL = Path(__file__).parents[2] / "build/simgpu/bin/simmps-control"


@pytest.fixture
def mps(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """An agent of n1 whose site shares by MPS, with fills of anyone; its control program."""
    program = tmp_path / "mps-control"
    state = cluster.sandbox.folder / "gpu/state"
    program.write_text(f'#!/bin/sh\nexport SIMGPU_DIR={state}\nexec {CONTROL} "$@"\n')
    program.chmod(0o755)
    file = cluster.sandbox.node_conf("n1")
    before = file.read_text()
    own = f'share = "mps"\nmps_for = "any"\nmps_program = "{program}"\n'
    file.write_text(before + own + "mps_thread_percentage = 70\nendless_s = 0.5\n")
    restart(cluster)
    yield program
    cluster.cancel_all()
    file.write_text(before)
    restart(cluster)


def restart(cluster: Cluster) -> None:
    """Restarts the agent of n1; returned once it serves."""
    cluster.restart("sfilld-n1")
    cluster.wait(cluster.sandbox.agent_socket("n1").exists, 10.0, "the agent to serve")


def test_training_and_fill_of_two_users_meet_at_the_trainings_own_mps_daemon(
    cluster: Cluster, mps: Path
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
    clients = MpsDaemon(str(mps), pipe.parent, (), True).clients()
    assert len(clients) == 2 and len(set(clients.values())) == 1
    row = row_of(cluster, train)
    assert (row["share_mode"], row["share_reason"]) == ("mps", "the node's setting")

    daemon = process_of(pipe)
    restart(cluster)
    assert is_there(daemon)
    cluster.check("scancel", str(train))
    cluster.wait_end(train)
    cluster.wait(lambda: not is_there(daemon), 10.0, "the daemon to go with its training")
    assert not pipe.exists()


def row_of(cluster: Cluster, job_id: int) -> dict[str, object]:
    found = cluster.sfill_json("jobs", "--kind", "host")
    assert isinstance(found, list)
    (row,) = [each for each in found if each["job_id"] == job_id]
    assert isinstance(row, dict)
    return row


def test_a_job_from_within_a_job_keeps_nothing_of_its_daemon(cluster: Cluster, mps: Path) -> None:
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


@SLOW
def test_a_fill_is_off_the_server_before_it_is_killed_so_that_training_goes_on(
    cluster: Cluster, mps: Path
) -> None:
    """A client that dies with work on the GPU ends all clients of the simulated server."""
    train = cluster.submit(
        *("-w", "n1", "--gres=gpu:1", "--fill-host=on"),
        script=program("simtrain", "--seconds", 12, "--stall-ms", 40),
    )
    wait_lends(cluster, "f1")
    endless = "SIMGPU_ENDLESS_KERNEL=infer_gemm:40"
    fill = cluster.submit(
        *("--fill=mem=1G", "--no-requeue"),
        script=f"export {endless}\n" + program("siminfer", "--seconds", 60),
        user=USERS[1],
    )
    cluster.wait(lambda: bool(told(cluster, fill, "killed")), 20.0, "the agent to kill the fill")
    assert cluster.wait_end(train) == "COMPLETED", cluster.output(train)
    taken_off = told(cluster, train, "mps_client")
    assert taken_off and "was taken off the MPS server" in str(taken_off[0]["text"])
    assert row_of(cluster, train)["share_mode"] == "mps"


def told(cluster: Cluster, job_id: int, what: str) -> list[dict[str, Any]]:
    """A job's events of one kind, newest first."""
    found = cluster.sfill_json("events")
    assert isinstance(found, list)
    return [each for each in found if (each["slurm_job_id"], each["what"]) == (job_id, what)]
