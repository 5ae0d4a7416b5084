"""The parts of sfillctld put together, and the threads that run them."""

from __future__ import annotations

import logging
import pwd
import threading
import time
from collections.abc import Callable

from db.engine import Database
from db.wire.messages import Report, ReportAnswer, SwitchRequest
from db.wire.munge import Credential
from slurm_plugin.cluster.interface import SlurmCluster
from slurm_plugin.controller.comments import Comments
from slurm_plugin.controller.identity import Identity
from slurm_plugin.controller.journal import Journal
from slurm_plugin.controller.nodes import LiveNodes
from slurm_plugin.controller.publisher import Publisher
from slurm_plugin.controller.requeue import Requeuer
from slurm_plugin.controller.store import Store
from slurm_plugin.settings import ControllerSettings

log = logging.getLogger(__name__)


class Controller:
    """Everything behind the HTTP interface."""

    def __init__(self, settings: ControllerSettings, cluster: SlurmCluster) -> None:
        """Raises DatabaseError when the database's address is no good."""
        self.settings = settings
        database = Database(settings.database_url, busy_timeout_s=settings.database_timeout_s)
        self.store = Store(database)
        self.journal = Journal(database)
        self.identity = Identity(
            cluster,
            munge_socket=settings.munge_socket or None,
            slurm_user_id=settings.slurm_user_id,
            check_addresses=settings.check_addresses,
            node_addresses=settings.node_addresses,
        )
        self.nodes = LiveNodes(
            silent_s=settings.silent_s,
            max_slots=settings.max_slots,
            on_change=lambda: self.publisher.wake(),
        )
        self.publisher = Publisher(
            cluster,
            self.nodes,
            self.journal,
            partition=settings.fill_partition,
            raise_after_s=settings.raise_after_s,
            silent_s=settings.silent_s,
            is_off=lambda: self.store.off,
        )
        self.requeuer = Requeuer(cluster, self.journal, delay_s=settings.requeue_delay_s)
        self.comments = Comments(cluster, database)
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.faults: dict[str, str] = {}  # latest unforeseen error of each thread

    def start(self) -> None:
        """Start the threads; the database may still be away."""
        self.store.open()
        self.journal.note("start", "sfillctld starts")
        settings = self.settings
        self._spawn("journal", self._keep_journal)
        self._spawn("requeue", self.requeuer.run)
        self._spawn(
            "publish",
            lambda: self.publisher.run(
                read_back_s=settings.read_back_s, least_gap_s=settings.least_gap_s
            ),
        )
        if settings.admin_comment:
            self._spawn("comments", self.comments.run)

    def _spawn(self, name: str, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._guard, args=(name, run), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _guard(self, name: str, run: Callable[[], None]) -> None:
        """Runs a thread's work to its end; what is unforeseen is told, and it begins again."""
        while not self._stopping.is_set():
            try:
                run()
                return
            except Exception as error:
                log.exception("an unforeseen error in the thread %s", name)
                text = f"{name}: an error of sfillctld's: {error!r}"
                if self.faults.get(name) != text:
                    self.journal.note("fault", text)
                self.faults[name] = text
                self._stopping.wait(1.0)

    def _keep_journal(self) -> None:
        while not self._stopping.wait(0.5):
            if self.store.open():
                self.journal.store()

    def stop(self) -> None:
        """End the threads. The supply stands: fills go on, and agents refuse what they must."""
        self.journal.note("stop", "sfillctld stops")
        self._stopping.set()
        self.publisher.stop()
        self.requeuer.stop()
        self.comments.stop()
        for thread in self._threads:
            thread.join(timeout=self.settings.command_timeout_s + 1)
        if self.store.open():
            self.journal.store()
        self.store.close()

    def report(self, report: Report) -> ReportAnswer:
        """Take in a node's report, whose sender was checked."""
        # Supply first: it must not wait for the database.
        self.nodes.update(report, now_s=time.monotonic())
        requeued = self.requeuer.want(report.node, report.twin, report.requeue)
        accepted = self.store.ingest(report)
        if report.batch is not None and report.batch.sequence <= accepted:
            self.comments.note(report.batch.records)
        return ReportAnswer(
            accepted_sequence=accepted,
            off=self.store.off,
            requeued=requeued,
            register_twin=self.nodes.must_register(report.node),
        )

    def switch(self, request: SwitchRequest, who: Credential) -> None:
        """Throw the operator's switch. Raises DatabaseError when it was not stored."""
        user = _user_name(who.uid)
        word = "off" if request.off else "on"
        reason = f": {request.reason}" if request.reason else ""
        text = f"filling is switched {word} by {user} (uid {who.uid} on {who.host}){reason}"
        try:
            self.store.switch(off=request.off, text=text, user=user)
        finally:
            self.publisher.wake()


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
