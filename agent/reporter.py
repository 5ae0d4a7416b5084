"""The two threads that carry the ledger: one to the disk, one to the controller.

The spooler waits for the disk, the reporter for the network; neither ever holds up the main loop.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException

from pydantic import ValidationError

from agent.ledger import Ledger
from agent.settings import AgentSettings
from agent.spool import Spool, SpoolFullError
from db.wire import munge
from db.wire.messages import Report, ReportAnswer

log = logging.getLogger(__name__)

_MOST_RECORDS = 4000
_SLOWEST_RETRY_S = 5.0
# The controller is inside the cluster: no proxy of the environment stands between.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Spooler(threading.Thread):
    """Moves records from the ledger to the spool; says when the spool is full and when not."""

    def __init__(
        self,
        ledger: Ledger,
        spool: Spool,
        interval_s: float,
        on_full: Callable[[str], None],
        on_stored: Callable[[dict[int, int]], None] = lambda _: None,
    ) -> None:
        super().__init__(name="spooler", daemon=True)
        self._ledger = ledger
        self._spool = spool
        self._interval_s = interval_s
        self._on_full = on_full
        self._full = ""
        self._on_stored = on_stored
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.wait(self._interval_s):
            try:
                self.store()
            except Exception:
                log.exception("an unforeseen error in the spooler")

    def store(self) -> None:
        """Stores all that waits; tells how far boards are on record with it."""
        while True:
            taken = self._ledger.take(_MOST_RECORDS)
            if taken.records:
                try:
                    self._spool.append(taken.records, taken.positions)
                except SpoolFullError as error:
                    self._ledger.put_back(taken)
                    self._tell(str(error))
                    return
                except Exception:
                    self._ledger.put_back(taken)
                    raise
                self._tell("")
                self._ledger.tell_dropped()
            if taken.positions:
                self._on_stored(taken.positions)
            if not taken.records:
                return

    def _tell(self, full: str) -> None:
        if full != self._full:
            self._full = full
            log.log(
                logging.ERROR if full else logging.INFO, "%s", full or "the spool has room again"
            )
            self._on_full(full)

    def stop(self) -> None:
        """Ends the thread and stores what is left."""
        self._ending.set()
        self.join(timeout=5)
        self.store()


class Reporter(threading.Thread):
    """Sends reports, each with the oldest batch there is; hands the answers to the main loop."""

    def __init__(
        self,
        settings: AgentSettings,
        spool: Spool,
        make_report: Callable[[], Report | None],
        on_answer: Callable[[ReportAnswer], None],
    ) -> None:
        super().__init__(name="reporter", daemon=True)
        self._settings = settings
        self._spool = spool
        self._make_report = make_report
        self._on_answer = on_answer
        self._wake = threading.Event()
        self._stopping = False
        self._failures = 0

    def wake(self) -> None:
        """Something changed: report at once."""
        self._wake.set()

    def run(self) -> None:
        while not self._stopping:
            if self._report_safely():
                continue
            self._wake.wait(self._pause_s())
            self._wake.clear()
        self._report_safely()

    def _report_safely(self) -> bool:
        try:
            return self.report()
        except Exception:
            log.exception("an unforeseen error in the reporter")
            self._failures += 1
            return False

    def _pause_s(self) -> float:
        slower = self._settings.report_interval_s * float(1 << min(self._failures, 8))
        return max(self._settings.report_interval_s, min(slower, _SLOWEST_RETRY_S))

    def report(self) -> bool:
        """Sends one report; True when a batch was acknowledged and the next one waits."""
        report = self._make_report()
        if report is None:
            return False
        batch = self._spool.oldest()
        body = report.model_dump_json(exclude={"batch"})
        if batch is not None:
            # The batch is JSON already, thousands of records long: it is put in as it is.
            body = f'{body[:-1]},"batch":{batch.text}}}'
        try:
            answer = self._post(body.encode())
        except (OSError, ValueError, HTTPException, munge.MungeError) as error:
            self._tell(str(error))
            return False
        self._tell("")
        before = self._spool.acknowledged
        self._spool.acknowledge(answer.accepted_sequence)
        self._on_answer(answer)
        return self._spool.acknowledged > before and self._spool.waiting > 0

    def _post(self, body: bytes) -> ReportAnswer:
        digest = hashlib.sha256(body).hexdigest().encode()
        credential = munge.encode(digest, self._settings.munge_socket or None)
        request = urllib.request.Request(
            f"{self._settings.controller_url.rstrip('/')}/v1/report",
            data=body,
            headers={"Content-Type": "application/json", "Authorization": f"Munge {credential}"},
        )
        try:
            with _OPENER.open(request, timeout=self._settings.report_timeout_s) as reply:
                return ReportAnswer.model_validate_json(reply.read())
        except urllib.error.HTTPError as error:
            detail = error.read(500).decode(errors="replace")
            raise OSError(f"{error.code} from the controller: {detail}") from error
        except ValidationError as error:
            raise ValueError(f"answer not understood: {error}") from error

    def _tell(self, problem: str) -> None:
        """Logs the first failure and the recovery, not each of many."""
        if problem and self._failures == 0:
            log.warning("no report to %s: %s", self._settings.controller_url, problem)
        elif not problem and self._failures:
            log.info("the controller answers again after %d failures", self._failures)
        self._failures = self._failures + 1 if problem else 0

    def stop(self) -> None:
        """Ends the thread after one last report."""
        self._stopping = True
        self.wake()
        self.join(timeout=self._settings.report_timeout_s + 1)
