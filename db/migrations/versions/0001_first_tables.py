"""First tables

Revision: 0001: the first
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# SQLite counts rows by itself only for INTEGER keys.
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "nodes",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("twin", sa.String(length=255), nullable=False),
        sa.Column("agent_version", sa.String(length=255), nullable=False),
        sa.Column("boot_id", sa.String(length=255), nullable=False),
        sa.Column("last_report_at_us", sa.BigInteger(), nullable=False),
        sa.Column("off", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
        sa.UniqueConstraint("name", name=op.f("uq_nodes_name")),
    )
    op.create_table(
        "settings",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_settings")),
    )
    op.create_table(
        "gpus",
        sa.Column("id", ID, nullable=False),
        sa.Column("node_id", ID, nullable=False),
        sa.Column("uuid", sa.String(length=64), nullable=False),
        sa.Column("minor", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("simulated", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_gpus_node_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_gpus")),
        sa.UniqueConstraint("uuid", name=op.f("uq_gpus_uuid")),
    )
    op.create_table(
        "host_jobs",
        sa.Column("id", ID, nullable=False),
        sa.Column("node_id", ID, nullable=False),
        sa.Column("slurm_job_id", sa.BigInteger(), nullable=False),
        sa.Column("user", sa.String(length=255), nullable=False),
        sa.Column("account", sa.String(length=255), nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("mode_reason", sa.String(length=255), nullable=False),
        sa.Column("gpus", sa.Text(), nullable=False),
        sa.Column("lend_bytes", sa.BigInteger(), nullable=True),
        sa.Column("slowdown_budget", sa.Double(), nullable=False),
        sa.Column("started_at_us", sa.BigInteger(), nullable=False),
        sa.Column("ended_at_us", sa.BigInteger(), nullable=True),
        sa.Column("intrusion_us", sa.BigInteger(), nullable=False),
        sa.Column("bubble_us", sa.BigInteger(), nullable=False),
        sa.Column("filled_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_host_jobs_node_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_host_jobs")),
        sa.UniqueConstraint(
            "node_id", "slurm_job_id", "started_at_us", name=op.f("uq_host_jobs_node_id")
        ),
    )
    op.create_index(op.f("ix_host_jobs_slurm_job_id"), "host_jobs", ["slurm_job_id"])
    op.create_index(op.f("ix_host_jobs_started_at_us"), "host_jobs", ["started_at_us"])
    op.create_index(op.f("ix_host_jobs_user"), "host_jobs", ["user"])
    op.create_table(
        "received_batches",
        sa.Column("node_id", ID, nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["node_id"], ["nodes.id"], name=op.f("fk_received_batches_node_id")
        ),
        sa.PrimaryKeyConstraint("node_id", "boot_id", name=op.f("pk_received_batches")),
    )
    op.create_table(
        "bubble_uses",
        sa.Column("id", ID, nullable=False),
        sa.Column("gpu_id", ID, nullable=False),
        sa.Column("host_slurm_job_id", sa.BigInteger(), nullable=False),
        sa.Column("host_step", sa.String(length=32), nullable=False),
        sa.Column("fill_slurm_job_id", sa.BigInteger(), nullable=False),
        sa.Column("bubble_seq", sa.BigInteger(), nullable=False),
        sa.Column("bubble_began_at_us", sa.BigInteger(), nullable=False),
        sa.Column("bubble_us", sa.Double(), nullable=False),
        sa.Column("cause", sa.String(length=16), nullable=False),
        sa.Column("first_release_at_us", sa.BigInteger(), nullable=False),
        sa.Column("used_us", sa.Double(), nullable=False),
        sa.Column("kernels", sa.BigInteger(), nullable=False),
        sa.Column("copies", sa.BigInteger(), nullable=False),
        sa.Column("gpu_time_us", sa.Double(), nullable=False),
        sa.Column("intrusion_us", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["gpu_id"], ["gpus.id"], name=op.f("fk_bubble_uses_gpu_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_bubble_uses")),
    )
    op.create_index(
        "ix_bubble_uses_fill", "bubble_uses", ["fill_slurm_job_id", "first_release_at_us"]
    )
    op.create_index("ix_bubble_uses_gpu_time", "bubble_uses", ["gpu_id", "first_release_at_us"])
    op.create_index(
        "ix_bubble_uses_host", "bubble_uses", ["host_slurm_job_id", "first_release_at_us"]
    )
    op.create_index("ix_bubble_uses_time", "bubble_uses", ["first_release_at_us"])
    op.create_table(
        "events",
        sa.Column("id", ID, nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("node_id", ID, nullable=True),
        sa.Column("gpu_id", ID, nullable=True),
        sa.Column("what", sa.String(length=32), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("slurm_job_id", sa.BigInteger(), nullable=True),
        sa.Column("user", sa.String(length=255), nullable=True),
        sa.ForeignKeyConstraint(["gpu_id"], ["gpus.id"], name=op.f("fk_events_gpu_id")),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_events_node_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_at_us"), "events", ["at_us"])
    op.create_index(op.f("ix_events_slurm_job_id"), "events", ["slurm_job_id"])
    op.create_index(op.f("ix_events_what"), "events", ["what"])
    op.create_table(
        "fill_jobs",
        sa.Column("id", ID, nullable=False),
        sa.Column("node_id", ID, nullable=False),
        sa.Column("gpu_id", ID, nullable=False),
        sa.Column("slurm_job_id", sa.BigInteger(), nullable=False),
        sa.Column("restart_count", sa.BigInteger(), nullable=False),
        sa.Column("user", sa.String(length=255), nullable=False),
        sa.Column("account", sa.String(length=255), nullable=False),
        sa.Column("host_slurm_job_id", sa.BigInteger(), nullable=True),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("admitted_at_us", sa.BigInteger(), nullable=False),
        sa.Column("ended_at_us", sa.BigInteger(), nullable=True),
        sa.Column("end_reason", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["gpu_id"], ["gpus.id"], name=op.f("fk_fill_jobs_gpu_id")),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_fill_jobs_node_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_fill_jobs")),
        sa.UniqueConstraint(
            "node_id", "slurm_job_id", "admitted_at_us", name=op.f("uq_fill_jobs_node_id")
        ),
    )
    op.create_index(op.f("ix_fill_jobs_admitted_at_us"), "fill_jobs", ["admitted_at_us"])
    op.create_index(op.f("ix_fill_jobs_slurm_job_id"), "fill_jobs", ["slurm_job_id"])
    op.create_index(op.f("ix_fill_jobs_user"), "fill_jobs", ["user"])
    op.create_table(
        "windows",
        sa.Column("id", ID, nullable=False),
        sa.Column("gpu_id", ID, nullable=False),
        sa.Column("host_slurm_job_id", sa.BigInteger(), nullable=False),
        sa.Column("fill_slurm_job_id", sa.BigInteger(), nullable=False),
        sa.Column("began_at_us", sa.BigInteger(), nullable=False),
        sa.Column("window_us", sa.BigInteger(), nullable=False),
        sa.Column("bubbles", sa.BigInteger(), nullable=False),
        sa.Column("bubble_us", sa.Double(), nullable=False),
        sa.Column("used_bubbles", sa.BigInteger(), nullable=False),
        sa.Column("gpu_time_us", sa.Double(), nullable=False),
        sa.Column("intrusion_us", sa.Double(), nullable=False),
        sa.Column("kernels", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["gpu_id"], ["gpus.id"], name=op.f("fk_windows_gpu_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_windows")),
        sa.UniqueConstraint(
            "gpu_id",
            "began_at_us",
            "host_slurm_job_id",
            "fill_slurm_job_id",
            name=op.f("uq_windows_gpu_id"),
        ),
    )
    op.create_index(op.f("ix_windows_began_at_us"), "windows", ["began_at_us"])
    op.create_index("ix_windows_fill", "windows", ["fill_slurm_job_id", "began_at_us"])
    op.create_index("ix_windows_host", "windows", ["host_slurm_job_id", "began_at_us"])


def downgrade() -> None:
    op.drop_index("ix_windows_host", table_name="windows")
    op.drop_index("ix_windows_fill", table_name="windows")
    op.drop_index(op.f("ix_windows_began_at_us"), table_name="windows")
    op.drop_table("windows")
    op.drop_index(op.f("ix_fill_jobs_user"), table_name="fill_jobs")
    op.drop_index(op.f("ix_fill_jobs_slurm_job_id"), table_name="fill_jobs")
    op.drop_index(op.f("ix_fill_jobs_admitted_at_us"), table_name="fill_jobs")
    op.drop_table("fill_jobs")
    op.drop_index(op.f("ix_events_what"), table_name="events")
    op.drop_index(op.f("ix_events_slurm_job_id"), table_name="events")
    op.drop_index(op.f("ix_events_at_us"), table_name="events")
    op.drop_table("events")
    op.drop_index("ix_bubble_uses_time", table_name="bubble_uses")
    op.drop_index("ix_bubble_uses_host", table_name="bubble_uses")
    op.drop_index("ix_bubble_uses_gpu_time", table_name="bubble_uses")
    op.drop_index("ix_bubble_uses_fill", table_name="bubble_uses")
    op.drop_table("bubble_uses")
    op.drop_table("received_batches")
    op.drop_index(op.f("ix_host_jobs_user"), table_name="host_jobs")
    op.drop_index(op.f("ix_host_jobs_started_at_us"), table_name="host_jobs")
    op.drop_index(op.f("ix_host_jobs_slurm_job_id"), table_name="host_jobs")
    op.drop_table("host_jobs")
    op.drop_table("gpus")
    op.drop_table("settings")
    op.drop_table("nodes")
