"""Opening the database from its URL.

SQLite is the default (`sqlite:////var/lib/sfill/sfill.db`); PostgreSQL
(`postgresql+psycopg://...`) and MariaDB (`mariadb+pymysql://...`) need the extra of that name.
`sfillctld` alone writes; everything else opens the database read-only.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as SQLAlchemyTimeoutError
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool

from db import sqlite_file

BACKENDS = ("sqlite", "postgresql", "mysql", "mariadb")


class DatabaseError(Exception):
    """The database cannot be opened or is not one of ours; the text says why."""


class Database:
    """One database and the sessions on it. Safe to share between threads."""

    def __init__(self, url: str, *, read_only: bool = False, busy_timeout_s: float = 5.0) -> None:
        """Raise DatabaseError when the URL is no good; nothing is connected yet.

        `busy_timeout_s` is how long a statement waits for a lock on SQLite and for a connection
        on the others.
        """
        self.url = _parse(url)
        self.read_only = read_only
        backend = self.url.get_backend_name()
        # SQLite has one writer at a time; waiting in line here is fair, polling its lock is not.
        self._write_lock = threading.Lock() if backend == "sqlite" else None
        self._path = Path(str(self.url.database)) if backend == "sqlite" else None
        self._busy_timeout_s = busy_timeout_s
        try:
            if backend == "sqlite":
                self.engine = _sqlite_engine(self.url, read_only, busy_timeout_s)
            else:
                self.engine = _server_engine(self.url, busy_timeout_s)
        except (NoSuchModuleError, ModuleNotFoundError) as error:
            raise DatabaseError(
                f"database_url: the driver for {self.url.drivername} is not installed ({error})"
            ) from error

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session whose changes, if any, are thrown away."""
        with Session(self.engine) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """One transaction: committed at the end, rolled back on any exception.

        On SQLite it also raises after the commit, if the file was removed or replaced meanwhile.
        """
        if self.read_only:
            raise DatabaseError("this database was opened read-only")
        with self._in_line(), Session(self.engine) as session:
            with session.begin():
                file = sqlite_file.file_of(session) if self._path else None
                yield session
            if self._path and file:
                sqlite_file.require_same_file(file, self._path)

    @contextmanager
    def _in_line(self) -> Iterator[None]:
        if self._write_lock is None:
            yield
            return
        if not self._write_lock.acquire(timeout=self._busy_timeout_s):
            raise SQLAlchemyTimeoutError(
                f"the database is locked: a write goes on for {self._busy_timeout_s:g} s already"
            )
        try:
            yield
        finally:
            self._write_lock.release()

    def close(self) -> None:
        self.engine.dispose()


def _parse(text: str) -> URL:
    try:
        url = make_url(text)
        backend = url.get_backend_name()
    except ArgumentError:
        backend = ""
    if backend not in BACKENDS:
        raise DatabaseError(
            "database_url: not a database address; allowed are sqlite:////path/of/file,"
            " postgresql+psycopg://user@host/name and mariadb+pymysql://user@host/name"
        )
    if backend == "sqlite" and not url.database:
        raise DatabaseError("database_url: an SQLite address needs the path of a file")
    return url


def _server_engine(url: URL, timeout_s: float) -> Engine:
    # Reads of the dashboard need no snapshot over several statements; writers lock rows.
    return create_engine(
        url,
        pool_pre_ping=True,
        pool_timeout=timeout_s,
        isolation_level="READ COMMITTED",
        connect_args={"connect_timeout": max(1, round(timeout_s))},
    )


def _sqlite_engine(url: URL, read_only: bool, busy_timeout_s: float) -> Engine:
    path = Path(str(url.database))

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            _sqlite_address(path, read_only),
            uri=True,
            timeout=busy_timeout_s,
            check_same_thread=False,
            isolation_level=None,  # transactions begin where SQLAlchemy says, see below
        )

    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool)

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA foreign_keys=ON")
        if not read_only:
            connection.execute("PRAGMA journal_mode=WAL")
            # FULL: a batch that was acknowledged must survive a power cut.
            connection.execute("PRAGMA synchronous=FULL")

    sqlite_file.watch(engine, path)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A reader that turns writer gets SQLITE_BUSY at once, whatever the timeout: writers
        # therefore take the write lock at the start.
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    return engine


def _sqlite_address(path: Path, read_only: bool) -> str:
    address = "file:" + quote(str(path))
    if not read_only:
        return address + "?mode=rwc"
    # A reader who may not write in the folder needs the log files that the writer keeps while it
    # runs; without a writer the file cannot change and is read as it is.
    unwatched = not path.with_name(path.name + "-wal").exists()
    if unwatched and not os.access(path.parent, os.W_OK):
        return address + "?mode=ro&immutable=1"
    return address + "?mode=ro"
