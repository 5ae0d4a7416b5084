"""The interposer under thread and address sanitizers and valgrind, and beneath programs that are
themselves built with a sanitizer (these look functions up before anything else runs)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.fake_agent import FakeAgent
from tests.unit.shim_lab import (
    PROGRAMS,
    ROOT,
    SHIM,
    compiled,
    environment,
    null_driver,
    run,
    simulated_gpu,
)

RUNTIMES = {"thread": "libtsan.so", "address": "libasan.so"}
QUIET = {"TSAN_OPTIONS": "exitcode=66", "ASAN_OPTIONS": "detect_leaks=0"}


def runtime(kind: str) -> str:
    """The sanitizer's library, which must be loaded first."""
    found = subprocess.run(
        ["gcc", f"-print-file-name={RUNTIMES[kind]}"], capture_output=True, text=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip(f"the compiler has no {kind} sanitizer")
    return found


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[FakeAgent]:
    with FakeAgent(tmp_path / "agent.sock") as fake:
        yield fake


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    if not (ROOT / "deploy" / "sandbox" / "simgpu" / "Makefile").exists():
        pytest.skip("the simulated GPU is not in this tree")
    state, devices = tmp_path / "state", tmp_path / "dev"
    state.mkdir()
    devices.mkdir()
    (devices / "nvidia0").touch()
    return {"SIMGPU_DIR": str(state), "SIMGPU_DEV": str(devices)}


@pytest.mark.parametrize("kind", RUNTIMES)
def test_threads_that_launch_at_once_are_clean(
    agent: FakeAgent, machine: dict[str, str], tmp_path: Path, kind: str
) -> None:
    first = runtime(kind)
    flags = f"-O1 -g -fsanitize={kind} -Wno-error=tsan"
    build = os.environ | {"CFLAGS": flags}
    subprocess.run(["make", "-s", "-C", str(SHIM), f"BUILD={tmp_path}"], env=build, check=True)
    program = tmp_path / "threads"
    links = [f"-L{simulated_gpu()}", "-lcuda", "-pthread"]
    source = str(PROGRAMS / "threads_program.c")
    run(["gcc", *flags.split(), "-o", str(program), source, *links])
    preload = f"{first}:{tmp_path / 'shim' / 'libspecinf.so'}"
    env = environment(simulated_gpu(), agent.path, machine | QUIET | {"LD_PRELOAD": preload})
    done = subprocess.run([program, "7", "1500", "4"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert agent.board.head.shut == 0


@pytest.mark.parametrize("kind", RUNTIMES)
def test_programs_built_with_a_sanitizer_start(tmp_path: Path, kind: str) -> None:
    runtime(kind)
    program = tmp_path / "program"
    source = tmp_path / "program.c"
    source.write_text('#include <stdio.h>\nint main(void) { return puts("hello") < 0; }\n')
    run(["gcc", f"-fsanitize={kind}", "-o", str(program), str(source)])
    # As a job has it: only we are preloaded, the sanitizer comes with the program.
    env = environment(None, None, QUIET | {"ASAN_OPTIONS": "verify_asan_link_order=0"})
    done = subprocess.run([program], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr


def test_valgrind_finds_nothing(agent: FakeAgent) -> None:
    valgrind = shutil.which("valgrind")
    if not valgrind:
        pytest.skip("no valgrind on this machine")
    program = compiled("direct_program", f"-L{null_driver()}", "-lcuda")
    env = environment(null_driver(), agent.path)
    command = [valgrind, "-q", "--error-exitcode=9", "--trace-children=no", str(program)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "7 1\n"), done.stderr
