"""What the command line and the dashboard show is what the ledger holds."""

from __future__ import annotations

import pytest

from db import queries
from db.engine import Database
from db.ingest import Ingest
from db.ledger import add_event
from db.models import Setting
from db.wire.messages import Record
from tests.unit.database_servers import database, mariadb_url, postgresql_url
from tests.unit.ledger_records import (
    GIB,
    NOW_US,
    bubble_use,
    fill_job,
    gpu,
    host_job,
    report,
    window,
)

__all__ = ["database", "mariadb_url", "postgresql_url"]

TEN_S = 10_000_000
START_US = NOW_US - 3 * TEN_S


def fill(database: Database, *records: Record, node: str = "n1", sequence: int = 1) -> None:
    gpus = [gpu("GPU-a", minor=0), gpu("GPU-c", minor=1)] if node == "n1" else None
    ingest = Ingest(database)
    assert ingest.store(report(sequence, records, node=node, gpus=gpus), now_us=NOW_US) == sequence


def filled_window(began_at_us: int, fill_job_id: int, **values: object) -> Record:
    given = {
        "bubbles": 0,
        "bubble_us": 0.0,
        "used_bubbles": 900,
        "gpu_time_us": 3_000_000.0,
        "intrusion_us": 50_000.0,
        "kernels": 9000,
    }
    return window(began_at_us=began_at_us, fill_job_id=fill_job_id, **(given | values))


def test_overview_says_who_holds_and_who_fills_each_gpu(database: Database) -> None:
    ended = fill_job(job_id=19, ended_at_us=NOW_US)
    fill(database, host_job(mode_reason="site default"), fill_job(), ended)
    fill(database, window(began_at_us=START_US), filled_window(START_US, 20), sequence=2)
    fill(database, host_job(job_id=11, gpus=["GPU-b"], mode="observe"), node="n2")
    with database.reading() as session:
        lent, free, observed = queries.gpus_now(session, now_us=NOW_US)
    assert (lent.node, lent.twin, lent.uuid, lent.minor) == ("n1", "f1", "GPU-a", 0)
    assert (lent.host_job_id, lent.host_user, lent.host_mode) == (10, "sfilluser1", "on")
    assert tuple(fill.job_id for fill in lent.fills) == (20,)
    assert lent.recent.bubble_share == pytest.approx(0.4)
    assert lent.recent.filled_share == pytest.approx(0.75)
    assert lent.recent.intrusion_fraction == pytest.approx(0.005)
    assert lent.memory_bytes == 24 * GIB and lent.last_report_at_us == NOW_US
    assert (free.uuid, free.host_job_id, free.recent.bubble_share) == ("GPU-c", None, None)
    assert (observed.node, observed.host_job_id, observed.host_mode) == ("n2", 11, "observe")


def test_timeline_splits_time_into_busy_filled_and_unfilled(database: Database) -> None:
    fill(
        database,
        window(began_at_us=START_US),
        filled_window(START_US, 20, gpu_time_us=1_000_000.0),
        filled_window(START_US, 21, gpu_time_us=500_000.0),
        window(began_at_us=START_US + TEN_S),
        window(began_at_us=START_US + 2 * TEN_S, gpu="GPU-c", window_us=4_000_000),
    )
    with database.reading() as session:
        by_gpu = queries.timeline(session, since_us=START_US, until_us=NOW_US)
        coarse = queries.timeline(
            session, since_us=START_US, until_us=NOW_US, resolution_us=2 * TEN_S, gpus=["GPU-a"]
        )
        with pytest.raises(ValueError, match="until_us"):
            queries.timeline(session, since_us=NOW_US, until_us=NOW_US)
    first, second = by_gpu["GPU-a"]
    assert (first.began_at_us, first.length_us) == (START_US, TEN_S)
    assert first.shares.busy_us == pytest.approx(6_000_000)
    assert first.shares.filled_us == pytest.approx(1_500_000)
    assert first.shares.unfilled_us == pytest.approx(2_500_000)
    assert second.began_at_us == START_US + TEN_S and second.shares.filled_us == 0
    (partly,) = by_gpu["GPU-c"]
    assert partly.idle_us == pytest.approx(6_000_000)
    assert list(coarse) == ["GPU-a"]
    assert coarse["GPU-a"][0].shares.wall_us == 2 * TEN_S


def test_a_fill_that_outlasts_its_bubbles_never_makes_more_than_the_bubbles(
    database: Database,
) -> None:
    over = filled_window(START_US, 20, gpu_time_us=6_000_000.0)
    fill(database, window(began_at_us=START_US), over)
    with database.reading() as session:
        shares = queries.timeline(session, since_us=START_US, until_us=NOW_US)["GPU-a"][0].shares
    assert shares.filled_us == shares.bubble_us == 4_000_000
    assert shares.unfilled_us == 0


def test_host_jobs_come_with_their_figures(database: Database) -> None:
    running = host_job(
        gpus=["GPU-a", "GPU-c"], bubble_us=80_000_000, filled_us=20_000_000, intrusion_us=400_000
    )
    earlier_us = NOW_US - 110_000_000
    over = host_job(
        job_id=9,
        user="sfilluser2",
        started_at_us=earlier_us,
        ended_at_us=earlier_us + TEN_S,
    )
    fill(database, running, over)
    with database.reading() as session:
        all_ = queries.host_jobs(session, queries.JobFilter(), now_us=NOW_US)
        mine = queries.host_jobs(session, queries.JobFilter(user="sfilluser2"), now_us=NOW_US)
        open_ = queries.host_jobs(session, queries.JobFilter(running=True), now_us=NOW_US)
        late = queries.JobFilter(since_us=NOW_US - 10, until_us=NOW_US)
        lately = queries.host_jobs(session, late, now_us=NOW_US)
        by_id = queries.host_jobs(session, queries.JobFilter(job_id=10), now_us=NOW_US, limit=1)
    assert [job.job_id for job in all_] == [10, 9]
    assert [job.job_id for job in mine] == [9] and mine[0].wall_us == 10_000_000
    assert [job.job_id for job in open_] == [job.job_id for job in lately] == [10]
    (job,) = by_id
    assert job.gpus == ("GPU-a", "GPU-c") and job.wall_us == 100_000_000
    assert job.bubble_share == pytest.approx(0.4)
    assert job.filled_share == pytest.approx(0.25)
    assert job.intrusion_fraction == pytest.approx(0.002)
    assert job.calibrated_slowdown is None


def test_each_start_of_a_fill_job_has_its_own_figures(database: Database) -> None:
    fill(
        database,
        fill_job(
            admitted_at_us=START_US, ended_at_us=START_US + TEN_S, end_reason="host job ended"
        ),
        fill_job(admitted_at_us=START_US + 2 * TEN_S, restart_count=1),
        filled_window(START_US, 20),
        filled_window(START_US + 2 * TEN_S, 20, gpu_time_us=7.0, kernels=1),
        filled_window(START_US, 21, gpu_time_us=1e6),
    )
    with database.reading() as session:
        second, first = queries.fill_jobs(session, queries.JobFilter(job_id=20))
        assert queries.fill_jobs(session, queries.JobFilter(user="nobody")) == []
        assert queries.fill_jobs(session, queries.JobFilter(), limit=1) == [second]
    assert (first.restart_count, first.end_reason) == (0, "host job ended")
    assert (first.gpu_time_us, first.kernels, first.bubbles_used) == (3_000_000.0, 9000, 900)
    assert (second.restart_count, second.gpu_time_us, second.kernels) == (1, 7.0, 1)


@pytest.mark.parametrize("later_us", [1, 3_000_000, TEN_S + 2_000_000])
def test_another_fill_that_leaves_does_not_change_of_how_much_time_a_share_is(
    database: Database, later_us: int
) -> None:
    fill(
        database,
        fill_job(admitted_at_us=START_US),
        window(began_at_us=START_US, window_us=TEN_S),
        filled_window(START_US, 20, window_us=TEN_S, gpu_time_us=7_000_000.0),
        # Its last row is short, and begins a little after the window that it is of, or in the next.
        filled_window(START_US + later_us, 21, window_us=5_000_000),
    )
    with database.reading() as session:
        rows = queries.fill_jobs(session, queries.JobFilter(job_id=20))
    [job] = queries.whole_fill_jobs(rows, now_us=START_US + 2 * TEN_S)
    assert job.covered_us == TEN_S
    assert job.gpu_share == pytest.approx(0.7)


def test_audit_pages_by_key_and_misses_and_repeats_nothing(database: Database) -> None:
    same_time = NOW_US - 5
    uses = [bubble_use(n, first_release_at_us=same_time) for n in range(1, 6)]
    fill(database, host_job(), fill_job(), *uses, *[bubble_use(n) for n in range(6, 12)])
    seen: list[int] = []
    key = None
    with database.reading() as session:
        while True:
            page = queries.audit(session, queries.AuditFilter(), limit=3, after=key)
            seen += [row.id for row in page.rows]
            assert len(page.rows) <= 3
            key = page.next_key
            if key is None:
                break
        whole = queries.audit(session, queries.AuditFilter(), limit=100)
    assert len(seen) == len(set(seen)) == 11
    assert seen == [row.id for row in whole.rows] and whole.next_key is None
    times = [row.first_release_at_us for row in whole.rows]
    assert times == sorted(times, reverse=True)


def test_audit_filters_by_job_gpu_user_and_time(database: Database) -> None:
    fill(
        database,
        host_job(),
        host_job(job_id=11, user="sfilluser2", gpus=["GPU-c"]),
        fill_job(),
        fill_job(job_id=21, user="sfilluser1", gpu="GPU-c"),
        bubble_use(1),
        bubble_use(2, gpu="GPU-c", host_job_id=11, fill_job_id=21, first_release_at_us=NOW_US),
        bubble_use(3, fill_job_id=22, host_job_id=12),
    )

    def sequences(**values: object) -> list[int]:
        with database.reading() as session:
            which = queries.AuditFilter(**values)  # type: ignore[arg-type]
            return sorted(row.bubble_seq for row in queries.audit(session, which).rows)

    assert sequences(job_id=10) == sequences(host_job_id=10) == [1]
    assert sequences(job_id=21) == sequences(fill_job_id=21) == [2]
    assert sequences(fill_job_id=10) == []
    assert sequences(gpu="GPU-c") == [2]
    assert sequences(user="sfilluser1") == [1, 2]
    assert sequences(user="sfilluser1", gpu="GPU-a") == [1]
    assert sequences(since_us=NOW_US) == [2]
    assert sequences(until_us=NOW_US) == [1, 3]
    with database.reading() as session:
        (row,) = queries.audit(session, queries.AuditFilter(fill_job_id=20)).rows
    assert (row.node, row.gpu_uuid, row.host_user, row.fill_user) == (
        "n1",
        "GPU-a",
        "sfilluser1",
        "sfilluser2",
    )


def test_events_are_found_by_word_job_and_time(database: Database) -> None:
    with database.writing() as session:
        for number, what in enumerate(["off", "on", "evicted", "off"]):
            add_event(session, at_us=NOW_US + number, what=what, text=f"{number}", job_id=number)
    with database.reading() as session:
        offs = queries.events(session, queries.EventFilter(what="off")).rows
        assert [event.text for event in offs] == ["3", "0"]
        assert queries.events(session, queries.EventFilter(job_id=2)).rows[0].what == "evicted"
        first = queries.events(session, queries.EventFilter(), limit=3)
        rest = queries.events(session, queries.EventFilter(), limit=3, after=first.next_key)
        assert [event.text for event in first.rows + rest.rows] == ["3", "2", "1", "0"]
        with pytest.raises(ValueError, match="limit"):
            queries.events(session, queries.EventFilter(), limit=0)


def test_totals_add_up_over_gpus_and_time(database: Database) -> None:
    fill(
        database,
        window(began_at_us=START_US),
        window(began_at_us=START_US, gpu="GPU-c", host_job_id=11),
        filled_window(START_US, 20),
        filled_window(START_US, 21, gpu="GPU-c", host_job_id=11),
        filled_window(START_US + TEN_S, 20),
    )
    with database.reading() as session:
        all_ = queries.totals(session)
        first = queries.totals(session, since_us=START_US, until_us=START_US + TEN_S)
        none = queries.totals(session, since_us=NOW_US)
    assert all_.gpu_hours_gained == pytest.approx(9 / 3600)
    assert (all_.host_jobs, all_.fill_jobs, all_.bubbles, all_.bubbles_used) == (2, 2, 2000, 2700)
    assert first.gpu_hours_gained == pytest.approx(6 / 3600)
    assert first.filled_share == pytest.approx(0.75)
    assert first.intrusion_fraction == pytest.approx(0.1 / 20)
    assert none.gpu_hours_gained == 0 and none.filled_share is None


def test_an_operators_off_is_seen(database: Database) -> None:
    with database.writing() as session:
        assert not queries.filling_is_off(session)
        session.add(Setting(name="off", value="1"))
    with database.reading() as session:
        assert queries.filling_is_off(session)
