"""Our own part of a sandbox: libraries, Python packages and commands."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from deploy.sandbox.layout import Sandbox, SandboxError

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("agent", "db", "slurm_plugin", "webui")
LIBRARIES = ("shim/libspecinf.so", "spank/spank_fill.so", "spank/sfill-hook")
HOOKS = ("prolog", "epilog")


def install(sandbox: Sandbox, build: Path) -> None:
    """Copy everything that jobs and daemons use into DIR.

    Copies, because users must be able to read them wherever the repository stands, and because
    a running sandbox must not change when its sources are edited.
    """
    for library in LIBRARIES:
        _copy(build / library, sandbox.folder / "lib")
    for package in PACKAGES:
        _copy_package(REPOSITORY / package, sandbox.folder / "lib/python" / package)
    _copy(REPOSITORY / "slurm_plugin/job_submit.lua", sandbox.etc)
    for hook in HOOKS:
        _copy(REPOSITORY / "slurm_plugin" / hook, sandbox.etc)
        (sandbox.etc / hook).chmod(0o755)
    _write_commands(sandbox)


def _write_commands(sandbox: Sandbox) -> None:
    folder = sandbox.folder
    _write_wrapper(
        folder / "bin/sfill",
        {"PYTHONPATH": f"{folder}/lib/python", "SFILL_CONF": str(sandbox.controller_conf)},
        f"{sandbox.python} -P -m slurm_plugin.cli.main",
    )
    if sandbox.simulated:
        libraries = f"{folder}/gpu/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
        for program in sorted((folder / "gpu/bin").iterdir()):
            _write_wrapper(
                folder / "bin" / program.name, {"LD_LIBRARY_PATH": libraries}, str(program)
            )


def _write_wrapper(file: Path, environment: Mapping[str, str], command: str) -> None:
    settings = "".join(f'export {name}="{value}"\n' for name, value in environment.items())
    file.write_text(f'#!/bin/sh\n{settings}exec {command} "$@"\n')
    file.chmod(0o755)


def _copy(source: Path, target_folder: Path) -> None:
    if not source.exists():
        raise SandboxError(f"{source} is missing: run deploy/build.sh")
    # A new file in place of the old one: a process may have the old one mapped.
    target = target_folder / source.name
    target.unlink(missing_ok=True)
    shutil.copy(source, target)


def _copy_package(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.c", "*.h", "Makefile", "node_modules")
    shutil.copytree(source, target, ignore=ignored)
