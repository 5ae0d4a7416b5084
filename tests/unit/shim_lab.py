"""Builds the interposer and what its tests run it on, and runs programs under it."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SHIM = ROOT / "agent" / "shim"
PROGRAMS = Path(__file__).resolve().parent / "shim"


@dataclass(frozen=True)
class Hook:
    """One symbol of hook_table.def."""

    symbol: str
    base: str
    since: int
    per_thread: bool
    operation: bool  # its hook is generated from the table and reports an operation
    setup: bool


def run(command: list[str]) -> None:
    """Runs a build step; its output is shown when it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


@functools.cache
def interposer() -> Path:
    """libspecinf.so, built if need be."""
    run(["make", "-s", "-C", str(SHIM)])
    return ROOT / "build" / "shim" / "libspecinf.so"


@functools.cache
def workshop() -> Path:
    """A folder for this test run's programs."""
    return Path(tempfile.mkdtemp(prefix="specinf-lab-"))


@functools.cache
def null_driver() -> Path:
    """Folder with the libcuda.so.1 that does nothing and counts."""
    folder = workshop() / "null"
    folder.mkdir()
    sources = [str(PROGRAMS / name) for name in ("null_driver.c", "null_driver_state.c")]
    library = folder / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-O1", "-w", f"-I{SHIM}", "-Wl,-soname,libcuda.so.1"]
    run(["gcc", *flags, "-Wl,-Bsymbolic", "-o", str(library), *sources])
    (folder / "libcuda.so").symlink_to(library.name)
    return folder


def compiled(name: str, *flags: str) -> Path:
    """A program or library from tests/unit/shim/NAME.c."""
    target = workshop() / name
    if not target.exists():
        run(["gcc", "-O2", "-Wall", "-o", str(target), str(PROGRAMS / f"{name}.c"), *flags])
    return target


@functools.cache
def simulated_gpu() -> Path:
    """Folder with the simulated libcuda.so.1, built if need be."""
    run(["make", "-s", "-C", str(ROOT / "deploy" / "sandbox" / "simgpu")])
    return ROOT / "build" / "simgpu" / "lib"


def environment(
    driver: Path | None, socket: Path | None, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment of a process under the interposer."""
    settings = {k: v for k, v in os.environ.items() if not k.startswith(("SFILL_", "LD_"))}
    settings["LD_PRELOAD"] = str(interposer())
    settings["SFILL_ATTACH_MS"] = "5000"  # a machine full of tests answers late
    if driver:
        settings["LD_LIBRARY_PATH"] = str(driver)
    if socket:
        settings["SFILL_SOCKET"] = str(socket)
    return settings | dict(extra or {})


def python(code: str, env: Mapping[str, str]) -> Any:
    """Runs Python code under `env`; what it prints last, as JSON."""
    done = subprocess.run(
        [sys.executable, "-u", "-c", code],
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


_ENTRY = re.compile(
    r"^(?P<form>OP|OWN)_(?P<many>PAIR|ONE)\((?P<symbol>\w+),\s*(?:(?P<suffix>_pts[zd]|_ptds),\s*)?"
    r"(?P<since>\d+)(?:,\s*(?P<since_suffix>\d+))?(?P<rest>.*?)\)\n(?=O|\n|/\*|\Z)",
    re.M | re.S,
)


def base_of(symbol: str) -> str:
    """The name under which cuGetProcAddress knows a symbol."""
    return re.sub(r"(_v\d)?(_ptsz|_ptds)?$", "", symbol)


@functools.cache
def hooks() -> tuple[Hook, ...]:
    """All hooks of the table."""
    found: list[Hook] = []
    for entry in _ENTRY.finditer((SHIM / "hook_table.def").read_text()):
        forms = [(entry["symbol"], int(entry["since"]), False)]
        if entry["many"] == "PAIR":
            name = entry["symbol"] + entry["suffix"]
            forms.append((name, int(entry["since_suffix"]), True))
        for symbol, since, per_thread in forms:
            is_operation = entry["form"] == "OP"
            is_setup = "SETUP" in entry["rest"]
            found.append(Hook(symbol, base_of(symbol), since, per_thread, is_operation, is_setup))
    return tuple(found)
