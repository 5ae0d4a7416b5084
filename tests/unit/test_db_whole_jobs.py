"""Whole jobs and audit sums equal what the tables hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db import queries
from db.models import BubbleUse, Window
from db.queries import AuditFilter, JobFilter
from tests.unit.ledger_sample import GIB, sample_engine, uuid_of

NOW_US = 1_800_000_000_000_000
EVER = {"since_us": 0, "until_us": NOW_US}
MINUTE_US = 60_000_000


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    path: Path = tmp_path_factory.mktemp("ledger") / "sfill.db"
    with Session(sample_engine(path, now_us=NOW_US, minutes=12)) as opened:
        yield opened


def used_by(session: Session, fill_job: int) -> float:
    total = select(func.sum(BubbleUse.gpu_time_us)).where(BubbleUse.fill_slurm_job_id == fill_job)
    return session.scalar(total) or 0.0


def test_the_sample_is_consistent(session: Session) -> None:
    """Windows equal uses, or the other tests prove nothing."""
    windows = session.scalar(
        select(func.sum(Window.gpu_time_us)).where(Window.fill_slurm_job_id != 0)
    )
    assert windows == pytest.approx(session.scalar(select(func.sum(BubbleUse.gpu_time_us))))


def test_host_job_sums_its_gpus(session: Session) -> None:
    rows = queries.host_jobs(session, JobFilter(job_id=101), now_us=NOW_US)
    (job,) = queries.whole_host_jobs(rows)
    assert job.gpus == (uuid_of(0), uuid_of(1))
    assert job.ended_at_us is None
    assert job.gpu_wall_us == 2 * (NOW_US - job.started_at_us)
    assert job.bubble_share == pytest.approx((0.46 + 0.31) / 2, abs=0.05)


@pytest.mark.parametrize(
    ("watched_us", "known"),
    [((0, 0), False), ((0, 5), True), ((None, 0), True), ((None, None), True)],
)
def test_of_a_job_that_nobody_watched_no_bubbles_are_known(
    session: Session, watched_us: tuple[int | None, int | None], known: bool
) -> None:
    [row] = queries.host_jobs(session, JobFilter(job_id=101), now_us=NOW_US)
    rows = [replace(row, watched_us=each) for each in watched_us]
    [job] = queries.whole_host_jobs(rows)
    assert (job.bubble_share is not None) == known
    assert [each.bubble_share is None for each in rows] == [each == 0 for each in watched_us]


def test_of_a_job_that_runs_figures_are_of_the_windows_that_have_closed(session: Session) -> None:
    [row] = queries.host_jobs(session, JobFilter(job_id=101), now_us=NOW_US)
    first = replace(row, watched_us=4_000_000, bubble_us=1_600_000, filled_us=800_000)
    first = replace(first, intrusion_us=40_000)
    [job] = queries.whole_host_jobs([first])
    assert first.bubble_share == job.bubble_share == pytest.approx(0.4)
    assert job.filled_share == pytest.approx(0.5)
    assert first.intrusion_fraction == job.intrusion_fraction == pytest.approx(0.01)
    # Time goes on, and no window closes: nothing changes but how long it has run.
    [later] = queries.whole_host_jobs([replace(first, wall_us=first.wall_us + 9_000_000)])
    assert later.gpu_wall_us == job.gpu_wall_us + 18_000_000
    assert (later.bubble_share, later.intrusion_fraction) == (0.4, 0.01)


def test_before_the_first_window_closes_nothing_is_known(session: Session) -> None:
    [row] = queries.host_jobs(session, JobFilter(job_id=101), now_us=NOW_US)
    row = replace(row, watched_us=0, bubble_us=0, filled_us=0, intrusion_us=0)
    [job] = queries.whole_host_jobs([row])
    assert (job.bubble_share, job.filled_share, job.intrusion_fraction) == (None, None, None)


def test_of_a_job_that_ended_figures_are_of_all_its_time(session: Session) -> None:
    [row] = queries.host_jobs(session, JobFilter(job_id=101), now_us=NOW_US)
    over = replace(row, ended_at_us=NOW_US, watched_us=4_000_000, intrusion_us=40_000)
    runs = replace(over, ended_at_us=None, node="n2", bubble_us=1_000_000)
    [job] = queries.whole_host_jobs([over, runs])  # one of its nodes goes on
    wall_us = row.wall_us * len(row.gpus)
    assert over.bubble_share == pytest.approx(row.bubble_us / wall_us)
    assert job.covered_us == wall_us + 4_000_000
    assert job.bubble_share == pytest.approx((row.bubble_us + 1_000_000) / job.covered_us)
    assert job.intrusion_fraction == pytest.approx(80_000 / job.covered_us)


def test_requeued_fill_is_one_job(session: Session) -> None:
    rows = queries.fill_jobs(session, JobFilter(job_id=203))
    (job,) = queries.whole_fill_jobs(rows, now_us=NOW_US)
    assert (job.starts, job.ended_at_us) == (2, None)
    assert sorted(job.host_job_ids) == [101, 103]
    assert job.nodes == ("n1", "n2")
    assert job.gpu_time_us == pytest.approx(used_by(session, 203))
    assert job.run_us == NOW_US - job.admitted_at_us


def test_the_share_of_a_fill_that_runs_is_of_the_windows_that_have_closed(session: Session) -> None:
    later_us = NOW_US + 8_000_000
    again, first = queries.fill_jobs(session, JobFilter(job_id=203))
    assert again.ended_at_us is None and first.ended_at_us is not None
    assert again.windows_end_us == NOW_US  # the sample's last window ends then
    [job] = queries.whole_fill_jobs([again, first], now_us=later_us)
    assert job.run_us - job.covered_us == 8_000_000
    assert job.gpu_share == pytest.approx(job.gpu_time_us / job.covered_us)
    # Of one that came after the last window nothing is known yet; of one that ended all is.
    new = replace(again, admitted_at_us=NOW_US + 1, gpu_time_us=0.0)
    over = replace(again, ended_at_us=later_us)
    shares = [queries.whole_fill_jobs([each], now_us=later_us)[0].gpu_share for each in (new, over)]
    assert shares == [None, pytest.approx(over.gpu_time_us / (later_us - over.admitted_at_us))]


def test_a_start_on_two_nodes_is_one_start(session: Session) -> None:
    first, again = queries.fill_jobs(session, JobFilter(job_id=203))
    parts = [first, replace(first, node="n7"), again, replace(again, node="n7")]
    (job,) = queries.whole_fill_jobs(parts, now_us=NOW_US)
    assert job.starts == 2
    assert job.run_us == 2 * sum(
        (part.ended_at_us or NOW_US) - part.admitted_at_us for part in (first, again)
    )


def test_fills_beside_a_host_job_count_only_there(session: Session) -> None:
    beside = {job.job_id: job for job in queries.fill_jobs_beside(session, 101, now_us=NOW_US)}
    assert set(beside) == {201, 202, 203}
    assert beside[203].starts == 1
    assert 0 < beside[203].gpu_time_us < used_by(session, 203)


def test_timeline_of_a_fill_job_is_its_own_use(session: Session) -> None:
    found = queries.job_timeline(session, **EVER, resolution_us=MINUTE_US, fill_job_id=202)
    assert set(found) == {uuid_of(1)}
    filled = sum(bucket.shares.gpu_time_us for bucket in found[uuid_of(1)])
    assert filled == pytest.approx(used_by(session, 202))
    assert not queries.job_timeline(session, **EVER, resolution_us=MINUTE_US, fill_job_id=999)


def test_timeline_of_a_host_job_has_all_its_fills(session: Session) -> None:
    found = queries.job_timeline(session, **EVER, resolution_us=MINUTE_US, host_job_id=103)
    assert set(found) == {uuid_of(3)}
    used = session.scalar(
        select(func.sum(BubbleUse.gpu_time_us)).where(BubbleUse.host_slurm_job_id == 103)
    )
    filled = sum(bucket.shares.gpu_time_us for bucket in found[uuid_of(3)])
    assert filled == pytest.approx(used)


def test_gpus_say_what_is_lent(session: Session) -> None:
    gpus = {gpu.minor: gpu for gpu in queries.gpus_now(session, now_us=NOW_US)}
    assert [fill.memory_bytes for fill in gpus[1].fills] == [6 * GIB, 10 * GIB]
    assert gpus[0].host_lend_bytes == 20 * GIB
    assert gpus[3].recent.bubble_share is None
    assert gpus[2].recent.filled_share == 0.0


@pytest.mark.parametrize(
    ("wanted", "fills"),
    [
        (AuditFilter(user="sfilluser2"), {201, 202}),
        (AuditFilter(gpu=uuid_of(3)), {203}),
        (AuditFilter(node="n2"), {203}),
        (AuditFilter(host_job_id=101, fill_job_id=203), {203}),
        (AuditFilter(cause="communication"), set()),
    ],
)
def test_audit_sums_follow_the_filter(
    session: Session, wanted: AuditFilter, fills: set[int]
) -> None:
    rows = queries.audit(session, wanted, limit=100_000).rows
    sums = queries.audit_sums(session, wanted)
    assert {row.fill_slurm_job_id for row in rows} == fills
    assert sums.rows == len(rows)
    assert sums.gpu_time_us == pytest.approx(sum(row.gpu_time_us for row in rows))


def test_audit_rows_are_the_tables_rows(session: Session) -> None:
    (row,) = queries.audit(session, AuditFilter(fill_job_id=201), limit=1).rows
    stored = session.get_one(BubbleUse, row.id)
    for column in BubbleUse.__table__.columns:
        assert getattr(row, column.key) == getattr(stored, column.key)
    assert (row.host_user, row.fill_user, row.node) == ("sfilluser1", "sfilluser2", "n1")


def test_event_kinds(session: Session) -> None:
    assert queries.event_kinds(session) == ["admitted", "evicted", "refused"]
