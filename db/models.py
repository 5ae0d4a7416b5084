"""The database: what ran where, which fill used which bubble, and the audit log.

Times are stored as UTC microseconds since the epoch in `*_at_us` (exact on SQLite, PostgreSQL and
MariaDB alike); lengths in microseconds in `*_us`.
"""

from __future__ import annotations

from typing import ClassVar

from sqlalchemy import (
    BigInteger,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# SQLite counts rows by itself only for INTEGER keys.
Id = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    # Constraints need names, or a later migration can't change them on SQLite.
    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ix": "ix_%(table_name)s_%(column_0_name)s",
        }
    )
    type_annotation_map: ClassVar = {int: BigInteger(), float: Double(), str: String(255)}


class Node(Base):
    __tablename__ = "nodes"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    twin: Mapped[str]
    agent_version: Mapped[str] = mapped_column(default="")
    boot_id: Mapped[str] = mapped_column(default="")
    last_report_at_us: Mapped[int] = mapped_column(default=0)
    off: Mapped[int] = mapped_column(default=0)


class Gpu(Base):
    __tablename__ = "gpus"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    node_id: Mapped[int] = mapped_column(ForeignKey("nodes.id"))
    uuid: Mapped[str] = mapped_column(String(64), unique=True)
    minor: Mapped[int]
    name: Mapped[str]
    memory_bytes: Mapped[int]
    simulated: Mapped[int] = mapped_column(default=0)


class HostJob(Base):
    """A training allocation, one row for each node it has GPUs on."""

    __tablename__ = "host_jobs"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    node_id: Mapped[int] = mapped_column(ForeignKey("nodes.id"))
    slurm_job_id: Mapped[int] = mapped_column(index=True)
    user: Mapped[str] = mapped_column(index=True)
    account: Mapped[str] = mapped_column(default="")
    mode: Mapped[str] = mapped_column(String(16))
    mode_reason: Mapped[str] = mapped_column(default="")
    gpus: Mapped[str] = mapped_column(Text)  # UUIDs, comma-separated
    lend_bytes: Mapped[int | None]
    slowdown_budget: Mapped[float]
    started_at_us: Mapped[int] = mapped_column(index=True)
    ended_at_us: Mapped[int | None]
    intrusion_us: Mapped[int] = mapped_column(default=0)
    bubble_us: Mapped[int] = mapped_column(default=0)
    filled_us: Mapped[int] = mapped_column(default=0)
    watched_us: Mapped[int | None]  # 0: nobody watched it; None: before it was recorded
    calibrated_slowdown: Mapped[float | None]  # of its wall time; None: not known yet
    share_mode: Mapped[str | None] = mapped_column(String(16))  # None: before it was known
    share_reason: Mapped[str | None]
    __table_args__ = (UniqueConstraint("node_id", "slurm_job_id", "started_at_us"),)


class FillJob(Base):
    """An inference job, one row for each start (a requeue starts it again)."""

    __tablename__ = "fill_jobs"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    node_id: Mapped[int] = mapped_column(ForeignKey("nodes.id"))
    gpu_id: Mapped[int] = mapped_column(ForeignKey("gpus.id"))
    slurm_job_id: Mapped[int] = mapped_column(index=True)
    restart_count: Mapped[int] = mapped_column(default=0)
    user: Mapped[str] = mapped_column(index=True)
    account: Mapped[str] = mapped_column(default="")
    host_slurm_job_id: Mapped[int | None]
    memory_bytes: Mapped[int]
    admitted_at_us: Mapped[int] = mapped_column(index=True)
    ended_at_us: Mapped[int | None]
    end_reason: Mapped[str] = mapped_column(default="")
    __table_args__ = (UniqueConstraint("node_id", "slurm_job_id", "admitted_at_us"),)


class BubbleUse(Base):
    """One use of one bubble by one fill job: the audit's unit."""

    __tablename__ = "bubble_uses"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    gpu_id: Mapped[int] = mapped_column(ForeignKey("gpus.id"))
    host_slurm_job_id: Mapped[int]
    host_step: Mapped[str] = mapped_column(String(32), default="")
    fill_slurm_job_id: Mapped[int]
    bubble_seq: Mapped[int]
    bubble_began_at_us: Mapped[int]
    bubble_us: Mapped[float]
    cause: Mapped[str] = mapped_column(String(16))
    first_release_at_us: Mapped[int]
    used_us: Mapped[float]
    kernels: Mapped[int]
    copies: Mapped[int] = mapped_column(default=0)
    gpu_time_us: Mapped[float]
    intrusion_us: Mapped[float]
    __table_args__ = (
        Index("ix_bubble_uses_gpu_time", "gpu_id", "first_release_at_us"),
        Index("ix_bubble_uses_time", "first_release_at_us"),
        Index("ix_bubble_uses_host", "host_slurm_job_id", "first_release_at_us"),
        Index("ix_bubble_uses_fill", "fill_slurm_job_id", "first_release_at_us"),
    )


class Window(Base):
    """Ten seconds of one (GPU, host job, fill job); fill job 0 is the training's own side."""

    __tablename__ = "windows"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    gpu_id: Mapped[int] = mapped_column(ForeignKey("gpus.id"))
    host_slurm_job_id: Mapped[int]
    fill_slurm_job_id: Mapped[int] = mapped_column(default=0)
    began_at_us: Mapped[int] = mapped_column(index=True)
    window_us: Mapped[int]
    bubbles: Mapped[int]
    bubble_us: Mapped[float]
    used_bubbles: Mapped[int]
    gpu_time_us: Mapped[float]
    intrusion_us: Mapped[float]
    kernels: Mapped[int]
    __table_args__ = (
        UniqueConstraint("gpu_id", "began_at_us", "host_slurm_job_id", "fill_slurm_job_id"),
        Index("ix_windows_host", "host_slurm_job_id", "began_at_us"),
        Index("ix_windows_fill", "fill_slurm_job_id", "began_at_us"),
    )


class Event(Base):
    """The audit log."""

    __tablename__ = "events"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    at_us: Mapped[int] = mapped_column(index=True)
    node_id: Mapped[int | None] = mapped_column(ForeignKey("nodes.id"))
    gpu_id: Mapped[int | None] = mapped_column(ForeignKey("gpus.id"))
    what: Mapped[str] = mapped_column(String(32), index=True)
    text: Mapped[str] = mapped_column(Text)
    slurm_job_id: Mapped[int | None] = mapped_column(index=True)
    user: Mapped[str | None]


class ReceivedBatch(Base):
    """Batches stored for good, so that one sent twice counts once."""

    __tablename__ = "received_batches"
    node_id: Mapped[int] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    boot_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    sequence: Mapped[int]  # highest stored; batches arrive in order


class Setting(Base):
    """Cluster-wide switches that outlive a restart (`off`)."""

    __tablename__ = "settings"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[str]
