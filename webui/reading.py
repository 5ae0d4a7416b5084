"""Sessions on the application's database for the views."""

from __future__ import annotations

from contextlib import AbstractContextManager

from flask import current_app
from sqlalchemy.orm import Session

from db.engine import Database


def reading() -> AbstractContextManager[Session]:
    """A read-only session that ends with the block."""
    return database().reading()


def database() -> Database:
    """The database that the application was made on."""
    found: Database = current_app.extensions["database"]
    return found
