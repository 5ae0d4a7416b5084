"""Bringing a database to the tables of this version (Alembic)."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from db.engine import Database, DatabaseError


def alembic_config(connection: Connection | None = None) -> Config:
    """Alembic's configuration, with no alembic.ini; `connection` is what env.py works on."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    if connection is not None:
        config.attributes["connection"] = connection
    return config


def newest_revision() -> str:
    """The revision that this version of the program needs."""
    revision = ScriptDirectory.from_config(alembic_config()).get_current_head()
    if revision is None:
        raise DatabaseError("the installation is incomplete: db/migrations holds no revision")
    return revision


def current_revision(database: Database) -> str | None:
    """The database's revision; None when it holds no tables of ours yet."""
    with database.engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def _known_revisions() -> set[str]:
    scripts = ScriptDirectory.from_config(alembic_config()).walk_revisions()
    return {script.revision for script in scripts}


def _too_new(revision: str) -> str:
    return (
        f"the database is at revision {revision}, which this version does not know;"
        f" it knows up to {newest_revision()}"
    )


def upgrade(database: Database) -> None:
    """Make or change tables until they are those of this version; nothing when they are.

    Called by sfillctld, the only writer, at its start. Raises DatabaseError when the database
    was written by a newer version.
    """
    current = current_revision(database)
    if current is not None and current not in _known_revisions():
        raise DatabaseError(_too_new(current))
    with database.engine.begin() as connection:
        command.upgrade(alembic_config(connection), "head")


def require_current(database: Database) -> None:
    """Raise DatabaseError, in one sentence, unless the tables are those of this version."""
    try:
        current = current_revision(database)
    except SQLAlchemyError as error:
        raise DatabaseError(_reason(database, error)) from error
    if current == newest_revision():
        return
    if current is not None and current not in _known_revisions():
        raise DatabaseError(_too_new(current))
    raise DatabaseError(
        f"the database is at revision {current or 'none'}, this version needs"
        f" {newest_revision()}: start sfillctld, which upgrades it"
    )


def why_unreadable(database: Database, error: SQLAlchemyError) -> str:
    """What `error` comes from: most often no file, no permission or another version's tables."""
    try:
        require_current(database)
    except DatabaseError as found:
        return str(found)
    return _reason(database, error)


def _reason(database: Database, error: SQLAlchemyError) -> str:
    """In words of the driver; SQLite's for a file that can't be opened say nothing."""
    if database.url.get_backend_name() == "sqlite" and database.url.database:
        try:
            Path(database.url.database).open("rb").close()
        except OSError as found:
            return (found.strerror or str(found)).lower()
    return str(getattr(error, "orig", None) or error).strip().splitlines()[0]
