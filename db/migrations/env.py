"""Alembic's entry: runs migrations on the connection that db.schema hands over."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from db.models import Base


def run() -> None:
    connection: Connection | None = context.config.attributes.get("connection")
    if connection is None:
        raise RuntimeError("migrations are run by db.schema.upgrade, which opens the database")
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        # SQLite changes a table by copying it.
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


run()
