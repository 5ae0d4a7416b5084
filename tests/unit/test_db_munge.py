"""Credentials are made and checked by a munged of our own."""

from __future__ import annotations

import os
import socket as net
from pathlib import Path

import pytest

from db.wire import munge
from tests.unit.munge_daemon import munge_socket

__all__ = ["munge_socket"]


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
