"""Keeps the supply that stands in Slurm equal to what the nodes can lend.

Each round reads Slurm's record, decides by slurm_plugin.supply and writes the difference; so a
record that something else changed (a reload of slurm.conf, a restart of slurmctld) is put right
by the next round, and nothing needs to be remembered over a restart of ours.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection

from slurm_plugin.cluster.interface import (
    ClusterError,
    ClusterUnreachableError,
    Partition,
    SlurmCluster,
    Twin,
)
from slurm_plugin.controller.journal import Journal
from slurm_plugin.controller.nodes import LiveNodes
from slurm_plugin.supply import (
    UP_MIN_NODES,
    PartitionMemory,
    Step,
    TwinMemory,
    next_step,
    partition_step,
)

log = logging.getLogger(__name__)


class Publisher:
    """Rounds of publishing; one thread runs them."""

    def __init__(
        self,
        cluster: SlurmCluster,
        nodes: LiveNodes,
        journal: Journal,
        *,
        partition: str,
        raise_after_s: float,
        silent_s: float,
        is_off: Callable[[], bool],
    ) -> None:
        """`silent_s` is how long after our start nodes have time for their first report."""
        self._cluster = cluster
        self._nodes = nodes
        self._journal = journal
        self._partition = partition
        self._raise_after_s = raise_after_s
        self._is_off = is_off
        self._first_reports_until_s = time.monotonic() + silent_s
        self._twins: dict[str, TwinMemory] = defaultdict(TwinMemory)
        self._memory = PartitionMemory()
        self._was_up = False
        self._silent: set[str] = set()
        self._trouble = ""
        self._seen: dict[str, Twin] = {}
        self._wake = threading.Event()
        self._stopping = False

    @property
    def trouble(self) -> str:
        """Why the last round failed; empty when it did not."""
        return self._trouble

    @property
    def seen(self) -> dict[str, Twin]:
        """Slurm's record as last read."""
        return self._seen

    def wake(self) -> None:
        """Something changed: the next round comes at once."""
        self._wake.set()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()

    def run(self, *, read_back_s: float, least_gap_s: float) -> None:
        """Rounds until `stop`; one follows at once while there is something to change."""
        while not self._stopping:
            self._wake.clear()
            changed = self.round()
            if not changed:
                self._wake.wait(read_back_s)
            time.sleep(least_gap_s)

    def round(self) -> bool:
        """One round; whether anything was changed. Never raises for Slurm's sake."""
        try:
            partition = self._cluster.partition(self._partition)
            changed = self._publish(partition)
        except ClusterError as error:
            self._tell(error)
            return False
        self._tell(None)
        return changed

    def _publish(self, partition: Partition) -> bool:
        now_s = time.monotonic()
        self._note_silent(now_s)
        off = self._is_off()
        seen = self._cluster.twins(partition.nodes)
        steps: dict[str, Step] = {}
        for name, twin in seen.items():
            if partition.state == "UP" and self._may_still_report(name, now_s):
                continue
            steps[name] = next_step(
                twin,
                self._nodes.wanted(name, off=off, now_s=now_s),
                self._twins[name],
                now_s=now_s,
                raise_after_s=self._raise_after_s,
            )
        self._seen = seen
        self._nodes.set_register({name for name, step in steps.items() if step.register})
        changed = self._apply(steps)
        if not changed:
            # Only what was read back counts as published.
            ready = all(self._twins[name].ready for name in partition.nodes if name in seen)
            changed = self._publish_partition(partition, ready)
        return changed

    def _may_still_report(self, twin: str, now_s: float) -> bool:
        """Over a restart of ours the supply stands until the agents have had time to find us."""
        return now_s < self._first_reports_until_s and self._nodes.node_of(twin) is None

    def _apply(self, steps: dict[str, Step]) -> bool:
        drains: dict[str, list[str]] = defaultdict(list)
        counts: dict[int, list[str]] = defaultdict(list)
        resumes: list[str] = []
        for name, step in steps.items():
            if step.note:
                self._journal.note("invalid", step.note, node=self._nodes.node_of(name))
            if step.drain is not None:
                drains[step.drain].append(name)
            if step.count is not None:
                counts[step.count].append(name)
            if step.resume:
                resumes.append(name)
        refused: list[ClusterError] = []

        def ask(call: Callable[[], None], names: Collection[str], what: str, text: str) -> None:
            """Ask Slurm; what it refuses for some twins must not hold up the others."""
            try:
                call()
            except ClusterUnreachableError:
                raise
            except ClusterError as error:
                refused.append(error)
                return
            for name in names:
                self._journal.note(what, f"{name}: {text}", node=self._nodes.node_of(name))

        for reason, names in drains.items():
            ask(lambda n=names, r=reason: self._cluster.drain(n, r), names, "drained", reason)  # type: ignore[misc]
        for count, names in counts.items():
            text = f"{count} slots"
            ask(lambda n=names, c=count: self._cluster.set_count(n, c), names, "supply", text)  # type: ignore[misc]
        if resumes:
            ask(lambda: self._cluster.resume(resumes), resumes, "resumed", "lends")
        if refused:
            raise refused[0]
        return bool(drains or counts or resumes)

    def _publish_partition(self, partition: Partition, ready: bool) -> bool:
        held_before = self._memory.held
        self._was_up |= partition.state == "UP"
        up = partition_step(
            partition.state, partition.min_nodes, all_ready=ready, memory=self._memory
        )
        if self._memory.held != held_before:
            text = "was taken down by an operator" if self._memory.held else "is up again"
            self._journal.note("partition", f"partition {partition.name} {text}")
        if up:
            self._cluster.set_partition(partition.name, state="UP", min_nodes=UP_MIN_NODES)
            what = "republished" if self._was_up else "published"
            text = f"supply of {len(partition.nodes)} twins; partition {partition.name} is up"
            self._journal.note(what, text)
            self._was_up = True
        return up

    def _note_silent(self, now_s: float) -> None:
        silent = self._nodes.silent(now_s=now_s)
        for node in sorted(silent - self._silent):
            self._journal.note("silent", f"{node} does not report", node=node)
        for node in sorted(self._silent - silent):
            self._journal.note("reports", f"{node} reports again", node=node)
        self._silent = silent

    def _tell(self, error: ClusterError | None) -> None:
        """Log and note a trouble when it comes and when it goes, not each round."""
        text = str(error) if error else ""
        if text == self._trouble:
            return
        if error:
            self._journal.note("slurm_trouble", text)
        else:
            self._journal.note("slurm_well", "Slurm answers and does as asked")
        self._trouble = text
