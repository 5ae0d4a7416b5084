"""Every batch counts exactly once, whole, and only for the node that sent it."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError

from db.engine import Database
from db.ingest import GPU_MOVES_AFTER_US, NODE_REFRESH_US, Ingest
from db.models import BubbleUse, Event, FillJob, Gpu, HostJob, Node, Window
from db.schema import upgrade
from db.wire.messages import Record
from tests.unit.database_servers import database, mariadb_url, postgresql_url
from tests.unit.ledger_records import (
    NOW_US,
    bubble_use,
    fill_job,
    gpu,
    host_job,
    report,
    window,
)

__all__ = ["database", "mariadb_url", "postgresql_url"]


def count(database: Database, table: type) -> int:
    with database.reading() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def test_a_batch_sent_again_is_acknowledged_and_counts_once(database: Database) -> None:
    ingest = Ingest(database)
    sent = report(1, [host_job(), fill_job(), bubble_use(1), bubble_use(2), window()])
    assert ingest.store(sent, now_us=NOW_US) == 1
    assert ingest.store(sent, now_us=NOW_US) == 1
    # A controller that was restarted in between remembers nothing but the database.
    assert Ingest(database).store(sent, now_us=NOW_US) == 1
    assert count(database, BubbleUse) == 2
    assert count(database, HostJob) == count(database, FillJob) == count(database, Window) == 1


def test_a_gap_is_a_loss_of_the_database_which_goes_on_and_says_so(database: Database) -> None:
    """An older copy took the database's place: refusing what follows would hold it up for ever."""
    ingest = Ingest(database)
    assert ingest.store(report(1, [bubble_use(1)]), now_us=NOW_US) == 1
    assert ingest.store(report(4, [bubble_use(4)]), now_us=NOW_US) == 4
    assert ingest.store(report(4, [bubble_use(4)]), now_us=NOW_US) == 4
    assert ingest.store(report(5, [bubble_use(5)]), now_us=NOW_US) == 5
    assert count(database, BubbleUse) == 3
    with database.reading() as session:
        event = session.scalars(select(Event)).one()
    assert event.what == "lost" and "2 to 3" in event.text


def test_each_life_of_an_agent_counts_its_own_batches(database: Database) -> None:
    ingest = Ingest(database)
    assert ingest.store(report(1, [bubble_use(1)]), now_us=NOW_US) == 1
    assert ingest.store(report(1, [bubble_use(2)], boot_id="second"), now_us=NOW_US) == 1
    # What the life before left in the spool still comes under its own name.
    late = report(2, [bubble_use(3)], batch_boot_id="first", boot_id="second")
    assert ingest.store(late, now_us=NOW_US) == 2
    assert count(database, BubbleUse) == 3


def test_a_database_that_lost_batches_goes_on_and_says_so(database: Database) -> None:
    ingest = Ingest(database)
    assert ingest.store(report(57, [bubble_use(1)]), now_us=NOW_US) == 57
    with database.reading() as session:
        event = session.scalars(select(Event)).one()
    assert event.what == "lost" and "1 to 56" in event.text


def test_a_report_without_batch_says_what_is_stored(database: Database) -> None:
    ingest = Ingest(database)
    assert ingest.store(report(), now_us=NOW_US) == 0
    ingest.store(report(1, [bubble_use(1)]), now_us=NOW_US)
    assert ingest.store(report(), now_us=NOW_US) == 1
    assert Ingest(database).store(report(), now_us=NOW_US) == 1


def test_jobs_and_windows_grow_and_the_last_word_counts(database: Database) -> None:
    ingest = Ingest(database)
    ingest.store(report(1, [host_job(), fill_job(), window(kernels=1)]), now_us=NOW_US)
    grown: list[Record] = [
        host_job(
            ended_at_us=NOW_US,
            intrusion_us=5,
            calibrated_slowdown=0.016,
            share_mode="mps",
            share_reason="asked for",
        ),
        fill_job(ended_at_us=NOW_US, end_reason="done"),
        window(kernels=2),
        window(kernels=3),
    ]
    ingest.store(report(2, grown), now_us=NOW_US)
    with database.reading() as session:
        host = session.scalars(select(HostJob)).one()
        assert (host.ended_at_us, host.intrusion_us) == (NOW_US, 5)
        assert host.calibrated_slowdown == 0.016
        assert (host.share_mode, host.share_reason) == ("mps", "asked for")
        fill = session.scalars(select(FillJob)).one()
        assert (fill.ended_at_us, fill.end_reason) == (NOW_US, "done")
        assert session.scalars(select(Window)).one().kernels == 3


def test_a_node_cannot_report_for_the_gpu_of_another(database: Database) -> None:
    ingest = Ingest(database)
    ingest.store(report(1, [bubble_use(1)]), now_us=NOW_US)
    foreign = report(1, [bubble_use(7), bubble_use(8, gpu="GPU-b")], node="n2")
    assert ingest.store(foreign, now_us=NOW_US) == 1
    with database.reading() as session:
        assert [use.bubble_seq for use in session.scalars(select(BubbleUse))] == [1, 8]
        event = session.scalars(select(Event)).one()
        assert event.what == "unstorable" and "GPU-a belongs to another node" in event.text
        owner = session.get_one(
            Node, session.scalars(select(Gpu.node_id).filter_by(uuid="GPU-a")).one()
        )
        assert owner.name == "n1"


def test_a_gpu_moves_to_another_node_once_its_old_node_is_silent(database: Database) -> None:
    ingest = Ingest(database)
    ingest.store(report(), now_us=NOW_US)
    later_us = NOW_US + GPU_MOVES_AFTER_US
    ingest.store(report(1, [bubble_use(1)], node="n2", gpus=[gpu()]), now_us=later_us)
    assert count(database, BubbleUse) == 1
    with database.reading() as session:
        assert session.scalars(select(Event.what)).one() == "gpu_moved"


def test_one_record_that_cannot_be_stored_holds_up_no_other(database: Database) -> None:
    ingest = Ingest(database)
    records = [bubble_use(1), bubble_use(2, kernels=2**70), bubble_use(3)]
    assert ingest.store(report(1, records), now_us=NOW_US) == 1
    with database.reading() as session:
        stored = session.scalars(select(BubbleUse.bubble_seq).order_by(BubbleUse.id))
        assert list(stored) == [1, 3]
        assert session.scalars(select(Event.what)).one() == "unstorable"


def test_long_texts_are_cut_to_what_the_column_holds(database: Database) -> None:
    ingest = Ingest(database)
    ingest.store(report(1, [host_job(mode_reason="x" * 1000)]), now_us=NOW_US)
    with database.reading() as session:
        assert session.scalars(select(HostJob.mode_reason)).one() == "x" * 255
        assert session.scalars(select(Event)).all() == []


def test_reports_of_many_nodes_at_once_are_all_stored(database: Database) -> None:
    ingest = Ingest(database)
    failures: list[BaseException] = []

    def send(number: int) -> None:
        node, uuid = f"n{number}", f"GPU-{number}"
        try:
            for sequence in range(1, 6):
                records = [bubble_use(sequence, gpu=uuid)]
                sent = report(sequence, records, node=node, gpus=[gpu(uuid)])
                for _ in range(2):
                    assert ingest.store(sent, now_us=NOW_US) == sequence
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert count(database, BubbleUse) == 30


def test_a_node_that_says_nothing_new_costs_no_write(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'one.db'}", busy_timeout_s=0.05)
    upgrade(database)
    ingest = Ingest(database)
    ingest.store(report(), now_us=NOW_US)
    other = sqlite3.connect(tmp_path / "one.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    ingest.store(report(), now_us=NOW_US + 1)
    with pytest.raises(OperationalError, match="locked"):
        ingest.store(report(), now_us=NOW_US + NODE_REFRESH_US)
    other.execute("ROLLBACK")
    other.close()


def test_a_locked_database_acknowledges_nothing_and_loses_nothing(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'one.db'}", busy_timeout_s=0.05)
    upgrade(database)
    ingest = Ingest(database)
    ingest.store(report(1, [bubble_use(1)]), now_us=NOW_US)
    other = sqlite3.connect(tmp_path / "one.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(OperationalError, match="locked"):
        ingest.store(report(2, [bubble_use(2)]), now_us=NOW_US)
    assert ingest.accepted("n1", "first") == 1
    other.execute("ROLLBACK")
    assert ingest.store(report(2, [bubble_use(2)]), now_us=NOW_US) == 2
    assert count(database, BubbleUse) == 2
    other.close()
