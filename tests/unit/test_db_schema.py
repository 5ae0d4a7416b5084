"""The migrations give exactly the tables of the models, on every kind of database."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import select, text

from db.engine import Database, DatabaseError
from db.models import Base, HostJob, Setting
from db.schema import current_revision, newest_revision, require_current, upgrade
from tests.unit.database_servers import database, mariadb_url, postgresql_url

__all__ = ["database", "mariadb_url", "postgresql_url"]


def test_upgrade_gives_the_tables_of_the_models(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    require_current(database)


def test_a_tests_mariadb_has_its_temporary_tables_where_no_other_deletes_them(
    mariadb_url: str,
) -> None:
    opened = Database(mariadb_url)
    with opened.engine.connect() as connection:
        folder = connection.execute(text("select @@tmpdir")).scalar_one()
    assert f"unix_socket={folder}/sock" in mariadb_url


def test_upgrading_again_changes_nothing(database: Database) -> None:
    with database.writing() as session:
        session.add(Setting(name="off", value="1"))
    upgrade(database)
    with database.reading() as session:
        assert session.get_one(Setting, "off").value == "1"


def test_a_database_of_the_first_version_keeps_its_jobs(tmp_path: Path) -> None:
    opened = Database(f"sqlite:///{tmp_path / 'old.db'}")
    upgrade(opened)
    with opened.engine.begin() as connection:
        for later in ("calibrated_slowdown", "share_mode", "share_reason", "watched_us"):
            connection.exec_driver_sql(f"ALTER TABLE host_jobs DROP COLUMN {later}")
        connection.exec_driver_sql("UPDATE alembic_version SET version_num='0001'")
        connection.exec_driver_sql(
            "INSERT INTO nodes VALUES (1, 'n1', 'f1', '', '', 0, 0)",
        )
        connection.exec_driver_sql(
            "INSERT INTO host_jobs (node_id, slurm_job_id, user, account, mode, mode_reason, gpus,"
            " slowdown_budget, started_at_us, intrusion_us, bubble_us, filled_us)"
            " VALUES (1, 7, 'sfilluser1', '', 'on', '', 'GPU-a', 0.01, 5, 0, 0, 0)"
        )
    upgrade(opened)
    require_current(opened)
    with opened.reading() as session:
        job = session.scalars(select(HostJob)).one()
        assert (job.slurm_job_id, job.calibrated_slowdown, job.share_mode) == (7, None, None)
        assert job.watched_us is None


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    opened = Database(f"sqlite:///{tmp_path / 'new.db'}")
    upgrade(opened)
    with opened.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num='9999'")
    with pytest.raises(DatabaseError, match="9999"):
        upgrade(opened)
    with pytest.raises(DatabaseError, match=newest_revision()):
        require_current(opened)


def test_a_reader_of_an_empty_or_missing_database_is_told_what_to_do(tmp_path: Path) -> None:
    empty = tmp_path / "empty.db"
    sqlite3.connect(empty).close()
    with pytest.raises(DatabaseError, match="start sfillctld"):
        require_current(Database(f"sqlite:///{empty}", read_only=True))
    with pytest.raises(DatabaseError, match="no such file"):
        require_current(Database(f"sqlite:///{tmp_path / 'absent.db'}", read_only=True))
    assert not (tmp_path / "absent.db").exists()


def test_a_read_only_database_cannot_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "one.db"
    writer = Database(f"sqlite:///{path}")
    upgrade(writer)
    reader = Database(f"sqlite:///{path}", read_only=True)
    assert current_revision(reader) == newest_revision()
    with pytest.raises(DatabaseError, match="read-only"), reader.writing():
        pass
    with reader.engine.connect() as connection, pytest.raises(Exception, match="readonly"):
        connection.exec_driver_sql("DELETE FROM settings")


@pytest.mark.parametrize("url", ["", "nonsense", "sqlite://", "oracle://x"])
def test_a_bad_address_is_refused_in_one_sentence(url: str) -> None:
    with pytest.raises(DatabaseError, match="database_url"):
        Database(url)
