"""Writes the sandbox's configuration files from the samples in templates/."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from string import Template

from deploy.sandbox import database
from deploy.sandbox.layout import ANCHOR, Gpu, Sandbox
from deploy.sandbox.slurm_install import SlurmInstall

TEMPLATES = Path(__file__).with_name("templates")
NODE_CPUS = 16
TWIN_CPUS = 8


def write_all(sandbox: Sandbox, install: SlurmInstall) -> None:
    """Every file in DIR/etc and DIR/env."""
    _write_munge_key(sandbox.etc / "munge.key")
    _write_slurm(sandbox, install)
    _write_daemons(sandbox)
    _render(
        "env",
        sandbox.folder / "env",
        folder=str(sandbox.folder),
        web_url=f"http://127.0.0.1:{sandbox.web_port}",
    )


def _write_slurm(sandbox: Sandbox, install: SlurmInstall) -> None:
    _render(
        "slurm.conf",
        sandbox.slurm_conf,
        folder=str(sandbox.folder),
        host=sandbox.host,
        plugin_dir="" if install.root is None else f"PluginDir={install.plugin_dir}",
        slurmctld_port=str(sandbox.slurmctld_port),
        first_job_id=str(sandbox.first_job_id),
        accounting=_accounting_lines(sandbox),
        nodes=_node_lines(sandbox),
        anchor=ANCHOR,
        anchor_port=str(sandbox.anchor_port),
        slots=str(sandbox.slots_ceiling),
        train_nodes=",".join(sandbox.nodes),
        fill_nodes=",".join(sandbox.twins),
    )
    (sandbox.etc / "gres.conf").write_text(_gres_lines(sandbox))
    _render(f"cgroup-v{sandbox.cgroup_version}.conf", sandbox.etc / "cgroup.conf")
    _render(
        "plugstack.conf",
        sandbox.etc / "plugstack.conf",
        folder=str(sandbox.folder),
        scontrol=str(_commands(sandbox) / "scontrol"),
        gib=str(sandbox.slots_of_one_gpu),
    )
    _render(
        "sfill_submit.conf",
        sandbox.etc / "sfill_submit.conf",
        gib=str(sandbox.slots_of_one_gpu),
        anchor=ANCHOR,
    )
    if sandbox.accounting:
        _render(
            "slurmdbd.conf",
            sandbox.etc / "slurmdbd.conf",
            mode=0o600,
            folder=str(sandbox.folder),
            slurmdbd_port=str(sandbox.slurmdbd_port),
            mysql_port=str(sandbox.mysql_port),
            mysql_password=database.password(sandbox),
        )


def _write_daemons(sandbox: Sandbox) -> None:
    for node, twin, gpus in zip(sandbox.nodes, sandbox.twins, sandbox.gpus, strict=True):
        _render(
            "sfilld.toml",
            sandbox.node_conf(node),
            folder=str(sandbox.folder),
            node=node,
            twin=twin,
            device_path=f"{sandbox.folder}/dev/nvidia%d" if sandbox.simulated else "/dev/nvidia%d",
            minors=str([gpu.minor for gpu in gpus]),
            controller_port=str(sandbox.controller_port),
        )
    _render(
        "sfill.toml",
        sandbox.controller_conf,
        folder=str(sandbox.folder),
        controller_port=str(sandbox.controller_port),
        web_port=str(sandbox.web_port),
        slurm_bin=str(_commands(sandbox)),
        slots=str(sandbox.slots_ceiling),
    )


def _commands(sandbox: Sandbox) -> Path:
    """Folder of Slurm's commands: the wrappers when Slurm is unpacked."""
    return Path("/usr/bin") if sandbox.slurm_root is None else sandbox.folder / "bin"


def _node_lines(sandbox: Sandbox) -> str:
    lines = []
    for index, gpus in enumerate(sandbox.gpus):
        trains = f"gpu:{len(gpus)}"
        lends = f"fill:{sandbox.slots_ceiling}"
        lines.append(
            f"NodeName={sandbox.nodes[index]} {_address(sandbox, sandbox.node_port(index))} "
            f"{_processors(NODE_CPUS)} RealMemory=64000 Gres={_gres(sandbox, trains, gpus)} "
            f"State=UNKNOWN"
        )
        lines.append(
            f"NodeName={sandbox.twins[index]} {_address(sandbox, sandbox.twin_port(index))} "
            f"{_processors(TWIN_CPUS)} RealMemory=16000 "
            f"Gres={_gres(sandbox, lends, [])} State=UNKNOWN"
        )
    return "\n".join(lines)


def _address(sandbox: Sandbox, port: int) -> str:
    return f"NodeHostname={sandbox.host} NodeAddr=127.0.0.1 Port={port}"


def _processors(count: int) -> str:
    return f"CPUs={count} Boards=1 SocketsPerBoard=1 CoresPerSocket={count} ThreadsPerCore=1"


def _closed(sandbox: Sandbox, own: list[Gpu]) -> list[Gpu]:
    """The host's GPUs that a node with the GPUs `own` has no right to."""
    return [gpu for gpus in sandbox.gpus for gpu in gpus if gpu not in own]


def _gres(sandbox: Sandbox, first: str, own: list[Gpu]) -> str:
    """A node's Gres. Slurm denies a job only devices that its node lists, so each node and twin
    lists the host's other GPUs as well, under a name that no job may ask for. It is `nic` because
    Slurm enforces only names that it has a GRES plugin for, and this one does nothing else.
    """
    closed = len(_closed(sandbox, own))
    return f"{first},nic:{closed}" if closed else first


def _gres_lines(sandbox: Sandbox) -> str:
    lines = []
    for node, twin, gpus in zip(sandbox.nodes, sandbox.twins, sandbox.gpus, strict=True):
        lines += [f"NodeName={node} Name=gpu File={gpu.device}" for gpu in gpus]
        for name, own in ((node, gpus), (twin, [])):
            closed = _closed(sandbox, own)
            lines += [f"NodeName={name} Name=nic File={gpu.device}" for gpu in closed]
    for twin in [ANCHOR, *sandbox.twins]:
        lines.append(f"NodeName={twin} Name=fill Count={sandbox.slots_ceiling} Flags=CountOnly")
    return "\n".join(lines) + "\n"


def _accounting_lines(sandbox: Sandbox) -> str:
    if not sandbox.accounting:
        return "AccountingStorageType=accounting_storage/none"
    lines = [
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={sandbox.slurmdbd_port}",
        "# AuthInfo does not reach the connections to slurmdbd; this does.",
        f"AccountingStoragePass={sandbox.munge_socket}",
        "AccountingStorageTRES=gres/gpu,gres/fill",
        "AccountingStoreFlags=job_comment",
    ]
    return "\n".join(lines)


def _write_munge_key(file: Path) -> None:
    if not file.exists():
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
        os.write(descriptor, secrets.token_bytes(1024))
        os.close(descriptor)


def _render(sample: str, target: Path, mode: int = 0o644, **values: str) -> None:
    text = Template((TEMPLATES / sample).read_text()).substitute(values)
    target.write_text(text)
    target.chmod(mode)
