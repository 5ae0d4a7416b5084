"""For how long a host job was watched: of one that never was, no bubbles are known

Revision: 0004, after 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("host_jobs", sa.Column("watched_us", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("host_jobs", "watched_us")
