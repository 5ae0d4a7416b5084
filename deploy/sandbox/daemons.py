"""The command line and environment of each daemon, by the name it has in DIR/run and DIR/log.

munged, slurmdbd, slurmctld, slurmd-NODE (of nodes and twins), sfilld-NODE, sfillctld, sfill-web.
Tests stop and start them one by one.
"""

from __future__ import annotations

from deploy.sandbox import services
from deploy.sandbox.layout import Sandbox
from deploy.sandbox.slurm_install import SlurmInstall


def start(sandbox: Sandbox, name: str) -> None:
    """Start the daemon `name`; what it serves may take a moment longer."""
    kind, _, node = name.partition("-") if name != "sfill-web" else (name, "", "")
    if kind in ("sfilld", "sfillctld", "sfill-web"):
        command, environment = _our_command(sandbox, kind, node), _our_environment(sandbox)
    else:
        command, environment = _slurm_command(sandbox, kind, node), _slurm_environment(sandbox)
    services.start(sandbox, name, command, environment)


def _our_command(sandbox: Sandbox, kind: str, node: str) -> list[str]:
    module = {
        "sfilld": "agent.main",
        "sfillctld": "slurm_plugin.controller.main",
        "sfill-web": "webui.main",
    }[kind]
    settings = sandbox.node_conf(node) if kind == "sfilld" else sandbox.controller_conf
    return [sandbox.python, "-P", "-m", module, "--config", str(settings)]


def _our_environment(sandbox: Sandbox) -> dict[str, str]:
    environment = {
        **_slurm_environment(sandbox),
        "PYTHONPATH": str(sandbox.folder / "lib/python"),
        "PYTHONUNBUFFERED": "1",
    }
    libraries = [str(sandbox.folder / "gpu/lib")] if sandbox.simulated else []
    libraries += [environment["LD_LIBRARY_PATH"]] if "LD_LIBRARY_PATH" in environment else []
    if libraries:
        environment["LD_LIBRARY_PATH"] = ":".join(libraries)
    return environment


def _slurm_command(sandbox: Sandbox, kind: str, node: str) -> list[str]:
    install = SlurmInstall(sandbox.slurm_root)
    program = install.daemon(kind)
    if kind == "slurmd":
        return [program, "-D", "-N", node, "-d", install.daemon("slurmstepd")]
    if kind == "munged":
        return [
            *(program, "--foreground", f"--key-file={sandbox.etc}/munge.key"),
            *(f"--socket={sandbox.munge_socket}", f"--pid-file={sandbox.run}/munged.pid"),
            *(f"--seed-file={sandbox.run}/munge.seed", f"--log-file={sandbox.log}/munged.log"),
        ]
    return [program, "-D"]


def _slurm_environment(sandbox: Sandbox) -> dict[str, str]:
    install = SlurmInstall(sandbox.slurm_root)
    return {**install.environment(), "SLURM_CONF": str(sandbox.slurm_conf)}
