"""The bench's MPS daemon and its programs never outlive their cell."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tests.bench.mps import CONTROL, MpsDaemon, is_alive
from tests.bench.programs import ProgramError, Programs

# Behaves as nvidia-cuda-mps-control does: -d starts a daemon, else commands come on standard input.
FAKE = f"""#!{sys.executable}
import os, pathlib, signal, subprocess, sys, time
pipe = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
pid = pipe / "{CONTROL}.pid"
mood = pathlib.Path(__file__).with_name("mood").read_text()
if sys.argv[1:] == ["-d"]:
    if mood == "broken":
        sys.exit("no GPU")
    code = "import time; time.sleep(60)"
    daemon = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    pid.write_text(str(daemon.pid))
else:
    command = sys.stdin.read().split()
    if not pid.exists():
        sys.exit(1)
    if command[0] == "quit" and mood != "deaf":
        os.kill(int(pid.read_text()), signal.SIGKILL)
"""


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / CONTROL).write_text(FAKE)
    (folder / CONTROL).chmod(0o755)
    (folder / "mood").write_text("well")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr("tests.bench.mps.START_S", 1.5)
    monkeypatch.setattr("tests.bench.mps.QUIT_S", 1.5)
    return folder


def daemon_pid(folder: Path) -> int:
    return int((folder / "mps/pipe" / f"{CONTROL}.pid").read_text())


def gone(pid: int) -> bool:
    limit = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < limit:
        time.sleep(0.02)
    return not is_alive(pid)


@pytest.mark.parametrize("mood", ["well", "deaf"])
def test_the_daemon_ends_with_its_block_even_when_it_does_not_listen(
    control: Path, tmp_path: Path, mood: str
) -> None:
    (control / "mood").write_text(mood)
    with pytest.raises(ValueError, match="cell"), MpsDaemon(tmp_path) as daemon:
        assert daemon.environment["CUDA_MPS_PIPE_DIRECTORY"] == str(tmp_path / "mps/pipe")
        pid = daemon_pid(tmp_path)
        assert is_alive(pid)
        raise ValueError("the cell failed")
    assert gone(pid)


def test_a_daemon_that_does_not_start_is_an_error(control: Path, tmp_path: Path) -> None:
    (control / "mood").write_text("broken")
    with pytest.raises(RuntimeError, match=r"did not start.*no GPU"), MpsDaemon(tmp_path):
        pass


def test_programs_and_what_they_started_end_with_their_block(tmp_path: Path) -> None:
    child = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True)"
    code = f"{child}; import time; time.sleep(60)"
    with Programs(tmp_path) as programs:
        program = programs.start("parent", [sys.executable, "-c", code], dict(os.environ))
        programs.wait(lambda: bool(program.tail().strip()), 20, "its child", [program])
        pid = int(program.tail())
        assert is_alive(pid)
    assert program.ended
    assert gone(pid)


def test_a_program_that_ends_too_early_is_told_with_its_log(tmp_path: Path) -> None:
    with Programs(tmp_path) as programs:
        code = "print('out of memory'); raise SystemExit(3)"
        fill = programs.start("fill0", [sys.executable, "-c", code], dict(os.environ))
        with pytest.raises(ProgramError, match=r"(?s)fill0 ended with 3.*out of memory"):
            programs.wait(lambda: False, 20, "the end of the training", [fill])


def test_waiting_in_vain_shows_every_log(tmp_path: Path) -> None:
    with Programs(tmp_path) as programs:
        words = ["sh", "-c", "echo still loading; sleep 60"]
        train = programs.start("train", words, dict(os.environ))
        with pytest.raises(ProgramError, match=r"(?s)in vain for its end.*still loading"):
            programs.wait(lambda: train.ended, 0.5, "its end", [train])
