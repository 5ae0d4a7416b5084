"""A fill's GPU is opened, and no other: on real cgroups of both versions, as root."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import devices_v1, devices_v2
from agent.devices import DeviceError, Devices
from tests.unit.agent_peers import settings_for

MAJOR = 240  # no driver: a device that may be opened says ENXIO, one that may not EPERM
JOB_V1 = f"slurm_sfillunit/uid_0/job_{900000000 + os.getpid()}"
JOB_V2 = f"system.slice/sfillunit_slurmstepd.scope/job_{900000000 + os.getpid()}"

OPEN = """
import errno, os, sys
open(sys.argv[1], "w").write(str(os.getpid()))
for path in sys.argv[2:]:
    try:
        os.close(os.open(path, os.O_RDWR))
        print("open")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


def is_root() -> bool:
    return os.geteuid() == 0


def mounted_v1() -> bool:
    return Path("/sys/fs/cgroup/devices/tasks").exists()


def mount_v2() -> Path | None:
    try:
        return devices_v2.mount_point()
    except OSError:
        return None


@pytest.fixture
def nodes(tmp_path: Path) -> list[str]:
    found = []
    for minor in range(3):
        path = tmp_path / f"nvidia{minor}"
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(MAJOR, minor))
        except PermissionError:
            pytest.skip("needs root to make device nodes")
        found.append(str(path))
    return [*found, "/dev/null"]


def opened(cgroup: Path, nodes: list[str]) -> list[str]:
    """What a process in a cgroup gets when it opens the nodes."""
    command = [sys.executable, "-c", OPEN, str(cgroup / "cgroup.procs"), *nodes]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return result.stdout.split()


def remove(*folders: Path) -> None:
    for folder in folders:
        if folder.exists():
            folder.rmdir()


@pytest.fixture
def task_v1() -> Iterator[Path]:
    if not (is_root() and mounted_v1()):
        pytest.skip("needs root and cgroup version 1")
    root = Path("/sys/fs/cgroup/devices")
    job = root / JOB_V1
    task = job / "step_0/task_0"
    made = [each for each in (job.parent.parent, job.parent) if not each.exists()]
    task.mkdir(parents=True)
    yield task
    remove(task, task.parent, job, *reversed(made))


def deny_all_gpus_v1(task: Path) -> None:
    for folder in (task.parent.parent, task.parent, task):
        for minor in range(3):
            (folder / "devices.deny").write_text(f"c {MAJOR}:{minor} rwm")


def test_v1_opens_one_gpu_that_slurm_denied(task_v1: Path, nodes: list[str]) -> None:
    deny_all_gpus_v1(task_v1)
    assert opened(task_v1, nodes) == ["EPERM", "EPERM", "EPERM", "open"]
    path = "/" + str(task_v1.relative_to("/sys/fs/cgroup/devices"))
    root = Path("/sys/fs/cgroup/devices")
    devices_v1.grant(root, path, [(MAJOR, 1)], [(MAJOR, 0), (MAJOR, 2)])
    assert opened(task_v1, nodes) == ["EPERM", "ENXIO", "EPERM", "open"]


def test_v1_denies_others_where_slurm_constrained_nothing(task_v1: Path, nodes: list[str]) -> None:
    path = "/" + str(task_v1.relative_to("/sys/fs/cgroup/devices"))
    root = Path("/sys/fs/cgroup/devices")
    devices_v1.grant(root, path, [(MAJOR, 1)], [(MAJOR, 0), (MAJOR, 2)])
    assert opened(task_v1, nodes) == ["EPERM", "ENXIO", "EPERM", "open"]


@pytest.fixture
def task_v2() -> Iterator[Path]:
    root = mount_v2()
    if not is_root() or root is None:
        pytest.skip("needs root and cgroup version 2")
    job = root / JOB_V2
    task = job / "step_0/user/task_0"
    above = (root / "system.slice", root / "system.slice/sfillunit_slurmstepd.scope")
    made = [each for each in above if not each.exists()]
    task.mkdir(parents=True)
    yield task
    remove(task, task.parent, task.parent.parent, job, *reversed(made))


def attach_v2(folder: Path, denied: list[tuple[int, int]], flags: int) -> None:
    """A program as Slurm attaches one."""
    loaded = devices_v2._load(devices_v2.program(denied))
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        devices_v2._attach(descriptor, loaded, flags, 0)
    finally:
        os.close(descriptor)
        os.close(loaded)


def programs_v2(folder: Path) -> tuple[int, int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        ids, flags = devices_v2.query(descriptor)
        return len(ids), flags
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("flags", [1, 2])
@pytest.mark.parametrize("level", ["", "step_0/user/task_0"])
def test_v2_takes_the_place_of_slurms_program(
    task_v2: Path, nodes: list[str], flags: int, level: str
) -> None:
    root = mount_v2()
    assert root is not None
    job = root / JOB_V2
    everything = [(MAJOR, minor) for minor in range(3)]
    attach_v2(job, everything, flags)
    if level:
        attach_v2(job / level, everything, flags)
    assert opened(task_v2, nodes) == ["EPERM", "EPERM", "EPERM", "open"]
    for _ in range(2):  # asked again by each task: it stays one program
        path = "/" + str(task_v2.relative_to(root))
        devices_v2.grant(root, path, [(MAJOR, 0), (MAJOR, 2)])
        assert opened(task_v2, nodes) == ["EPERM", "ENXIO", "EPERM", "open"]
        assert programs_v2(job) == (1, flags)


def test_v2_denies_others_where_slurm_constrained_nothing(task_v2: Path, nodes: list[str]) -> None:
    root = mount_v2()
    assert root is not None
    path = "/" + str(task_v2.relative_to(root))
    devices_v2.grant(root, path, [(MAJOR, 0), (MAJOR, 2)])
    assert opened(task_v2, nodes) == ["EPERM", "ENXIO", "EPERM", "open"]


def test_levels_of_a_job() -> None:
    assert devices_v1.job_levels("/slurm_n1/uid_0/job_3/step_1/task_0") == [
        "/slurm_n1/uid_0/job_3",
        "/slurm_n1/uid_0/job_3/step_1",
        "/slurm_n1/uid_0/job_3/step_1/task_0",
    ]
    assert devices_v1.job_levels("/user/job_3") == []
    assert devices_v2.job_levels("/system.slice/n1_slurmstepd.scope/job_3/step_1") == [
        "/system.slice/n1_slurmstepd.scope/job_3",
        "/system.slice/n1_slurmstepd.scope/job_3/step_1",
    ]
    assert devices_v2.job_levels("/user.slice/job_3") == []


def test_missing_node_and_process_outside_slurm_are_refused(
    tmp_path: Path, nodes: list[str]
) -> None:
    device_path = str(Path(nodes[0]).with_name("nvidia%d"))
    settings = settings_for(tmp_path, devices="auto", device_path=device_path)
    with pytest.raises(DeviceError, match="no device node"):
        Devices(settings, [0, 1, 2]).grant(os.getpid(), 7)
    with pytest.raises(DeviceError, match="no device cgroup"):
        Devices(settings, [0, 1, 2]).grant(os.getpid(), 1)
    with pytest.raises(DeviceError):
        Devices(settings, [0, 1, 2]).grant(2**22 + 1, 1)


def test_a_task_that_slurm_moves_on_is_looked_for_again(
    tmp_path: Path, nodes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = Devices(
        settings_for(tmp_path, devices="auto", device_path=f"{tmp_path}/nvidia%d"), [0, 1, 2]
    )
    looks: list[int] = []

    def gone_twice(*_: object) -> None:
        looks.append(1)
        if len(looks) < 3:
            raise FileNotFoundError("job_7/step_batch/user/task_special")

    monkeypatch.setattr(devices, "_apply", gone_twice)
    devices.grant(os.getpid(), 0)
    assert len(looks) == 3


def test_a_cgroup_that_never_appears_is_an_error(
    tmp_path: Path, nodes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = Devices(
        settings_for(tmp_path, devices="auto", device_path=f"{tmp_path}/nvidia%d"), [0, 1, 2]
    )

    def gone(*_: object) -> None:
        raise FileNotFoundError("task_special")

    monkeypatch.setattr(devices, "_apply", gone)
    with pytest.raises(DeviceError, match="task_special"):
        devices.grant(os.getpid(), 0)
