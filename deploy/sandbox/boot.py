"""`deploy/sandbox/up`: boots a sandbox."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import sys
import time
from pathlib import Path

from deploy.sandbox import (
    cgroups,
    configure,
    daemons,
    database,
    devices,
    place,
    ports,
    product,
    services,
)
from deploy.sandbox.layout import MAX_NODES, Gpu, Sandbox, SandboxError, record_path
from deploy.sandbox.shutdown import take_down
from deploy.sandbox.slurm_install import Client, SlurmInstall, find

DEFAULT_FOLDER = "/tmp/sfill-sandbox"
FOLDERS = ("etc", "run", "log", "state", "spool", "db", "dev", "bin", "lib", "lib/python", "gpu")


def main() -> int:
    """Exit code 0: up; 1: something failed, and what had been started is down again; 2: usage."""
    options = _parser().parse_args()
    began = time.monotonic()
    try:
        sandbox = boot(options)
    except SandboxError as error:
        print(f"deploy/sandbox/up: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"deploy/sandbox/up: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"sandbox up in {time.monotonic() - began:.1f} s: source {sandbox.folder}/env")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="deploy/sandbox/up", description=__doc__)
    parser.add_argument("folder", nargs="?", default=DEFAULT_FOLDER, metavar="DIR")
    parser.add_argument("--nodes", type=int, default=1, metavar="N")
    parser.add_argument("--gpus", default="sim:2", metavar="real|sim:K", help="K GPUs a node")
    parser.add_argument("--no-accounting", action="store_true", help="no MariaDB, no slurmdbd")
    parser.add_argument("--no-web", action="store_true", help="no dashboard")
    parser.add_argument("--port-base", type=int, help="first of 100 ports (default: free ones)")
    parser.add_argument("--slurm-root", metavar="DIR", help="Slurm's packages unpacked there")
    return parser


def boot(options: argparse.Namespace) -> Sandbox:
    """Start everything in order; on failure stop what was started."""
    place.check_name(options.folder)
    folder = Path(options.folder).resolve()
    if record_path(folder).exists():
        raise SandboxError(f"{folder}: a sandbox is up there; deploy/sandbox/down {folder} first")
    install = find(options.slurm_root)
    gpus, simulated = _gpus(options.gpus, options.nodes, folder)
    ports.check_range(options.port_base)
    place.claim(folder)
    _make_folders(folder)
    sandbox = Sandbox(
        folder=folder,
        host=socket.gethostname().partition(".")[0],
        port_base=ports.reserve(folder, options.port_base),
        gpus=gpus,
        simulated=simulated,
        accounting=not options.no_accounting,
        python=os.environ.get("SFILL_PYTHON", sys.executable),
        slurm_root=install.root,
        cgroup_version=cgroups.version(),
        own_cgroups=cgroups.prepare(cgroups.version()),
    )
    sandbox.save()
    try:
        _start_all(sandbox, install, web=not options.no_web)
    except BaseException:
        take_down(sandbox)
        raise
    return sandbox


def _gpus(wanted: str, nodes: int, folder: Path) -> tuple[list[list[Gpu]], bool]:
    if not 1 <= nodes <= MAX_NODES:
        raise SandboxError(f"--nodes {nodes}: 1 to {MAX_NODES} are allowed")
    match = re.fullmatch(r"sim:([1-9]|1[0-6])", wanted)
    if match:
        return devices.simulated(folder, nodes, int(match[1])), True
    if wanted == "real":
        return devices.real(nodes), False
    raise SandboxError(f"--gpus {wanted}: `real`, or `sim:K` with K from 1 to 16")


def _make_folders(folder: Path) -> None:
    for name in ("", *FOLDERS):
        (folder / name).mkdir(exist_ok=True)
        (folder / name).chmod(0o755)  # users' jobs read here, whatever the caller's umask
    shutil.rmtree(folder / "run")
    (folder / "run").mkdir(mode=0o755)
    (folder / "run").chmod(0o755)


def _start_all(sandbox: Sandbox, install: SlurmInstall, web: bool) -> None:
    build = Path(os.environ.get("BUILD", product.REPOSITORY / "build"))
    data = database.begin_install(sandbox) if sandbox.accounting else None
    install.prepare()
    devices.create(sandbox, build / "simgpu")
    product.install(sandbox, build)
    install.write_client_wrappers(sandbox.folder / "bin")
    configure.write_all(sandbox, install)
    _start_munge(sandbox)
    _start_agents(sandbox)
    if sandbox.accounting:
        database.start(sandbox, data)
        _start_slurmdbd(sandbox)
    _start_slurm(sandbox)
    _start_controller(sandbox, web)
    _wait_for_nodes(sandbox)


def _start_munge(sandbox: Sandbox) -> None:
    daemons.start(sandbox, "munged")
    services.wait_for(sandbox, "munged", sandbox.munge_socket.exists, 10.0)


def _start_agents(sandbox: Sandbox) -> None:
    for node, twin in zip(sandbox.nodes, sandbox.twins, strict=True):
        for folder in (sandbox.folder / "state" / node, sandbox.folder / "spool" / node):
            folder.mkdir(exist_ok=True)
        # Jobs on the twin speak to the same agent.
        sandbox.agent_socket(twin).symlink_to(sandbox.agent_socket(node).name)
        daemons.start(sandbox, f"sfilld-{node}")


def _start_slurmdbd(sandbox: Sandbox) -> None:
    daemons.start(sandbox, "slurmdbd")
    client = Client(sandbox)

    def has_cluster() -> bool:
        # "Nothing new added" is no failure: an earlier `up` of this folder added it.
        answer = client.run("sacctmgr", "-i", "add", "cluster", "sandbox")
        return answer.returncode == 0 or "already exists" in answer.stdout + answer.stderr

    services.wait_for(sandbox, "slurmdbd", has_cluster, 30.0)


def _start_slurm(sandbox: Sandbox) -> None:
    (sandbox.folder / "state/slurmctld").mkdir(exist_ok=True)
    daemons.start(sandbox, "slurmctld")
    client = Client(sandbox)
    services.wait_for(
        sandbox, "slurmctld", lambda: client.run("scontrol", "ping").returncode == 0, 20.0
    )
    for node in sandbox.slurm_nodes:
        (sandbox.folder / "spool" / node / "slurmd").mkdir(parents=True, exist_ok=True)
        daemons.start(sandbox, f"slurmd-{node}")


def _start_controller(sandbox: Sandbox, web: bool) -> None:
    daemons.start(sandbox, "sfillctld")
    if web:
        daemons.start(sandbox, "sfill-web")


def _wait_for_nodes(sandbox: Sandbox) -> None:
    """Until training can start, every agent serves and the controller has published the supply."""
    client = Client(sandbox)

    def trains() -> bool:
        states = client.run("sinfo", "-h", "-N", "-p", "train", "-o", "%T").stdout.split()
        return states == ["idle"] * len(sandbox.nodes)

    def lends() -> bool:
        return client.run("sinfo", "-h", "-p", "fill", "-o", "%a").stdout.split()[:1] == ["up"]

    for node in sandbox.nodes:
        services.wait_for(sandbox, f"sfilld-{node}", sandbox.agent_socket(node).exists, 20.0)
    services.wait_for(sandbox, "slurmctld", trains, 20.0)
    services.wait_for(sandbox, "sfillctld", lends, 20.0)


if __name__ == "__main__":
    sys.exit(main())
