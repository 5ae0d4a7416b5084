"""Slurm's cgroup paths, and paths that only look like them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from agent.job_of_process import JobFinder, JobOfProcess, job_in_cgroups, job_in_environment

V1 = "9:name=systemd:/\n5:devices:{path}\n4:memory:/process_api/a6\n0::/\n"
V2 = "0::{path}\n"


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        (V1, "/slurm/uid_1000/job_12/step_0/task_0", JobOfProcess(12, "0", "")),
        (V1, "/slurm_n1/uid_1000/job_12/step_batch/task_0", JobOfProcess(12, "batch", "n1")),
        (V1, "/slurm_n1/uid_0/job_12/step_0", JobOfProcess(12, "0", "n1")),
        (V1, "/slurm_f1/uid_0/job_7/step_extern/task_special", JobOfProcess(7, "extern", "f1")),
        (V1, "/slurm_n1/uid_0/job_12", JobOfProcess(12, "", "n1")),
        (
            V2,
            "/system.slice/slurmstepd.scope/job_12/step_0/user/task_0",
            JobOfProcess(12, "0", ""),
        ),
        (
            V2,
            "/system.slice/n1_slurmstepd.scope/job_12/step_batch/slurm",
            JobOfProcess(12, "batch", "n1"),
        ),
        (V2, "/f1_slurmstepd.scope/job_3/step_0/user/task_0", JobOfProcess(3, "0", "f1")),
    ],
)
def test_paths_of_slurm(text: str, path: str, expected: JobOfProcess) -> None:
    assert job_in_cgroups(text.format(path=path)) == expected


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (V1, "/"),
        (V1, "/slurm_n1"),
        (V1, "/slurm_n1/uid_0/job_x"),
        (V1, "/user/evil/slurm_n1/uid_0/job_12/step_0"),
        (V1, "/slurm_n1/uid_0/job_12x"),
        (V2, "/user.slice/user-1000.slice/slurmstepd.scope/job_12/step_0"),
        (V2, "/user.slice/user@1000.service/system.slice/slurmstepd.scope/job_12"),
        (V2, "/system.slice/slurmd.service"),
        # Version 1's form on version 2's line is no job, and the other way round.
        (V2, "/slurm/uid_0/job_12/step_0"),
        (V1, "/system.slice/slurmstepd.scope/job_12/step_0"),
    ],
)
def test_other_paths_are_no_job(text: str, path: str) -> None:
    assert job_in_cgroups(text.format(path=path)) is None


@pytest.mark.parametrize("brk", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_no_name_of_a_cgroup_begins_a_line_of_its_own(tmp_path: Path, brk: str) -> None:
    """Whoever may make cgroups below his session may name them with all but a newline."""
    forged = f"/user.slice/user-1000.slice/a{brk}0::/system.slice/slurmstepd.scope/job_12/step_0"
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "cgroup").write_bytes(f"0::{forged}\n".encode())
    assert JobFinder(proc=tmp_path).job_of(5) is None


def test_a_cgroup_whose_name_is_no_text_is_found_in_its_job(tmp_path: Path) -> None:
    path = b"0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0"
    for process_id, more in ((5, b"/\xff\xfe"), (6, b"")):
        (tmp_path / str(process_id)).mkdir()
        (tmp_path / str(process_id) / "cgroup").write_bytes(path + more + b"\n")
        name = "a推理推理推理".encode()[:15]  # as the kernel cuts it
        (tmp_path / str(process_id) / "status").write_bytes(b"Name:\t%b\nUid:\t0\t0\n" % name)
    found = JobFinder(proc=tmp_path).processes_of_jobs()
    assert {key: sorted(each) for key, each in found.items()} == {12: [5, 6]}


def test_line_with_a_step_wins() -> None:
    text = "5:devices:/slurm_n1/uid_0/job_12/step_1\n6:freezer:/slurm_n1/uid_0/job_12\n"
    assert job_in_cgroups(text) == JobOfProcess(12, "1", "n1")
    assert job_in_cgroups("\n".join(reversed(text.splitlines()))) == JobOfProcess(12, "1", "n1")


def test_environment_is_for_tests() -> None:
    ours = b"A=1\0SFILL_SOCKET=/s\0"
    found = job_in_environment(ours + b"SLURM_JOB_ID=5\0SLURM_STEP_ID=2\0", "/s")
    assert found == JobOfProcess(5, "2", "")
    assert job_in_environment(ours + b"SLURM_JOB_ID=5\0", "/other") is None
    assert job_in_environment(ours + b"SLURM_JOB_ID=x\0", "/s") is None
    assert job_in_environment(b"", "/s") is None


def test_process_that_is_gone_has_no_job() -> None:
    finder = JobFinder()
    assert finder.job_of(2**22 + 1) is None
    assert finder.job_of(os.getpid()) is None


@pytest.mark.parametrize(
    ("name", "user_id", "counts"),
    [("slurmstepd", 0, False), ("slurmstepd", 1001, True), ("python3", 0, True)],
)
def test_no_user_hides_a_process_by_slurms_own_name(
    tmp_path: Path, name: str, user_id: int, counts: bool
) -> None:
    process = tmp_path / "77"
    process.mkdir()
    (process / "cgroup").write_text(V1.format(path="/slurm_n1/uid_1001/job_12/step_0"))
    (process / "status").write_text(f"Name:\t{name}\nUid:\t{user_id}\t0\t0\t0\n")
    found = JobFinder(proc=tmp_path).processes_of_jobs()
    assert found == ({12: [77]} if counts else {})


def fill_process(proc: Path, socket_path: str) -> None:
    process = proc / "77"
    process.mkdir(parents=True)
    (process / "cgroup").write_text(V1.format(path="/slurm_f1/uid_1001/job_12/step_0"))
    (process / "environ").write_text(f"SFILL_ROLE=gate\0SFILL_SOCKET={socket_path}\0")


@pytest.mark.parametrize("other", [True, False], ids=["another-agent", "ours"])
def test_a_fill_of_another_cluster_with_nodes_of_the_same_name_is_not_ours(
    tmp_path: Path, other: bool
) -> None:
    ours, theirs = tmp_path / "ours.sock", tmp_path / "theirs.sock"
    listeners = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for listener, path in zip(listeners, (ours, theirs), strict=True):
        listener.bind(str(path))
    fill_process(tmp_path / "proc", str(theirs if other else ours))
    found = JobFinder(proc=tmp_path / "proc").gated_processes("f1", str(ours))
    for listener in listeners:
        listener.close()
    assert found == ({} if other else {12: [77]})


def test_a_fill_hides_behind_no_socket_that_is_no_agents(tmp_path: Path) -> None:
    ours, users = tmp_path / "ours.sock", tmp_path / "users.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(users))
    os.chown(users, 1001, 1001)
    for number, path in enumerate((users, tmp_path / "nothing", tmp_path, "")):
        proc = tmp_path / f"proc{number}"
        fill_process(proc, str(path))
        assert JobFinder(proc=proc).gated_processes("f1", str(ours)) == {12: [77]}
    listener.close()
