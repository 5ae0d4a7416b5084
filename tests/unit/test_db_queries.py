"""What the dashboard and the command line read equals what the tables hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db import audit, jobs, queries
from db.models import BubbleUse, Window
from tests.unit.ledger_sample import sample_engine, uuid_of

NOW_US = 1_800_000_000_000_000


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    path: Path = tmp_path_factory.mktemp("ledger") / "sfill.db"
    with Session(sample_engine(path, now_us=NOW_US, minutes=12)) as opened:
        yield opened


def test_totals_equal_the_uses(session: Session) -> None:
    found = queries.totals(session, since_us=0, until_us=NOW_US)
    gpu_time, intrusion, rows = session.execute(
        select(
            func.sum(BubbleUse.gpu_time_us),
            func.sum(BubbleUse.intrusion_us),
            func.count(BubbleUse.id),
        )
    ).one()
    assert found.use.filled_us == pytest.approx(gpu_time)
    assert found.use.intrusion_us == pytest.approx(intrusion)
    assert found.use.used_bubbles == rows
    assert found.slowdown_budget == 0.01
    assert (found.gpus, found.gpus_lending) == (4, 2)
    assert (found.host_jobs_running, found.fill_jobs_running) == (2, 3)


def test_gpu_without_training_has_no_share(session: Session) -> None:
    states = {
        state.minor: state
        for state in queries.gpu_states(session, now_us=NOW_US, recent_us=60_000_000)
    }
    assert states[3].host_job is None
    assert states[3].recent.bubble_share is None
    assert states[2].mode == "observe"
    assert states[2].recent.filled_share == 0.0
    assert [fill.job_id for fill in states[1].fills] == [202, 203]
    assert states[1].lent_bytes == 16 << 30


def test_timeline_adds_up_to_the_totals(session: Session) -> None:
    buckets = queries.timeline(session, since_us=0, until_us=NOW_US, step_us=60_000_000)
    found = queries.totals(session, since_us=0, until_us=NOW_US)
    assert sum(bucket.use.filled_us for bucket in buckets) == pytest.approx(found.use.filled_us)
    assert sum(bucket.use.wall_us for bucket in buckets) == pytest.approx(found.use.wall_us)
    for bucket in buckets:
        whole = bucket.use.busy_us + bucket.use.filled_us + bucket.use.unfilled_us
        assert whole == pytest.approx(bucket.use.wall_us, rel=0.01)


def test_timeline_of_a_fill_job_is_its_own_use(session: Session) -> None:
    buckets = queries.timeline(
        session, since_us=0, until_us=NOW_US, step_us=60_000_000, fill_job=202
    )
    used = session.scalar(
        select(func.sum(BubbleUse.gpu_time_us)).where(BubbleUse.fill_slurm_job_id == 202)
    )
    assert {bucket.uuid for bucket in buckets} == {uuid_of(1)}
    assert sum(bucket.use.filled_us for bucket in buckets) == pytest.approx(used)
    assert not queries.timeline(
        session, since_us=0, until_us=NOW_US, step_us=60_000_000, fill_job=999
    )


def test_host_job_sums_its_gpus(session: Session) -> None:
    (job,) = jobs.host_jobs(session, now_us=NOW_US, job_id=101)
    assert len(job.gpus) == 2
    assert job.ended_at_us is None
    assert job.use.wall_us == 2 * (NOW_US - job.started_at_us)
    assert job.use.bubble_share == pytest.approx((0.46 + 0.31) / 2, abs=0.05)


def test_requeued_fill_is_one_job(session: Session) -> None:
    (job,) = jobs.fill_jobs(session, now_us=NOW_US, job_id=203)
    assert job.starts == 2
    assert job.ended_at_us is None
    assert sorted(job.host_jobs) == [101, 103]
    assert job.nodes == ["n1", "n2"]
    used = session.scalar(
        select(func.sum(BubbleUse.gpu_time_us)).where(BubbleUse.fill_slurm_job_id == 203)
    )
    assert job.use.filled_us == pytest.approx(used)


def test_limit_counts_jobs(session: Session) -> None:
    assert [job.job_id for job in jobs.fill_jobs(session, now_us=NOW_US, limit=1)] == [203]
    assert next(job.job_id for job in jobs.host_jobs(session, now_us=NOW_US, limit=2)) == 102


def test_audit_pages_give_every_row_once(session: Session) -> None:
    wanted = audit.AuditFilter(fill_job=203)
    after: audit.Key | None = None
    seen: list[int] = []
    while rows := audit.audit_rows(session, wanted, limit=100, after=after):
        seen += [row.id for row in rows]
        after = rows[-1].key
    stored = session.scalars(
        select(BubbleUse.id)
        .where(BubbleUse.fill_slurm_job_id == 203)
        .order_by(BubbleUse.first_release_at_us.desc(), BubbleUse.id.desc())
    ).all()
    assert seen == stored
    assert audit.audit_sums(session, wanted).rows == len(stored)


@pytest.mark.parametrize(
    ("wanted", "fills"),
    [
        (audit.AuditFilter(user="sfilluser2"), {201, 202}),
        (audit.AuditFilter(gpu=uuid_of(3)), {203}),
        (audit.AuditFilter(node="n2"), {203}),
        (audit.AuditFilter(host_job=101, fill_job=203), {203}),
        (audit.AuditFilter(user="nobody"), set()),
    ],
)
def test_audit_filters(session: Session, wanted: audit.AuditFilter, fills: set[int]) -> None:
    rows = audit.audit_rows(session, wanted, limit=100_000)
    assert {row.fill_slurm_job_id for row in rows} == fills
    assert audit.audit_sums(session, wanted).rows == len(rows)


def test_audit_rows_name_their_owners(session: Session) -> None:
    (row,) = audit.audit_rows(session, audit.AuditFilter(fill_job=201), limit=1)
    assert (row.host_user, row.fill_user, row.node) == ("sfilluser1", "sfilluser2", "n1")


def test_events_newest_first_and_filtered(session: Session) -> None:
    rows = audit.event_rows(session, audit.EventFilter(), limit=100)
    assert [row.at_us for row in rows] == sorted((row.at_us for row in rows), reverse=True)
    evicted = audit.event_rows(session, audit.EventFilter(what="evicted"), limit=100)
    assert [row.slurm_job_id for row in evicted] == [203]
    assert audit.event_kinds(session) == ["admitted", "evicted", "refused"]


def test_windows_equal_uses(session: Session) -> None:
    """The sample itself is consistent, or the tests above prove nothing."""
    windows = session.scalar(
        select(func.sum(Window.gpu_time_us)).where(Window.fill_slurm_job_id != 0)
    )
    assert windows == pytest.approx(session.scalar(select(func.sum(BubbleUse.gpu_time_us))))
