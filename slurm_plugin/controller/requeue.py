"""Puts evicted fill jobs back into Slurm's queue.

A batch job is requeued; Slurm then holds it back for two minutes, so once it is pending we let it
start some seconds from now (at once could end in "Job credential revoked"). What can't be requeued
is cancelled, with a reason for the user who waits at the terminal.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass

from slurm_plugin.cluster.interface import ClusterError, Job, SlurmCluster
from slurm_plugin.controller.journal import Journal

log = logging.getLogger(__name__)

CANCEL_REASON = "sfill: the GPU is no longer lent, and only batch jobs can be requeued; cancelled"
NO_REQUEUE_REASON = "sfill: the GPU is no longer lent, and the job forbids a requeue; cancelled"
# A job that never comes back as pending (its node hangs) is Slurm's to bring back.
SETTLE_S = 600.0
KEEP_ANSWER_S = 300.0
APART_S = 3.0
"""Between two that were evicted together. slurmd runs no prolog for a job that it remembers, and
forgets requeued ones when a job starts, but not within 2 s of the start before; without a prolog a
fill is sent back once more."""


@dataclass
class _Eviction:
    node: str
    twin: str
    since_s: float
    asked: bool = False  # Slurm has done its part; the agent need not ask again
    settled: bool = False
    settled_s: float = 0.0
    restarts: int = 0
    trouble: str = ""


class Requeuer:
    """Evicted fill jobs until each is back in the queue. One thread steps it."""

    def __init__(self, cluster: SlurmCluster, journal: Journal, *, delay_s: int) -> None:
        self._cluster = cluster
        self._journal = journal
        self._delay_s = delay_s
        self._lock = threading.Lock()
        self._evictions: dict[tuple[str, int], _Eviction] = {}
        self._latest_start_s: dict[str, float] = {}  # by twin
        self._wake = threading.Event()
        self._stopping = False

    def want(self, node: str, twin: str, job_ids: list[int]) -> list[int]:
        """Ask for these jobs on a node's twin; return those of them that are dealt with."""
        now_s = time.monotonic()
        with self._lock:
            for job_id in job_ids:
                if (node, job_id) not in self._evictions:
                    self._evictions[node, job_id] = _Eviction(node, twin, now_s)
                    self._wake.set()
            asked = {
                key[1] for key, each in self._evictions.items() if each.asked and key[0] == node
            }
            # Once the agent has stopped asking, a later eviction of the same job is a new one.
            for key, each in list(self._evictions.items()):
                stale = each.settled and now_s - each.settled_s > KEEP_ANSWER_S
                if key[0] == node and each.settled and (key[1] not in job_ids or stale):
                    del self._evictions[key]
        return [job_id for job_id in job_ids if job_id in asked]

    @property
    def waiting(self) -> int:
        with self._lock:
            return sum(1 for each in self._evictions.values() if not each.settled)

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()

    def run(self, *, pause_s: float = 0.3) -> None:
        while not self._stopping:
            self._wake.clear()
            self.step()
            self._wake.wait(pause_s if self.waiting else None)
            time.sleep(0.02)

    def step(self) -> None:
        """Take each job one step on."""
        with self._lock:
            open_ = [(key, each) for key, each in self._evictions.items() if not each.settled]
        for (_, job_id), eviction in open_:
            try:
                self._one(job_id, eviction)
                eviction.trouble = ""
            except ClusterError as error:
                self._tell(job_id, eviction, str(error))
            except Exception as error:  # one job's trouble must not keep the others waiting
                log.exception("an unforeseen error with job %d", job_id)
                self._tell(job_id, eviction, f"an error of sfillctld's: {error!r}")

    def _tell(self, job_id: int, eviction: _Eviction, trouble: str) -> None:
        if trouble != eviction.trouble:
            eviction.trouble = trouble
            text = f"fill job {job_id} is not requeued yet: {trouble}"
            self._journal.note("requeue_trouble", text, job_id=job_id, node=eviction.node)

    def _one(self, job_id: int, eviction: _Eviction) -> None:
        job = self._cluster.job(job_id)
        if job is None:
            self._settle(eviction)
        elif not eviction.asked:
            self._ask(job, eviction)
        elif job.state == "PENDING":
            self._start(job, eviction)
        elif job.active and job.restarts > eviction.restarts:
            self._settle(eviction)  # it runs again already
        elif not (job.active or job.leaving) or time.monotonic() - eviction.since_s > SETTLE_S:
            self._settle(eviction)

    def _ask(self, job: Job, eviction: _Eviction) -> None:
        eviction.restarts = job.restarts
        if job.state == "PENDING":
            # Slurm requeued it by itself, or a controller before us did.
            self._start(job, eviction)
            return
        if job.active and job.nodes and eviction.twin not in job.nodes:
            self._settle(eviction)  # it runs elsewhere already
            return
        if not job.active and job.state not in ("FAILED", "NODE_FAIL"):
            if not job.leaving:
                self._settle(eviction)  # it has ended by itself
            return
        if job.batch and job.requeue:
            self._cluster.requeue(job)
            what, text = "requeued", f"fill job {job.job_id} goes back into the queue"
        else:
            reason = NO_REQUEUE_REASON if job.batch else CANCEL_REASON
            self._cluster.cancel(job, reason)
            what, text = "cancelled", f"fill job {job.job_id}: {reason}"
            eviction.settled, eviction.settled_s = True, time.monotonic()
        eviction.asked = True
        self._journal.note(what, text, job_id=job.job_id, node=eviction.node)

    def _start(self, job: Job, eviction: _Eviction) -> None:
        """Lets it start again, but not together with others that leave the same twin."""
        now_s = time.monotonic()
        at_s = max(now_s + self._delay_s, self._latest_start_s.get(eviction.twin, 0.0) + APART_S)
        self._cluster.start_after(job, math.ceil(at_s - now_s))
        self._latest_start_s[eviction.twin] = at_s
        self._settle(eviction)

    def _settle(self, eviction: _Eviction) -> None:
        eviction.asked = eviction.settled = True
        eviction.settled_s = time.monotonic()
