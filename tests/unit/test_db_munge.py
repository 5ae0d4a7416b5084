"""Credentials are made and checked by a munged of our own."""

from __future__ import annotations

import os
import shutil
import socket as net
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from db.wire import munge

pytestmark = pytest.mark.skipif(shutil.which("munged") is None, reason="munged is not installed")


@pytest.fixture(scope="module")
def munge_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("munge")
    key = folder / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    path = folder / "sock"
    daemon = subprocess.Popen(
        [
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={path}",
            f"--pid-file={folder / 'pid'}",
            f"--seed-file={folder / 'seed'}",
            f"--log-file={folder / 'log'}",
        ],
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 10
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    yield str(path)
    daemon.terminate()
    daemon.wait(timeout=10)


def test_a_credential_says_who_made_it_and_carries_its_payload(munge_socket: str) -> None:
    got = munge.decode(munge.encode(b"sha256 of a body", munge_socket), munge_socket)
    assert got.payload == b"sha256 of a body"
    assert (got.uid, got.gid) == (os.geteuid(), os.getegid())
    net.inet_aton(got.host)


def test_payload_may_be_empty_or_hold_zero_bytes(munge_socket: str) -> None:
    for payload in (b"", b"\0a\0", bytes(range(256))):
        assert munge.decode(munge.encode(payload, munge_socket), munge_socket).payload == payload


def test_a_credential_is_believed_once(munge_socket: str) -> None:
    credential = munge.encode(b"once", munge_socket)
    munge.decode(credential, munge_socket)
    with pytest.raises(munge.MungeError, match="eplayed") as caught:
        munge.decode(credential, munge_socket)
    assert caught.value.replayed and not caught.value.unreachable


def test_a_changed_credential_is_refused(munge_socket: str) -> None:
    credential = munge.encode(b"payload", munge_socket)
    middle = len(credential) // 2
    other = "A" if credential[middle] != "A" else "B"
    with pytest.raises(munge.MungeError):
        munge.decode(credential[:middle] + other + credential[middle + 1 :], munge_socket)
    with pytest.raises(munge.MungeError):
        munge.decode("nonsense", munge_socket)


def test_no_munged_is_told_apart_from_a_bad_credential(tmp_path: Path) -> None:
    with pytest.raises(munge.MungeError) as caught:
        munge.encode(b"x", str(tmp_path / "absent"))
    assert caught.value.unreachable
