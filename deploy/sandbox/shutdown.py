"""`deploy/sandbox/down`: stops a sandbox and leaves nothing of it running or mounted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from deploy.sandbox import cgroups, devices, ports, services
from deploy.sandbox.layout import (
    MAX_NODES,
    DamagedRecordError,
    Gpu,
    NotUpError,
    Sandbox,
    SandboxError,
    load,
    record_path,
)
from deploy.sandbox.slurm_install import Client, SlurmInstall

DEFAULT_FOLDER = "/tmp/sfill-sandbox"
JOBS_TERM_S = 1.0
JOBS_END_S = 15.0


def main() -> int:
    """Exit code 0: down, also when it was down already; 1: something is left; 2: usage."""
    if len(sys.argv) > 2 or any(word == "" or word.startswith("-") for word in sys.argv[1:]):
        print("usage: deploy/sandbox/down [DIR]")
        return 2
    folder = Path(sys.argv[1] if len(sys.argv) == 2 else DEFAULT_FOLDER).resolve()
    try:
        sandbox = load(folder)
    except NotUpError:
        print(f"{folder}: no sandbox is up there")
        return 0
    except DamagedRecordError as error:
        print(f"deploy/sandbox/down: {error}", file=sys.stderr)
        sandbox = stand_in(folder)
    except SandboxError as error:
        print(f"deploy/sandbox/down: {error}", file=sys.stderr)
        return 1
    left = take_down(sandbox)
    for line in left:
        print(f"deploy/sandbox/down: left behind: {line}", file=sys.stderr)
    return 1 if left else 0


def stand_in(folder: Path) -> Sandbox:
    """A sandbox whose record is damaged, as far as it shows elsewhere: its name on its processes,
    its ports in the registry, its GPUs in its folder. It stands for as many nodes as there may be.
    """
    simulated = sorted((folder / "dev").glob("nvidia[0-9]*"))
    gpus: list[list[Gpu]] = [[] for _ in range(MAX_NODES)]
    gpus[0] = [Gpu(minor, str(device), 0) for minor, device in enumerate(simulated)]
    root = os.environ.get("SFILL_SLURM_ROOT")
    return Sandbox(
        folder=folder,
        host="",
        port_base=ports.base_of(folder) or 0,  # no sandbox has this, nor the job ids that follow
        gpus=gpus,
        simulated=bool(simulated),
        accounting=False,
        python=sys.executable,
        slurm_root=Path(root).resolve() if root else None,
        cgroup_version=cgroups.version(),
    )


def take_down(sandbox: Sandbox) -> list[str]:
    """Stop everything; returns what could not be removed, a line each."""
    _end_jobs(sandbox)
    for name in _stop_order(sandbox):
        services.stop(sandbox, name)
    cgroups.end_job_processes(sandbox)
    for pid in services.leftovers(sandbox.folder):
        services.end_process(pid, grace_s=0.5)
    cgroups.remove(sandbox, alone=not ports.others(sandbox.folder))
    _unmount(sandbox.folder)
    devices.remove(sandbox)
    left = [f"process {pid}" for pid in services.leftovers(sandbox.folder)]
    left += [f"cgroup {folder}" for folder in cgroups.remaining(sandbox)]
    left += [f"mount {target}" for target in _mounts(sandbox.folder)]
    ports.release(sandbox.folder)
    record_path(sandbox.folder).unlink(missing_ok=True)
    return left


def _end_jobs(sandbox: Sandbox) -> None:
    """Cancel all jobs while the daemons can still end them: slurmstepd outlives slurmd."""
    if services.pid_of(sandbox, "slurmctld") is None:
        return
    client = Client(sandbox)
    if not SlurmInstall(sandbox.slurm_root).client("squeue").exists():
        return  # whose record is damaged may have had a Slurm elsewhere

    def jobs() -> list[str]:
        return client.run("squeue", "-h", "-a", "-o", "%A").stdout.split()

    waiting = sorted(set(jobs()))
    if not waiting:
        return
    client.run("scancel", *waiting)
    if not services.wait_until(lambda: not jobs(), JOBS_TERM_S):
        cgroups.end_job_processes(sandbox)  # rather than wait for KillWait
        services.wait_until(lambda: not jobs(), JOBS_END_S)


def _stop_order(sandbox: Sandbox) -> list[str]:
    """Ours first, so that nothing is read as a failure of Slurm; the database last."""
    order = ["sfill-web", "sfillctld"]
    order += [f"slurmd-{node}" for node in sandbox.slurm_nodes]
    order += ["slurmctld"]
    order += [f"sfilld-{node}" for node in sandbox.nodes]
    return [*order, "slurmdbd", "mariadb", "munged"]


def _mounts(folder: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    targets = [line.split()[1].replace("\\040", " ") for line in lines]
    return [target for target in targets if target.startswith(f"{folder}{os.sep}")]


def _unmount(folder: Path) -> None:
    for target in reversed(_mounts(folder)):
        subprocess.run(["umount", "--lazy", target], check=False)


if __name__ == "__main__":
    sys.exit(main())
