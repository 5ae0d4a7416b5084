"""The sandbox itself: a real Slurm whose jobs see their GPUs and no others, gone when down."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from deploy.sandbox import cgroups, ports, services
from deploy.sandbox.layout import load
from tests.cluster.cluster import USERS, Cluster
from tests.cluster.conftest import down, up

# Tries to open every device node: `0 ok`, `1 EPERM` ... A simulated device that the cgroup allows
# says ENXIO, since no driver is behind it.
PROBE = """
python3 - <<'PYTHON'
import errno, glob, os
for path in sorted(glob.glob(os.environ["SFILL_SANDBOX"] + "/dev/nvidia*")):
    try:
        os.close(os.open(path, os.O_RDWR))
        answer = "ok"
    except OSError as error:
        answer = errno.errorcode[error.errno]
    print("device", path[len(path.rstrip("0123456789")):], answer)
PYTHON
"""


def devices_seen(cluster: Cluster, job_id: int) -> dict[int, str]:
    words = [line.split() for line in cluster.output(job_id).splitlines()]
    return {int(line[1]): line[2] for line in words if line[:1] == ["device"]}


def test_users_jobs_run_and_are_accounted(cluster: Cluster) -> None:
    for user in USERS:
        job_id = cluster.submit("--gres=gpu:1", script="id -un", user=user)
        assert cluster.wait_end(job_id) == "COMPLETED"
        assert cluster.output(job_id) == f"{user}\n"
        cluster.wait(
            lambda job=job_id: (
                "COMPLETED"  # type: ignore[misc]
                in cluster.check("sacct", "-n", "-X", "-j", str(job), "-o", "State")
            ),
            10.0,
            "the job in sacct",
        )


@pytest.mark.parametrize(("node", "own"), [("n1", {0, 1}), ("n2", {2, 3})])
def test_a_job_sees_its_gpus_and_no_others(cluster: Cluster, node: str, own: set[int]) -> None:
    one = cluster.submit("--gres=gpu:1", "-w", node, script=PROBE)
    assert cluster.wait_end(one) == "COMPLETED"
    seen = devices_seen(cluster, one)
    allowed = {minor for minor, answer in seen.items() if answer == "ENXIO"}
    assert len(allowed) == 1 and allowed < own
    assert {seen[minor] for minor in set(range(4)) - allowed} == {"EPERM"}

    both = cluster.submit("--gres=gpu:2", "-w", node, script=PROBE)
    assert cluster.wait_end(both) == "COMPLETED"
    seen = devices_seen(cluster, both)
    assert {minor for minor, answer in seen.items() if answer == "ENXIO"} == own


def test_a_job_without_gpu_is_denied_all_devices(cluster: Cluster) -> None:
    job_id = cluster.submit(script=PROBE)
    assert cluster.wait_end(job_id) == "COMPLETED"
    assert devices_seen(cluster, job_id) == dict.fromkeys(range(4), "EPERM")


def test_down_leaves_nothing_behind_and_up_works_again(users: tuple[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="sfill-test-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for _ in range(2):
            _boot_run_and_take_down(folder)


def _boot_run_and_take_down(folder: Path) -> None:
    answer = up(folder, "--nodes", "1", "--gpus", "sim:1", "--no-accounting")
    assert answer.returncode == 0, answer.stderr
    sandbox = load(folder)
    cluster = Cluster(sandbox, folder / "run")
    (folder / "run").chmod(0o1777)
    device = Path(sandbox.gpus[0][0].device)
    assert stat.S_ISCHR(device.stat().st_mode)
    # A job that starts a daemon of its own and does not react to TERM.
    script = "trap '' TERM; setsid sleep 1000 & wait; sleep 1000"
    job_id = cluster.submit("--gres=gpu:1", script=script)
    cluster.wait_state(job_id, "RUNNING")
    cluster.wait(lambda: bool(_processes_of(USERS[0], "sleep 1000")), 5.0, "the job's processes")
    assert cgroups.remaining(sandbox)

    answer = down(folder)
    assert answer.returncode == 0, answer.stderr
    assert not services.leftovers(folder)
    assert not _processes_of(USERS[0], "sleep 1000")
    assert not cgroups.remaining(sandbox)
    assert str(folder) not in Path("/proc/self/mounts").read_text()
    assert not device.exists()
    assert not (folder / "run/sandbox.json").exists()


def _processes_of(user: str, command: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                if b" ".join(words).decode() == command and entry.owner() == user:
                    found.append(int(entry.name))
            except (OSError, KeyError):
                continue
    return found


def test_its_database_has_its_temporary_tables_where_no_other_deletes_them(
    cluster: Cluster,
) -> None:
    sandbox = cluster.sandbox
    client = ["mariadb", "--no-defaults", "-S", f"{sandbox.run}/mariadb.sock", "-N", "-e"]
    told = subprocess.run([*client, "select @@tmpdir"], capture_output=True, text=True)
    assert told.stdout.strip() == f"{sandbox.folder}/db", told.stderr


def test_two_sandboxes_stand_side_by_side(cluster: Cluster) -> None:
    with tempfile.TemporaryDirectory(prefix="sfill-test-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        answer = up(folder, "--nodes", "1", "--gpus", "sim:1", "--no-accounting")
        assert answer.returncode == 0, answer.stderr
        try:
            other = load(folder)
            assert other.port_base != cluster.sandbox.port_base
            assert ports.others(folder)
            job_id = cluster.submit("--gres=gpu:1", "-w", "n1", script="sleep 1000")
            cluster.wait_state(job_id, "RUNNING")
        finally:
            assert down(folder).returncode == 0
        assert cluster.state(job_id) == "RUNNING"
        assert cgroups.remaining(cluster.sandbox)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--nodes", "0"], "--nodes 0: 1 to 40 are allowed"),
        (["--gpus", "sim:0"], "--gpus sim:0: `real`, or `sim:K` with K from 1 to 16"),
        (["--slurm-root", "/nowhere"], "--slurm-root /nowhere: no usr/bin/sbatch there"),
        (["--port-base", "80"], "--port-base 80: 1024 to 65436 are allowed"),
        (["--port-base", "65500"], "--port-base 65500: 1024 to 65436 are allowed"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(
    tmp_path: Path, options: list[str], says: str
) -> None:
    answer = up(tmp_path / "box", *options)
    assert answer.returncode == 1
    assert answer.stderr.startswith("deploy/sandbox/up: ") and says in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
    assert not (tmp_path / "box").exists()


@pytest.mark.parametrize("name", ["with space", "quo'te", "hash#tag", "com,ma", "l" * 90, ""])
def test_a_folder_that_slurm_cannot_name_is_refused(tmp_path: Path, name: str) -> None:
    answer = up(f"{tmp_path}/{name}" if name else "")
    assert answer.returncode == 1
    assert len(answer.stderr.splitlines()) == 1
    assert "DIR" in answer.stderr
    assert not list(tmp_path.iterdir())


def test_a_folder_of_others_is_left_as_it_is(tmp_path: Path) -> None:
    """`up` empties DIR/run and changes modes: not in /, nor in anybody's home."""
    theirs = tmp_path / "run" / "theirs"
    theirs.parent.mkdir()
    theirs.touch()
    tmp_path.chmod(0o700)
    answer = up(tmp_path)
    assert answer.returncode == 1
    assert answer.stderr == (
        f"deploy/sandbox/up: {tmp_path}: is neither empty nor a sandbox's; name a folder that is,"
        " or a new one\n"
    )
    assert theirs.exists()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_a_file_in_the_way_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "box").touch()
    answer = up(tmp_path / "box")
    assert answer.returncode == 1
    assert answer.stderr == f"deploy/sandbox/up: {tmp_path}/box: File exists\n"


@pytest.mark.parametrize("command", ["deploy/sandbox/up", "deploy/sandbox/down", "deploy/demo.sh"])
def test_an_ordinary_user_is_told_that_root_is_needed(users: tuple[str, str], command: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        copy = folder / command  # the repository may stand where the user can't read
        copy.parent.mkdir(parents=True)
        shutil.copy(Path(__file__).parents[2] / command, copy)
        answer = subprocess.run(
            ["setpriv", f"--reuid={users[0]}", "--clear-groups", "bash", str(copy)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd="/",
        )
    assert answer.returncode == 2
    assert "root" in answer.stderr and len(answer.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--lunch"], "--lunch is not known; allowed are --once and --down"),
        (["--once", "--down"], "2 arguments; allowed is one of --once and --down, or none"),
    ],
)
def test_the_demo_refuses_what_it_does_not_know(words: list[str], says: str) -> None:
    answer = _demo(*words)
    assert (answer.returncode, answer.stderr) == (2, f"demo.sh: {says}\n")


def test_two_demos_in_one_folder_do_not_meet(tmp_path: Path) -> None:
    folder = str(tmp_path / "demo")
    name = "".join(letter if letter.isalnum() else "-" for letter in folder)
    lock = Path(f"/run/lock/sfill-demo{name}.lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        answer = _demo(folder=folder)
    lock.unlink()
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"demo.sh: a demo is being run in {folder}; ")


def _demo(*words: str, folder: str = "/nonexistent") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(Path(__file__).parents[2] / "deploy/demo.sh"), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
        env={**os.environ, "SFILL_DEMO_DIR": folder},
    )
