"""What fill cost a host job by comparison

Revision: 0002, after 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("host_jobs", sa.Column("calibrated_slowdown", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("host_jobs", "calibrated_slowdown")
