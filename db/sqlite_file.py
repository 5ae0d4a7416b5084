"""Notices that an SQLite file was removed or replaced under open connections.

SQLite itself goes on with the file that it has open, which nobody will ever find again: what is
committed then is lost, and what is read is of the past. So each connection knows which file it
opened: it is closed where another one (or none) is under the path by now, and what it committed
counts only if that still is its file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import InvalidatePoolError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

_KEY = "sqlite_file"


def watch(engine: Engine, path: Path) -> None:
    """Opens connections anew that have another file than `path`, before they are used again."""

    @event.listens_for(engine, "connect")
    def connected(_connection: object, record: ConnectionPoolEntry) -> None:
        record.info[_KEY] = _file(path)

    @event.listens_for(engine, "checkout")
    def check(
        _connection: object, record: ConnectionPoolEntry, _proxy: PoolProxiedConnection
    ) -> None:
        if record.info[_KEY] != _file(path):
            raise InvalidatePoolError(f"{path} was removed or replaced")


def file_of(session: Session) -> Mapping[Any, Any]:
    """What `require_same_file` compares; asked for while the transaction runs."""
    return session.connection().info


def require_same_file(file: Mapping[Any, Any], path: Path) -> None:
    """Raise OperationalError unless what was committed to `file` is under `path`."""
    if file[_KEY] != _file(path):
        gone = sqlite3.OperationalError(f"{path} was removed or replaced while it was written")
        raise OperationalError(None, None, gone)


def _file(path: Path) -> tuple[int, int] | None:
    """Device and inode; None where there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
