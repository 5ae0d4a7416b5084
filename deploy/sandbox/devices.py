"""The GPUs of a sandbox: simulated ones behind device nodes of its own, or the host's."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

from deploy.sandbox.layout import Gpu, Sandbox, SandboxError

SIMULATED_MAJOR = 240
"""A major number for local use with no driver behind it: opening such a node gives ENXIO when the
cgroup allows the device and EPERM when it does not, which is all a simulated GPU needs."""

SIMULATED_MEMORY_BYTES = 24 * 2**30


def simulated(folder: Path, nodes: int, gpus_per_node: int) -> list[list[Gpu]]:
    """GPUs for `nodes` nodes; `create_nodes` makes their device nodes."""
    return [
        [
            Gpu(minor, str(folder / f"dev/nvidia{minor}"), SIMULATED_MEMORY_BYTES)
            for minor in range(node * gpus_per_node, (node + 1) * gpus_per_node)
        ]
        for node in range(nodes)
    ]


def real(nodes: int) -> list[list[Gpu]]:
    """The host's GPUs, split evenly over `nodes` nodes."""
    command = ["nvidia-smi", "--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxError(f"--gpus real: nvidia-smi finds no GPU here ({error})") from None
    memory = dict(line.split(", ") for line in answer.stdout.splitlines())
    found = [
        Gpu(minor, f"/dev/nvidia{minor}", int(memory[uuid]) * 2**20)
        for uuid, minor in _minors().items()
        if uuid in memory
    ]
    found.sort(key=lambda gpu: gpu.minor)
    if len(found) < nodes:
        raise SandboxError(f"--nodes {nodes}: more nodes than GPUs of this host ({len(found)})")
    share = len(found) // nodes
    return [found[node * share : (node + 1) * share] for node in range(nodes)]


def _minors() -> dict[str, int]:
    """UUID -> device minor, from the driver itself: nvidia-smi's index may differ from it."""
    minors = {}
    for file in Path("/proc/driver/nvidia/gpus").glob("*/information"):
        text = file.read_text()
        uuid = re.search(r"GPU UUID:\s*(\S+)", text)
        minor = re.search(r"Device Minor:\s*(\d+)", text)
        if uuid and minor:
            minors[uuid[1]] = int(minor[1])
    return minors


def create(sandbox: Sandbox, simgpu_build: Path) -> None:
    """Make device nodes and copy the simulated driver and programs; real GPUs need nothing."""
    if not sandbox.simulated:
        return
    for gpu in (gpu for gpus in sandbox.gpus for gpu in gpus):
        Path(gpu.device).unlink(missing_ok=True)
        os.mknod(gpu.device, 0o666 | stat.S_IFCHR, os.makedev(SIMULATED_MAJOR, gpu.minor))
        os.chmod(gpu.device, 0o666)  # noqa: PTH101 - mknod's mode passes through the umask
    target = sandbox.folder / "gpu"
    for part in ("lib", "bin"):
        if not (simgpu_build / part).is_dir():
            raise SandboxError(f"{simgpu_build / part} is missing: run deploy/build.sh")
        shutil.rmtree(target / part, ignore_errors=True)
        shutil.copytree(simgpu_build / part, target / part, symlinks=True)
    # Every simulated process, whoever owns it, maps the state in here.
    state = target / "state"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir()
    state.chmod(0o1777)


def remove(sandbox: Sandbox) -> None:
    """Take the device nodes away."""
    if sandbox.simulated:
        for gpu in (gpu for gpus in sandbox.gpus for gpu in gpus):
            Path(gpu.device).unlink(missing_ok=True)
