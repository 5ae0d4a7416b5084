"""What sfillctld does to jobs on a real Slurm: requeue, cancel with a reason, figures in sacct."""

from __future__ import annotations

import subprocess

from tests.cluster.cluster import USERS, Cluster
from tests.cluster.test_supply import events, fill, lends, lends_nothing, supplied, train
from tests.slow import SLOW

__all__ = ["supplied"]


def comment(cluster: Cluster, job_id: int) -> str:
    # Slurm 22.05 stores the quotes of an ended job's comment as backticks.
    text = cluster.check("sacct", "-X", "-n", "-P", "-j", str(job_id), "-o", "AdminComment")
    return text.strip().replace("`", '"')


@SLOW
def test_an_evicted_batch_fill_runs_on_elsewhere_within_seconds(supplied: Cluster) -> None:
    training = train(supplied, "n1")
    job = fill(supplied)
    supplied.wait_state(job, "RUNNING")
    assert supplied.job(job)["NodeList"] == "f1"
    train(supplied, "n2")
    lends(supplied, "f2")
    supplied.check("scancel", str(training))
    supplied.wait(lambda: supplied.job(job)["Restarts"] == "1", 10.0, "the fill to be requeued")
    supplied.wait_state(job, "RUNNING", timeout_s=25.0)
    assert supplied.job(job)["NodeList"] == "f2"


def gated(cluster: Cluster) -> list[dict[str, object]]:
    """Processes of fills that the agents have taken on so far."""
    return [row for row in events(cluster, "attached") if "is gated" in str(row["text"])]


# siminfer alone may heed SIGTERM in time and end with 0; a shell dies of it.
PROGRAM = "sh -c 'siminfer --seconds 120; exit 3'"


def test_an_evicted_srun_fill_is_cancelled_and_its_user_is_told_why(supplied: Cluster) -> None:
    training = train(supplied, "n1")
    lends(supplied, "f1")
    before = len(gated(supplied))
    line = f". {supplied.sandbox.folder}/env; exec srun --fill=mem=2G {PROGRAM}"
    with subprocess.Popen(
        [
            *("setpriv", f"--reuid={USERS[1]}", f"--regid={USERS[1]}", "--init-groups"),
            *("bash", "-c", line),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=supplied.files,
        env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/tmp"},
    ) as srun:
        supplied.wait(lambda: len(gated(supplied)) > before, 15.0, "srun's program to run")
        supplied.check("scancel", str(training))
        said, _ = srun.communicate(timeout=40)
    assert "sfill: the GPU is no longer lent" in said, said
    assert srun.returncode != 0


def test_ended_jobs_show_their_figures_in_sacct(supplied: Cluster) -> None:
    training = train(supplied, "n1")
    job = fill(supplied)
    supplied.wait_state(job, "RUNNING")
    supplied.check("scancel", str(job))
    supplied.wait_end(job)
    supplied.wait(lambda: '"role":"fill"' in comment(supplied, job), 30.0, "the fill's figures")
    supplied.check("scancel", str(training))
    supplied.wait_end(training)
    supplied.wait(lambda: '"role":"host"' in comment(supplied, training), 30.0, "the host's")
    assert '"mode":"on"' in comment(supplied, training)


def test_off_drains_all_twins_and_on_brings_them_back(supplied: Cluster) -> None:
    train(supplied, "n1")
    lends(supplied, "f1")
    supplied.check("sfill", "off", "--reason", "maintenance")
    try:
        lends_nothing(supplied, "f1", timeout_s=3.0)
        supplied.restart("sfillctld")  # the switch outlives the controller
        said: list[str] = []

        def refused() -> bool:
            said.append(supplied.run("sfill", "on", user=USERS[0]).stderr)
            return "not allowed" in said[-1]

        supplied.wait(refused, 15.0, lambda: f"an ordinary user to be refused; sfill said {said}")
        assert supplied.supply("f1") == 0
    finally:
        supplied.check("sfill", "on")
    lends(supplied, "f1")
