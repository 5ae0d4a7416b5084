"""Reading the database on behalf of a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from db.engine import Database, DatabaseError
from slurm_plugin.cli.settings import CliSettings, SettingsError


class LedgerError(click.ClickException):
    """The ledger cannot be read; the text is one sentence."""


@contextmanager
def ledger(settings: CliSettings) -> Iterator[Session]:
    """A read-only session; raises LedgerError where the database fails, SettingsError where its
    address is no good."""
    try:
        database = Database(settings.database_url, read_only=True)
    except DatabaseError as error:
        raise SettingsError(str(error)) from error
    try:
        with database.reading() as session:
            yield session
    except DatabaseError as error:
        raise LedgerError(str(error)) from error
    except SQLAlchemyError as error:
        from db.schema import why_unreadable  # Alembic: a quarter of a second

        cause = why_unreadable(database, error)
        # str() of a URL shows no password.
        raise LedgerError(f"cannot read the database {database.url} ({cause})") from error
    finally:
        database.close()
