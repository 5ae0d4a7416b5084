"""Where Slurm's programs are: installed packages, or packages unpacked into a folder."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from deploy.sandbox.layout import Sandbox, SandboxError

ARCH = "x86_64-linux-gnu"
LOADER = "/lib64/ld-linux-x86-64.so.2"
CLIENTS = (
    *("sacct", "sacctmgr", "salloc", "sbatch", "scancel", "scontrol", "sdiag", "sinfo"),
    *("squeue", "sreport", "srun", "sshare", "sprio", "sstat", "munge", "unmunge"),
)


@dataclass(frozen=True)
class SlurmInstall:
    """Paths of one Slurm, and the environment its daemons need."""

    root: Path | None

    @property
    def plugin_dir(self) -> Path:
        return self._under(f"usr/lib/{ARCH}/slurm-wlm")

    @property
    def library_path(self) -> str:
        """For LD_LIBRARY_PATH; empty when Slurm is installed."""
        if self.root is None:
            return ""
        folders = (f"usr/lib/{ARCH}", f"lib/{ARCH}", f"usr/lib/{ARCH}/slurm-wlm")
        return ":".join(str(self.root / folder) for folder in folders)

    def daemon(self, name: str) -> str:
        """Path of a daemon under its plain name: Slurm tells by it what it is."""
        path = self._under(f"usr/sbin/{name}")
        if not path.exists():
            raise SandboxError(
                f"{path} is missing: install Slurm (deploy/packages.sh), or name a folder of "
                f"unpacked packages with --slurm-root"
            )
        return str(path)

    def client(self, name: str) -> Path:
        return self._under(f"usr/bin/{name}")

    def environment(self) -> dict[str, str]:
        """For daemons: a clean one, so that nothing of the caller's shell gets into jobs."""
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        environment = {"PATH": path, "LANG": "C.UTF-8", "HOME": "/root"}
        if self.root is not None:
            environment["LD_LIBRARY_PATH"] = self.library_path
            environment["PATH"] = f"{self.root}/usr/sbin:{self.root}/usr/bin:{path}"
        return environment

    def prepare(self) -> None:
        """Give unpacked daemons their plain names, which Debian's packages get at installation."""
        if self.root is None:
            return
        for name in ("slurmctld", "slurmd", "slurmstepd"):
            link = self.root / "usr/sbin" / name
            if not link.exists() and link.with_name(f"{name}-wlm").exists():
                link.symlink_to(f"{name}-wlm")

    def write_client_wrappers(self, folder: Path) -> None:
        """Commands for users, when Slurm is unpacked.

        Through the loader rather than LD_LIBRARY_PATH: sbatch and srun hand their environment on
        to the job, whose programs must not meet these libraries.
        """
        if self.root is None:
            return
        for name in CLIENTS:
            if self.client(name).exists():
                wrapper = folder / name
                wrapper.write_text(
                    f"#!/bin/sh\nexec {LOADER} --argv0 {name} "
                    f'--library-path {self.library_path} {self.client(name)} "$@"\n'
                )
                wrapper.chmod(0o755)

    def _under(self, path: str) -> Path:
        return (self.root or Path("/")) / path


def find(slurm_root: str | None) -> SlurmInstall:
    """The unpacked Slurm of --slurm-root or SFILL_SLURM_ROOT, else the installed one."""
    root = slurm_root or os.environ.get("SFILL_SLURM_ROOT")
    if root is None:
        return SlurmInstall(None)
    folder = Path(root).resolve()
    if not (folder / "usr/bin/sbatch").exists():
        raise SandboxError(f"--slurm-root {folder}: no usr/bin/sbatch there; unpack the packages")
    return SlurmInstall(folder)


@dataclass(frozen=True)
class Client:
    """Slurm's commands against one sandbox; each call has a time limit."""

    sandbox: Sandbox

    def run(self, *command: str, timeout_s: float = 5.0) -> subprocess.CompletedProcess[str]:
        """Run one command; a time-out counts as exit code 124."""
        install = SlurmInstall(self.sandbox.slurm_root)
        environment = {**install.environment(), "SLURM_CONF": str(self.sandbox.slurm_conf)}
        program = str(install.client(command[0]))
        try:
            return subprocess.run(
                [program, *command[1:]],
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", "timed out")
