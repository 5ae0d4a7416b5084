"""Closes the rows of jobs that their agent knows no more: it has begun without its earlier state,
so nobody will tell of their end.

Batches come in order: whatever is open when that is read was left so by an earlier life.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db.models import FillJob, Gpu, HostJob, Window

LOST = "not known to its agent any more, whose state was lost"


def close_lost_jobs(
    session: Session, node_id: int, at_us: int
) -> Iterator[tuple[str, int, str, str]]:
    """Closes all open rows of a node; an event for each: what, job, user, text.

    A job ends at the last sign of it, the last window of its training: a node that was down for
    long has run nothing meanwhile. Without a sign it ends at `at_us`, when its agent began.
    """
    hosts = select(HostJob).where(HostJob.node_id == node_id, HostJob.ended_at_us.is_(None))
    for host in session.scalars(hosts).all():
        sign_us = _last_sign_us(session, node_id, host.slurm_job_id)
        host.ended_at_us = _end_us(host.started_at_us, sign_us, at_us)
        text = f"host job {host.slurm_job_id}: {LOST}"
        yield "host_ends", host.slurm_job_id, host.user, text
    fills = select(FillJob).where(FillJob.node_id == node_id, FillJob.ended_at_us.is_(None))
    for fill in session.scalars(fills).all():
        sign_us = _last_sign_us(session, node_id, fill.host_slurm_job_id)
        fill.ended_at_us = _end_us(fill.admitted_at_us, sign_us, at_us)
        fill.end_reason = LOST
        text = f"fill job {fill.slurm_job_id}: {LOST}"
        yield "fill_ends", fill.slurm_job_id, fill.user, text


def _end_us(began_us: int, sign_us: int | None, at_us: int) -> int:
    if sign_us is None or not began_us < sign_us < at_us:
        return max(began_us, at_us)
    return sign_us


def _last_sign_us(session: Session, node_id: int, host_job_id: int | None) -> int | None:
    """The end of the last window of a training on a node, as its agent watched it."""
    if host_job_id is None:
        return None
    last = (
        select(func.max(Window.began_at_us + Window.window_us))
        .join(Gpu, Gpu.id == Window.gpu_id)
        .where(Gpu.node_id == node_id, Window.host_slurm_job_id == host_job_id)
    )
    found = session.scalar(last)
    return None if found is None else int(found)
