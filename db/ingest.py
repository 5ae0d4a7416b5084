"""Taking in what agents report, each batch exactly once.

A batch is one transaction together with its number, so it is stored whole or not at all; one
that comes again is known by its number and only acknowledged. Batches of one `boot_id` come in
order: an agent sends the next one only after the one before was acknowledged, so a gap is a loss of
ours, which goes on record.
"""

from __future__ import annotations

import threading
from collections import defaultdict

from sqlalchemy import select
from sqlalchemy.exc import DataError, IntegrityError, StatementError
from sqlalchemy.orm import Session

from db.engine import Database
from db.ledger import ForeignGpuError, NodeLedger, add_event
from db.models import Gpu, Node, ReceivedBatch
from db.wire.messages import Batch, Report

# The row of a node is refreshed no oftener than this while nothing about it changes.
NODE_REFRESH_US = 10_000_000
# A GPU that shows up in another node moves there once its old node has been silent this long.
GPU_MOVES_AFTER_US = 60_000_000


class Ingest:
    """Stores reports. Safe to share between threads; reports of one node go one by one."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._locks_guard = threading.Lock()
        self._accepted: dict[tuple[str, str], int] = {}
        self._written: dict[str, tuple[int, object]] = {}

    def accepted(self, node: str, boot_id: str) -> int:
        """Highest batch known to be stored, without asking the database; 0 when none is known."""
        return self._accepted.get((node, boot_id), 0)

    def store(self, report: Report, *, now_us: int) -> int:
        """Store a report; return the highest batch stored of its batch's `boot_id`.

        Raises what SQLAlchemy raises when the database is away; then nothing of the report counts
        as stored.
        """
        with self._lock(report.node):
            boot_id = report.batch.boot_id if report.batch else report.boot_id
            key = (report.node, boot_id)
            if report.batch is None and key in self._accepted and not self._due(report, now_us):
                return self._accepted[key]
            try:
                accepted = self._transaction(report, boot_id, now_us, one_by_one=False)
            except (ForeignGpuError, StatementError, OverflowError) as error:
                if not _unstorable(error):
                    raise
                accepted = self._transaction(report, boot_id, now_us, one_by_one=True)
            self._accepted[key] = accepted
            self._written[report.node] = (now_us, _identity(report))
            return accepted

    def _lock(self, node: str) -> threading.Lock:
        with self._locks_guard:
            return self._locks[node]

    def _due(self, report: Report, now_us: int) -> bool:
        written_at_us, identity = self._written.get(report.node, (0, None))
        return identity != _identity(report) or now_us - written_at_us >= NODE_REFRESH_US

    def _transaction(self, report: Report, boot_id: str, now_us: int, *, one_by_one: bool) -> int:
        with self._database.writing() as session:
            node = _write_node(session, report, now_us)
            stored = session.get(ReceivedBatch, (node.id, boot_id))
            highest = stored.sequence if stored else 0
            batch = report.batch
            if batch is None or batch.sequence <= highest:
                return highest
            if batch.sequence != highest + 1:
                _note_missing(session, node, batch, highest + 1, now_us)
            if stored is None:
                stored = ReceivedBatch(node_id=node.id, boot_id=boot_id)
                session.add(stored)
            stored.sequence = batch.sequence
            if one_by_one:
                _write_one_by_one(session, node, batch, now_us)
            else:
                NodeLedger(session, node.id).write(batch.records)
            return batch.sequence


def _unstorable(error: Exception) -> bool:
    """Whether a record itself is to blame: the database is well and would refuse it again."""
    if isinstance(error, StatementError) and isinstance(error.orig, OverflowError):
        return True
    return isinstance(error, ForeignGpuError | IntegrityError | DataError | OverflowError)


def _identity(report: Report) -> object:
    """What of a report stands in the tables of nodes and GPUs."""
    gpus = tuple((gpu.uuid, gpu.minor, gpu.name, gpu.memory_bytes) for gpu in report.gpus)
    return (report.twin, report.boot_id, report.version, report.off, gpus)


def _write_node(session: Session, report: Report, now_us: int) -> Node:
    node = session.scalars(select(Node).where(Node.name == report.node)).one_or_none()
    if node is None:
        node = Node(name=report.node)
        session.add(node)
    node.twin = report.twin
    node.agent_version = report.version
    node.boot_id = report.boot_id
    node.off = int(report.off)
    node.last_report_at_us = max(now_us, node.last_report_at_us or 0)
    session.flush()
    for listed in report.gpus:
        gpu = session.scalars(select(Gpu).where(Gpu.uuid == listed.uuid)).one_or_none()
        if gpu is None:
            gpu = Gpu(uuid=listed.uuid, node_id=node.id)
            session.add(gpu)
        elif gpu.node_id != node.id and not _may_move(session, gpu, node, now_us):
            continue
        gpu.node_id = node.id
        gpu.minor = listed.minor
        gpu.name = listed.name
        gpu.memory_bytes = listed.memory_bytes
        gpu.simulated = int(listed.simulated)
    session.flush()
    return node


def _may_move(session: Session, gpu: Gpu, to: Node, now_us: int) -> bool:
    owner = session.get_one(Node, gpu.node_id)
    if now_us - owner.last_report_at_us < GPU_MOVES_AFTER_US:
        return False
    text = f"{gpu.uuid} moved from {owner.name} to {to.name}"
    add_event(session, at_us=now_us, what="gpu_moved", text=text, node_id=to.id, gpu_id=gpu.id)
    return True


def _note_missing(session: Session, node: Node, batch: Batch, first: int, now_us: int) -> None:
    """An agent sends a batch only once all before it were acknowledged: where these are not there,
    this database lost what it once had (it was removed, or an older copy took its place)."""
    text = (
        f"batches {first} to {batch.sequence - 1} of boot {batch.boot_id} were acknowledged once"
        " but are not in this database"
    )
    add_event(session, at_us=now_us, what="lost", text=text, node_id=node.id)


def _write_one_by_one(session: Session, node: Node, batch: Batch, now_us: int) -> None:
    """Store what can be stored: one bad record must not hold up all that follow it."""
    for record in batch.records:
        try:
            with session.begin_nested():
                NodeLedger(session, node.id).write([record])
        except (ForeignGpuError, StatementError, OverflowError) as error:
            if not _unstorable(error):
                raise
            reason = str(error).splitlines()[0]
            text = f"a {record.kind} record was not stored: {reason}"
            add_event(session, at_us=now_us, what="unstorable", text=text, node_id=node.id)
