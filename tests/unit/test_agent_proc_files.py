"""What stands in /proc may be any bytes: a name upsets nobody who reads them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.devices_v2 import mount_point
from agent.mps_daemon import is_alive, parent_of
from agent.proc_files import lines, read_text
from agent.processes import is_stopped
from tests.unit.agent_peers import until

_NAMED = (
    "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'a)\\xff\\xfe 7', 0, 0, 0); "
    "print(flush=True); sys.stdin.read()"
)


@pytest.fixture
def named() -> Iterator[int]:
    """A process whose name is no text."""
    with subprocess.Popen(
        [sys.executable, "-c", _NAMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert b"\xff\xfe" in Path(f"/proc/{child.pid}/stat").read_bytes()
        yield child.pid
        child.kill()


def test_a_process_is_known_by_its_number_whatever_its_name(named: int) -> None:
    assert is_alive(named)
    assert parent_of(named) == os.getpid()
    assert not is_stopped(named)
    os.kill(named, signal.SIGSTOP)
    until(lambda: is_stopped(named))
    os.kill(named, signal.SIGKILL)
    until(lambda: not is_alive(named))  # nobody has taken its exit code yet
    os.waitpid(named, 0)
    assert not is_alive(named)
    assert parent_of(named) == 0


def test_bytes_that_are_no_text_come_back_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_bytes(b"0::/a\xff\r\x0b\n1:b:/\n")
    found = lines(read_text(tmp_path / "cgroup"))
    assert [os.fsencode(each) for each in found] == [b"0::/a\xff\r\x0b", b"1:b:/"]


def test_a_mount_whose_name_is_no_text_does_not_hide_cgroup2(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_bytes(b"disk /mnt/\xff ext4 rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
    assert mount_point(mounts) == Path("/sys/fs/cgroup")
