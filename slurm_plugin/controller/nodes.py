"""The nodes as their agents last described them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from db.wire.messages import Report
from slurm_plugin.supply import Wanted, wanted_of


@dataclass(frozen=True)
class LiveNode:
    """A node's last report (without its batch) and when it came, on the monotonic clock."""

    report: Report
    seen_s: float


class LiveNodes:
    """Last reports by node; safe to share between threads."""

    def __init__(self, *, silent_s: float, max_slots: int, on_change: Callable[[], None]) -> None:
        """`on_change` is called when a report changes what a twin should lend."""
        self._silent_s = silent_s
        self._max_slots = max_slots
        self._on_change = on_change
        self._lock = threading.Lock()
        self._nodes: dict[str, LiveNode] = {}
        self._by_twin: dict[str, str] = {}
        self._register: set[str] = set()

    def update(self, report: Report, *, now_s: float) -> None:
        """Take in a report."""
        slim = report.model_copy(update={"batch": None})
        with self._lock:
            before = self._nodes.get(report.node)
            self._nodes[report.node] = LiveNode(slim, now_s)
            self._by_twin[report.twin] = report.node
        if before is None or self._differs(before, slim, now_s):
            self._on_change()

    def _differs(self, before: LiveNode, report: Report, now_s: float) -> bool:
        was_silent = now_s - before.seen_s > self._silent_s
        old = wanted_of(before.report, off=False, silent=was_silent, max_slots=self._max_slots)
        new = wanted_of(report, off=False, silent=False, max_slots=self._max_slots)
        return old != new

    def wanted(self, twin: str, *, off: bool, now_s: float) -> Wanted:
        """What this twin should lend now."""
        with self._lock:
            node = self._nodes.get(self._by_twin.get(twin, ""))
        silent = node is not None and now_s - node.seen_s > self._silent_s
        report = node.report if node else None
        return wanted_of(report, off=off, silent=silent, max_slots=self._max_slots)

    def node_of(self, twin: str) -> str | None:
        """The node that a twin lends for, once that node has reported."""
        with self._lock:
            return self._by_twin.get(twin)

    def all(self) -> dict[str, LiveNode]:
        with self._lock:
            return dict(self._nodes)

    def silent(self, *, now_s: float) -> set[str]:
        """Nodes that have reported once but not lately."""
        with self._lock:
            return {
                name for name, node in self._nodes.items() if now_s - node.seen_s > self._silent_s
            }

    def set_register(self, twins: set[str]) -> None:
        """Twins whose slurmd must register with Slurm anew; their agents are told."""
        with self._lock:
            self._register = {self._by_twin[twin] for twin in twins if twin in self._by_twin}

    def must_register(self, node: str) -> bool:
        with self._lock:
            return node in self._register
