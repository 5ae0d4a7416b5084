"""How a host job shares its GPUs with fills, and why

Revision: 0003, after 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("host_jobs", sa.Column("share_mode", sa.String(16), nullable=True))
    op.add_column("host_jobs", sa.Column("share_reason", sa.String(255), nullable=True))


def downgrade() -> None:
    op.drop_column("host_jobs", "share_reason")
    op.drop_column("host_jobs", "share_mode")
