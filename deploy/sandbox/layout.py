"""What one sandbox is: its folder, nodes, GPUs and ports, kept in DIR/run/sandbox.json."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

MAX_NODES = 40
"""The port block of a sandbox has room for this many nodes and their twins."""

JOB_IDS_PER_SANDBOX = 1000
"""Sandboxes of one host share Slurm's cgroup folders: each counts its jobs in its own range."""

ANCHOR = "f0"
"""The node that has no GPU and stays drained: templates/slurm.conf says what for."""

FIRST_PORT = 22000
PORTS_PER_SANDBOX = 100


class SandboxError(Exception):
    """One sentence that says what is wrong, where, and what is allowed."""


class NotUpError(SandboxError):
    """No sandbox is up in a folder."""


class DamagedRecordError(SandboxError):
    """What a sandbox's folder says of it can't be read."""


@dataclass(frozen=True)
class Gpu:
    """One GPU of a node: its device node and what NVML calls it."""

    minor: int
    device: str
    memory_bytes: int


@dataclass(frozen=True)
class Sandbox:
    """One sandbox; everything else follows from these fields."""

    folder: Path
    host: str
    port_base: int
    gpus: list[list[Gpu]]  # by node, in order
    simulated: bool
    accounting: bool
    python: str
    slurm_root: Path | None = None  # folder of unpacked packages; None: the installed ones
    cgroup_version: int = 1
    own_cgroups: list[str] = field(default_factory=list)  # folders that `up` had to make

    @property
    def nodes(self) -> list[str]:
        return [f"n{index + 1}" for index in range(len(self.gpus))]

    @property
    def twins(self) -> list[str]:
        return [f"f{index + 1}" for index in range(len(self.gpus))]

    @property
    def first_job_id(self) -> int:
        block = (self.port_base - FIRST_PORT) // PORTS_PER_SANDBOX
        return JOB_IDS_PER_SANDBOX * (block % 1000 + 1)

    @property
    def slurm_nodes(self) -> list[str]:
        """Every node that has a slurmd: nodes, twins and the anchor."""
        return [*self.nodes, *self.twins, ANCHOR]

    @property
    def slots_ceiling(self) -> int:
        """Most fill slots (1 GiB each) a twin can ever lend: all memory of a node's GPUs."""
        per_node = [sum(gpu.memory_bytes for gpu in gpus) for gpus in self.gpus]
        return max(1, max(per_node, default=0) // 2**30)

    @property
    def slots_of_one_gpu(self) -> int:
        """Slots of the largest GPU: a fill job that asks for more could never run."""
        return max(1, max(gpu.memory_bytes for gpus in self.gpus for gpu in gpus) // 2**30)

    # Ports, all on 127.0.0.1.
    @property
    def slurmctld_port(self) -> int:
        return self.port_base

    @property
    def slurmdbd_port(self) -> int:
        return self.port_base + 1

    @property
    def mysql_port(self) -> int:
        return self.port_base + 2

    @property
    def controller_port(self) -> int:
        return self.port_base + 3

    @property
    def web_port(self) -> int:
        return self.port_base + 4

    def node_port(self, index: int) -> int:
        return self.port_base + 10 + index

    def twin_port(self, index: int) -> int:
        return self.port_base + 10 + MAX_NODES + index

    @property
    def anchor_port(self) -> int:
        """Of the slurmd of the anchor."""
        return self.port_base + 9

    # Places.
    @property
    def etc(self) -> Path:
        return self.folder / "etc"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def munge_socket(self) -> Path:
        return self.run / "munge.sock"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    def node_conf(self, node: str) -> Path:
        return self.etc / f"sfilld-{node}.toml"

    def agent_socket(self, node: str) -> Path:
        return self.run / f"sfilld-{node}.sock"

    @property
    def controller_conf(self) -> Path:
        return self.etc / "sfill.toml"

    def save(self) -> None:
        data = dataclasses.asdict(self)
        data["folder"] = str(self.folder)
        data["slurm_root"] = str(self.slurm_root) if self.slurm_root else None
        path = record_path(self.folder)
        new = path.with_name(f".{path.name}.new")
        new.write_text(json.dumps(data, indent=1) + "\n")
        new.replace(path)  # a record is whole or none


def record_path(folder: Path) -> Path:
    """Where a sandbox's own description stands while it is up."""
    return folder / "run" / "sandbox.json"


def load(folder: Path) -> Sandbox:
    """The sandbox of `folder`; SandboxError when none is up there, or its record is damaged."""
    path = record_path(folder)
    try:
        sandbox = _RECORD.validate_json(path.read_bytes())
    except FileNotFoundError:
        raise NotUpError(f"{folder}: no sandbox is up there ({path})") from None
    except OSError as error:
        raise SandboxError(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "all of it"
        raise DamagedRecordError(
            f"{path} is damaged ({place}: {first['msg']}); deploy/sandbox/down {folder} stops what "
            "it finds of that sandbox"
        ) from None
    if sandbox.folder != folder.resolve():
        raise DamagedRecordError(f"{path} is of a sandbox in another folder, {sandbox.folder}")
    return sandbox


_RECORD = TypeAdapter(Sandbox)
