"""A database file that is removed or replaced under open connections loses nothing in silence."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError

from db.engine import Database
from db.models import Event
from db.schema import upgrade
from tests.unit.ledger_records import NOW_US


def note(database: Database, text: str) -> None:
    with database.writing() as session:
        session.add(Event(at_us=NOW_US, what="test", text=text))


def texts(database: Database) -> list[str]:
    with database.reading() as session:
        return list(session.scalars(select(Event.text).order_by(Event.id)))


def remove(path: Path) -> None:
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        name.unlink(missing_ok=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "one.db"


@pytest.fixture
def database(path: Path) -> Database:
    made = Database(f"sqlite:///{path}")
    upgrade(made)
    note(made, "before")
    return made


def test_a_write_after_the_removal_does_not_count(database: Database, path: Path) -> None:
    remove(path)
    with pytest.raises(OperationalError, match="no such table"):
        note(database, "lost")
    upgrade(database)
    note(database, "after")
    assert texts(database) == ["after"] == texts(Database(f"sqlite:///{path}", read_only=True))


def test_a_commit_into_a_file_that_was_removed_meanwhile_is_a_failure(
    database: Database, path: Path
) -> None:
    with (
        pytest.raises(OperationalError, match="removed or replaced"),
        database.writing() as session,
    ):
        session.add(Event(at_us=NOW_US, what="test", text="lost"))
        session.flush()
        remove(path)


@pytest.mark.parametrize("read_only", [True, False])
def test_readers_and_writers_go_over_to_the_file_that_took_its_place(
    database: Database, path: Path, tmp_path: Path, read_only: bool
) -> None:
    reader = Database(f"sqlite:///{path}", read_only=True) if read_only else database
    other = tmp_path / "other.db"
    copy = Database(f"sqlite:///{other}")
    upgrade(copy)
    note(copy, "another")
    copy.close()
    assert texts(reader) == ["before"]
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    shutil.move(other, path)
    assert texts(reader) == ["another"]


def test_every_connection_of_the_pool_goes_over(database: Database, path: Path) -> None:
    reader = Database(f"sqlite:///{path}", read_only=True)
    count = select(func.count()).select_from(Event)
    with reader.reading() as first, reader.reading() as second:
        assert first.scalar(count) == second.scalar(count) == 1
    remove(path)
    upgrade(database)
    with reader.reading() as first, reader.reading() as second:
        assert first.scalar(count) == second.scalar(count) == 0
