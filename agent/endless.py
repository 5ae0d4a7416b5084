"""Finds fill kernels that do not end: the gate cannot stop what it has released.

A fill's board says how many operations it has released and what of them is still on the GPU. When
neither moves, the work stands. It is given the setting `endless_s` of GPU time: all the time in
which the training was idle, and half of the time in which it was not, since two contexts that both
have work share the GPU by halves.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.attachments import Fill, Training, section_of
from agent.eviction import Eviction
from agent.node import Node
from agent.processes import is_stopped


@dataclass
class _Standing:
    """Work that has not moved since it was first seen so."""

    released: int
    in_flight_ns: int
    looked_ns: int
    had_ns: float = 0.0  # GPU time it must have had


class EndlessKernels:
    """Looks at every fill's board a few times a second. Main thread only."""

    def __init__(self, node: Node, eviction: Eviction) -> None:
        self._node = node
        self._eviction = eviction
        self._standing: dict[int, _Standing] = {}  # by board id

    def stands(self, board_id: int) -> bool:
        """Whether this fill's work was standing when last looked at."""
        standing = self._standing.get(board_id)
        return standing is not None and standing.had_ns > 0

    def look(self, now_ns: int) -> None:
        """Reads the boards; evicts fills whose time is up."""
        fills = self._node.fills
        self._standing = {key: each for key, each in self._standing.items() if key in fills}
        for fill in list(fills.values()):
            self._look_at(fill, now_ns)

    def _look_at(self, fill: Fill, now_ns: int) -> None:
        gpu = section_of(fill)
        if gpu is None or not gpu.in_flight_ns:
            self._standing.pop(fill.board_id, None)
            return
        released, in_flight_ns = int(gpu.released), int(gpu.in_flight_ns)
        standing = self._standing.get(fill.board_id)
        if standing is None or (standing.released, standing.in_flight_ns) != (
            released,
            in_flight_ns,
        ):
            self._standing[fill.board_id] = _Standing(released, in_flight_ns, now_ns)
            return
        passed_ns, standing.looked_ns = now_ns - standing.looked_ns, now_ns
        if is_stopped(fill.process.process_id):
            return  # its work may have ended long ago: nobody looks
        busy = any(is_busy(each, fill.gpu) for each in self._node.trainings_on(fill.gpu))
        standing.had_ns += passed_ns / 2 if busy else passed_ns
        if standing.had_ns >= self._node.settings.endless_s * 1e9:
            self._evict(fill)

    def _evict(self, fill: Fill) -> None:
        job = self._node.jobs.fills.get(fill.job.job_id)
        if job is not None and not job.evicted:
            seconds = self._node.settings.endless_s
            reason = f"a kernel had {seconds:g} s of the GPU and did not end"
            self._eviction.begin([job], reason, grace_s=0)


def is_busy(training: Training, uuid: str) -> bool:
    """Whether a training process has work on a GPU, by its board."""
    index = training.sections.get(uuid)
    return index is not None and not int(training.memory.view.gpus[index].bubble_seq) & 1
