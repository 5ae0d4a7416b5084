"""Jobs of an agent that lost its state: their rows end, once, and say why."""

from __future__ import annotations

from sqlalchemy import func, select

from db.engine import Database
from db.ingest import Ingest
from db.models import Event, FillJob, HostJob
from db.wire.messages import AnewRecord, Record
from tests.unit.database_servers import database, mariadb_url, postgresql_url
from tests.unit.ledger_records import NOW_US, fill_job, host_job, report, window

__all__ = ["database", "mariadb_url", "postgresql_url"]

SECOND_US = 1_000_000
LATER_US = NOW_US + 600 * SECOND_US
ANEW = AnewRecord(at_us=LATER_US)


def ends(database: Database, table: type[HostJob] | type[FillJob]) -> dict[int, int | None]:
    with database.reading() as session:
        rows = session.execute(select(table.slurm_job_id, table.ended_at_us)).all()
        return {row.slurm_job_id: row.ended_at_us for row in rows}


def test_what_ran_before_ends_at_its_last_sign_when_the_agent_begins_anew(
    database: Database,
) -> None:
    ingest = Ingest(database)
    sign = window(began_at_us=NOW_US, window_us=10 * SECOND_US)
    ingest.store(report(1, [host_job(), fill_job(), sign]), now_us=NOW_US)
    ingest.store(report(2, [ANEW]), now_us=LATER_US)
    last_us = NOW_US + 10 * SECOND_US
    assert ends(database, HostJob) == {10: last_us}
    assert ends(database, FillJob) == {20: last_us}
    with database.reading() as session:
        assert "state was lost" in session.scalars(select(FillJob)).one().end_reason
        told = session.scalars(select(Event).order_by(Event.id)).all()
        assert [(each.what, each.slurm_job_id) for each in told] == [
            ("host_ends", 10),
            ("fill_ends", 20),
        ]


def test_a_job_without_a_sign_ends_when_its_agent_began(database: Database) -> None:
    ingest = Ingest(database)
    ingest.store(report(1, [host_job(), fill_job(host_job_id=None)]), now_us=NOW_US)
    ingest.store(report(2, [ANEW]), now_us=LATER_US)
    assert ends(database, HostJob) == {10: LATER_US}
    assert ends(database, FillJob) == {20: LATER_US}


def test_a_begin_that_is_sent_again_ends_nothing_that_began_since(database: Database) -> None:
    """Also in the same batch: what stands after it is of the new life."""
    ingest = Ingest(database)
    ingest.store(report(1, [host_job()]), now_us=NOW_US)
    anew = report(2, [ANEW, host_job(job_id=11, started_at_us=LATER_US)])
    ingest.store(anew, now_us=LATER_US)
    ingest.store(report(3, [host_job(job_id=12, started_at_us=LATER_US + 1)]), now_us=LATER_US)
    ingest.store(anew, now_us=LATER_US)
    Ingest(database).store(anew, now_us=LATER_US)
    assert ends(database, HostJob) == {10: LATER_US, 11: None, 12: None}
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(Event)) == 1


def test_ended_jobs_and_those_of_other_nodes_are_left_alone(database: Database) -> None:
    ingest = Ingest(database)
    done: list[Record] = [
        host_job(ended_at_us=NOW_US - SECOND_US),
        fill_job(ended_at_us=NOW_US - SECOND_US, end_reason="ended"),
    ]
    ingest.store(report(1, done), now_us=NOW_US)
    ingest.store(report(1, [host_job(job_id=30, gpus=["GPU-b"])], node="n2"), now_us=NOW_US)
    ingest.store(report(2, [ANEW]), now_us=LATER_US)
    assert ends(database, HostJob) == {10: NOW_US - SECOND_US, 30: None}
    with database.reading() as session:
        assert session.scalars(select(FillJob)).one().end_reason == "ended"


def test_a_begin_stands_before_a_job_that_cannot_be_stored(database: Database) -> None:
    """Records are then stored one by one, in order."""
    ingest = Ingest(database)
    ingest.store(report(1, [host_job()]), now_us=NOW_US)
    ingest.store(report(2, [ANEW, host_job(job_id=2**70)]), now_us=LATER_US)
    assert ends(database, HostJob) == {10: LATER_US}
