"""Databases for tests: SQLite in a file, and private PostgreSQL and MariaDB servers.

The servers live in a temporary folder, on unix sockets only, and are skipped where their
programs are not installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from db.engine import Database
from db.models import Base
from db.schema import upgrade


def _run(command: list[str], timeout_s: float = 60) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")


def _await(command: list[str]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if subprocess.run(command, capture_output=True, timeout=10).returncode == 0:
            return
        time.sleep(0.1)
    raise RuntimeError(f"{command} never succeeded")


def _postgres_program(name: str) -> str | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    initdb, postgres = _postgres_program("initdb"), _postgres_program("postgres")
    ready, psql = _postgres_program("pg_isready"), _postgres_program("psql")
    if not (initdb and postgres and ready and psql):
        pytest.skip("PostgreSQL is not installed")
    pytest.importorskip("psycopg")
    # PostgreSQL refuses to run as root.
    become = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory(prefix="sf-pg-") as name:
        folder = Path(name)
        if become:
            shutil.chown(folder, "postgres")
        data = str(folder / "data")
        _run([*become, initdb, "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8"])
        listen = ["-c", "listen_addresses=", "-k", name]
        command = [*become, postgres, "-D", data, *listen, "-F"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _await([ready, "-h", name])
            _run([psql, "-h", name, "-U", "tester", "-c", "create database sfill", "postgres"])
            yield f"postgresql+psycopg://tester@/sfill?host={name}"
        finally:
            server.terminate()
            server.wait(timeout=30)


@pytest.fixture(scope="session")
def mariadb_url() -> Iterator[str]:
    if not (shutil.which("mariadbd") and shutil.which("mariadb-install-db")):
        pytest.skip("MariaDB is not installed")
    pytest.importorskip("pymysql")
    user = "root" if os.geteuid() == 0 else os.environ.get("USER", "nobody")
    with tempfile.TemporaryDirectory(prefix="sf-mdb-") as name:
        data, socket = f"{name}/data", f"{name}/sock"
        # A server that starts deletes the temporary tables that it finds, another's in /tmp too.
        temporary = f"--tmpdir={name}"
        _run(
            [
                "mariadb-install-db",
                "--no-defaults",
                f"--user={user}",
                f"--datadir={data}",
                temporary,
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ]
        )
        command = [
            "mariadbd",
            "--no-defaults",
            f"--user={user}",
            f"--datadir={data}",
            f"--socket={socket}",
            temporary,
            "--skip-networking",
            "--innodb-buffer-pool-size=32M",
        ]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            client = ["mariadb", "--no-defaults", "-u", "root", "-S", socket]
            _await([*client, "-e", "select 1"])
            _run([*client, "-e", "create database sfill character set utf8mb4"])
            yield f"mariadb+pymysql://root@/sfill?unix_socket={socket}"
        finally:
            server.terminate()
            server.wait(timeout=30)


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.servers),
        pytest.param("mariadb", marks=pytest.mark.servers),
    ]
)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty database of this version on each kind of server."""
    if request.param == "sqlite":
        opened = Database(f"sqlite:///{tmp_path / 'sfill.db'}")
    else:
        opened = Database(request.getfixturevalue(f"{request.param}_url"))
    upgrade(opened)
    yield opened
    if request.param != "sqlite":
        with opened.engine.begin() as connection:
            for table in reversed(Base.metadata.sorted_tables):
                connection.execute(table.delete())
    opened.close()
