"""Fill jobs beside training, step by step: who gets which role, and what reaches which GPU.

That a program ran on a GPU is shown by its kernels in the simulated driver's own log.
"""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.cluster.cluster import USERS, Cluster, program
from tests.cluster.driver import kernels_of
from tests.cluster.workloads import wait_lends

TRAINER, INFERRER = USERS
ITEMS = 40
KERNELS_PER_ITEM = 20
KERNELS = ITEMS * KERNELS_PER_ITEM
INFER = f"siminfer --items {ITEMS} --kernels-per-batch {KERNELS_PER_ITEM}"
ROLE = "env | grep -E '^(SFILL_ROLE|LD_PRELOAD|CUDA_VISIBLE_DEVICES)=' | sort"


def lend(cluster: Cluster, *options: str, gpus: int = 1, seconds: int = 60) -> int:
    """A training of the first user on n1 that lends; returned once its twin has supply."""
    cluster.wait(lambda: cluster.supply("f1") == 0, 20.0, "the last test's supply to go")
    job_id = cluster.submit(
        *("-w", "n1", f"--gres=gpu:{gpus}", "--fill-host=on", *options),
        # By its whole path: without the user's environment there is no PATH to our programs.
        script=program(
            *(f"{cluster.sandbox.folder}/bin/simtrain", "--seconds", seconds, "--devices", gpus)
        ),
        user=TRAINER,
    )
    wait_lends(cluster, "f1")
    return job_id


def fill(cluster: Cluster, script: str, *options: str, memory: str = "1G") -> int:
    """A fill job of the second user."""
    return cluster.submit(f"--fill=mem={memory}", *options, script=script, user=INFERRER)


def events(cluster: Cluster, job_id: int, what: str) -> list[str]:
    """Texts of a job's events in the audit log."""
    found = cluster.sfill_json("events")
    assert isinstance(found, list)
    return [
        each["text"] for each in found if each["slurm_job_id"] == job_id and each["what"] == what
    ]


def test_slurm_places_a_fill_of_another_user_on_the_gpu_that_training_holds(
    cluster: Cluster,
) -> None:
    train = lend(cluster)
    job_id = fill(cluster, INFER)
    assert cluster.wait_end(job_id) == "COMPLETED", cluster.output(job_id)
    assert cluster.job(job_id)["NodeList"] == "f1"
    cluster.check("scancel", str(train))
    cluster.wait_end(train)
    filled, trained = kernels_of(cluster, job_id), kernels_of(cluster, train)
    assert len(filled) == KERNELS
    assert len({each.gpu for each in filled}) == 1
    assert {each.gpu for each in filled} == {each.gpu for each in trained}
    assert trained[0].start_ns < filled[0].start_ns
    assert filled[-1].end_ns < trained[-1].end_ns


def test_exclusive_training_with_all_memory_is_as_it_would_be_without_us(cluster: Cluster) -> None:
    train = lend(cluster, "--exclusive", "--mem=0", gpus=2)
    whole = cluster.job(train)
    assert whole["TRES"] == "cpu=16,mem=62.50G,node=1,billing=16,gres/gpu=2"
    job_id = fill(cluster, f"{INFER}; exec siminfer --seconds 60")
    cluster.wait_state(job_id, "RUNNING")
    # The next one waits for the first and for nothing else, although a fill is on the host.
    after = cluster.submit(
        *("-w", "n1", "--gres=gpu:2", "--exclusive", "--mem=0"),
        script=program("simtrain", "--iterations", 5, "--devices", 2),
        user=TRAINER,
    )
    cluster.wait(lambda: f'"done": {ITEMS}' in cluster.output(job_id), 20.0, "results of the fill")
    assert cluster.state(after) == "PENDING"
    cluster.check("scancel", str(train))
    assert cluster.wait_end(after) == "COMPLETED", cluster.output(after)
    for job in (train, after):
        assert {each.gpu for each in kernels_of(cluster, job)} == {0, 1}
    assert len(kernels_of(cluster, job_id)) >= KERNELS


@pytest.mark.parametrize("export", ["NONE", "OTHER=1"])
def test_the_role_does_not_hang_on_what_is_exported(cluster: Cluster, export: str) -> None:
    programs = cluster.sandbox.folder / "bin"
    lend(cluster, f"--export={export}", "--chdir=/tmp", "--output=/dev/null")
    job_id = fill(
        cluster,
        f"{ROLE}; exec {programs}/{INFER}",
        f"--export={export},PATH" if export != "NONE" else "--export=NONE",
    )
    assert cluster.wait_end(job_id) == "COMPLETED", cluster.output(job_id)
    assert "SFILL_ROLE=gate" in cluster.output(job_id)
    assert len(kernels_of(cluster, job_id)) == KERNELS


def test_steps_of_a_fill_reach_its_gpu_and_no_other(cluster: Cluster) -> None:
    lend(cluster)
    probe = """
python3 - <<'PYTHON'
import errno, glob, os
for path in sorted(glob.glob(os.environ["SFILL_SANDBOX"] + "/dev/nvidia*")):
    try:
        os.open(path, os.O_RDWR)
    except OSError as error:
        print("device", path[-1], errno.errorcode[error.errno])
PYTHON
"""
    file = cluster.files / "probe.sh"
    file.write_text(f"#!/bin/bash\n{probe}")
    file.chmod(0o755)
    script = f"{file}; {INFER}; srun {file}; srun -n2 --overcommit {INFER}"
    job_id = fill(cluster, script, memory="2G")  # two contexts at a time
    assert cluster.wait_end(job_id) == "COMPLETED", cluster.output(job_id)
    seen = [line.split()[1:] for line in cluster.output(job_id).splitlines() if "device" in line]
    assert len(seen) == 8  # four devices, in batch and step
    (minor,) = {each.gpu for each in kernels_of(cluster, job_id)}
    for number, answer in seen:
        assert answer == ("ENXIO" if int(number) == minor else "EPERM"), seen
    assert len(kernels_of(cluster, job_id)) == 3 * KERNELS


@pytest.mark.parametrize("command", [["srun"], ["salloc", "srun"]])
def test_srun_and_salloc_run_fills_as_well(cluster: Cluster, command: list[str]) -> None:
    lend(cluster)
    first, *rest = command
    words = [first, "--fill=mem=1G", *rest, "bash", "-c", f"echo job $SLURM_JOB_ID; exec {INFER}"]
    answer = cluster.run(*words, user=INFERRER, timeout_s=30.0)
    assert answer.returncode == 0, answer.stderr
    job_id = int(answer.stdout.partition("job ")[2].split()[0])
    assert cluster.job(job_id)["Partition"] == "fill"
    assert len(kernels_of(cluster, job_id)) == KERNELS


def test_each_component_of_a_heterogeneous_job_has_its_own_role(cluster: Cluster) -> None:
    lend(cluster)
    show = "bash -c 'echo $SLURMD_NODENAME role=$SFILL_ROLE'"
    script = f"srun --het-group=0 {show}\nsrun --het-group=1 {show}\nsrun --het-group=0 {INFER}"
    job_id = fill(cluster, script, ":", "-w", "n2", "--gres=gpu:1")
    assert cluster.wait_end(job_id) == "COMPLETED", cluster.output(job_id)
    assert cluster.output(job_id).splitlines()[:2] == ["f1 role=gate", "n2 role=monitor"]
    assert len(kernels_of(cluster, job_id)) == KERNELS


def test_an_ordinary_step_does_not_gain_the_role_by_the_option(cluster: Cluster) -> None:
    lend(cluster)
    for options, role in (([], None), (["-w", "n2", "--gres=gpu:1"], "monitor")):
        job_id = cluster.submit(
            *options, script=f'srun --fill=mem=1G bash -c "{ROLE}"', user=INFERRER
        )
        cluster.wait_end(job_id)
        text = cluster.output(job_id)
        assert "sfill: --fill changes nothing for a step" in text
        assert ("SFILL_ROLE=" in text) is (role is not None)
        assert f"SFILL_ROLE={role}" in text or role is None


def test_an_ordinary_job_does_not_gain_the_role_by_its_environment(cluster: Cluster) -> None:
    lend(cluster)
    library = cluster.sandbox.folder / "lib/libspecinf.so"
    socket = cluster.sandbox.agent_socket("n1")
    forged = (
        f"export LD_PRELOAD={library} SFILL_ROLE=gate SFILL_SOCKET={socket} "
        "CUDA_VISIBLE_DEVICES=0 SLURM_JOB_PARTITION=fill"
    )
    job_id = cluster.submit("-w", "n1", script=f"{forged}\n{INFER}\nsrun {INFER}", user=INFERRER)
    assert cluster.wait_end(job_id) == "FAILED"
    assert "CUDA_ERROR_NO_DEVICE" in cluster.output(job_id)
    assert kernels_of(cluster, job_id) == []


def test_a_step_of_a_fill_does_not_lose_the_role_with_option_and_environment(
    cluster: Cluster,
) -> None:
    lend(cluster)
    dropped = " ".join(
        f"-u {name}"
        for name in (
            "_SLURM_SPANK_OPTION_fill_fill",
            "SLURM_SPANK__SLURM_SPANK_OPTION_fill_fill",
            "SLURM_SPANK_FILL_SPEC",
            *("LD_PRELOAD", "SFILL_ROLE", "SFILL_SOCKET", "CUDA_VISIBLE_DEVICES"),
        )
    )
    steps = [f'env {dropped} SLURM_JOB_PARTITION=train srun bash -c "{ROLE}; exec {INFER}"']
    job_id = fill(cluster, "\n".join(steps))
    assert cluster.wait_end(job_id) == "COMPLETED", cluster.output(job_id)
    assert "SFILL_ROLE=gate" in cluster.output(job_id)
    assert len(kernels_of(cluster, job_id)) == KERNELS
    cluster.wait(
        lambda: any("is gated" in text for text in events(cluster, job_id, "attached")),
        10.0,
        "the attachment in the audit log",
    )


def test_a_process_that_drops_the_interposer_is_stopped_within_a_second(cluster: Cluster) -> None:
    lend(cluster)
    job_id = fill(cluster, 'unset LD_PRELOAD; siminfer --seconds 20; echo "ended with $?"')
    cluster.wait_end(job_id)
    assert "ended with 0" not in cluster.output(job_id)
    seen = kernels_of(cluster, job_id)
    assert seen and seen[-1].end_ns - seen[0].start_ns < 1.5e9


def test_with_a_library_that_was_cut_short_training_runs_and_a_fill_goes_back_into_the_queue(
    cluster: Cluster,
) -> None:
    lend(cluster)
    library = cluster.sandbox.folder / "lib/libspecinf.so"
    aside = cluster.files / "whole-libspecinf.so"
    aside.write_bytes(library.read_bytes())
    broken = cluster.files / "broken-libspecinf.so"
    broken.write_bytes(aside.read_bytes()[:100_000])
    script = program("simtrain", "--iterations", 3, "--stall-ms", 1)
    broken.replace(library)
    try:
        job_id = cluster.submit("-w", "n1", "--gres=gpu:1", "--fill-host=on", script=script)
        assert cluster.wait_end(job_id) == "COMPLETED", cluster.output(job_id)
        assert kernels_of(cluster, job_id)
        waiting = fill(cluster, f"echo ran; {INFER}")
        cluster.wait(lambda: int(cluster.job(waiting)["Restarts"]) == 1, 20.0, "its requeue")
        cluster.check("scancel", str(waiting))
        assert "the interposer's library is cut short" in cluster.output(waiting)
        assert "ran" not in cluster.output(waiting)
    finally:
        aside.chmod(0o755)
        aside.replace(library)


def test_without_its_agent_a_fill_does_not_start_and_training_does(cluster: Cluster) -> None:
    lend(cluster)
    job_id = fill(
        cluster,
        f'touch started; while [ ! -e gone ]; do sleep 0.1; done; srun {INFER}; echo "step $?"',
        f"--chdir={cluster.files}",
    )
    started, gone = cluster.files / "started", cluster.files / "gone"
    cluster.wait(started.exists, 20.0, "the fill to run")
    try:
        cluster.kill("sfilld-n1", signal.SIGKILL)
        began = time.monotonic()
        train = cluster.submit(
            *("-w", "n1", "--gres=gpu:1"), script="simtrain --iterations 3", user=TRAINER
        )
        gone.touch()
        assert cluster.wait_end(train) == "COMPLETED"
        assert time.monotonic() - began < 10
        assert cluster.wait_end(job_id) == "COMPLETED"
    finally:
        cluster.start("sfilld-n1")
        started.unlink()
        gone.unlink(missing_ok=True)
    assert "sfill: this fill job can't run here: the node agent is not running" in cluster.output(
        job_id
    )
    assert "step 1" in cluster.output(job_id)
    assert kernels_of(cluster, job_id) == []
    assert len(kernels_of(cluster, train)) > 0


def test_a_deaf_agent_sends_a_batch_fill_back_ends_others_and_drains_nothing(
    cluster: Cluster,
) -> None:
    lend(cluster)
    agent = cluster.pid("sfilld-n1")
    os.kill(agent, signal.SIGSTOP)
    try:
        job_id = fill(cluster, f"echo ran; {INFER}")
        cluster.wait(
            lambda: (
                int(cluster.job(job_id)["Restarts"]) == 1 and cluster.state(job_id) == "PENDING"
            ),
            15.0,
            lambda: f"the fill to be requeued; it is {cluster.job(job_id)}",
        )
        answer = cluster.run("srun", "--fill=mem=1G", "echo", "ran", user=INFERRER)
        assert answer.returncode != 0 and answer.stdout == ""
        assert "sfill: this fill job can't run now: the node agent does not answer" in answer.stderr
    finally:
        os.kill(agent, signal.SIGCONT)
    assert "ran" not in cluster.output(job_id).splitlines()
    assert kernels_of(cluster, job_id) == []
    for node in ("n1", "f1"):
        reason = cluster.check("sinfo", "-h", "-n", node, "-o", "%E").strip()
        assert "rolog" not in reason, reason
    wait_lends(cluster, "f1", 20.0)
