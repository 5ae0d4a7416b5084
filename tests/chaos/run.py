"""One chaos run: the training, the fills, the storm, and blocks of the training alone."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass, field

from tests.chaos.blows import Storm
from tests.chaos.witness import Witness
from tests.chaos.workload import Workload, iterations_ms
from tests.cluster.cluster import Cluster
from tests.cluster.workloads import wait_lends

FILLS, FILLS_AT_MOST = 2, 4
"""Running fills that are kept up; those that Slurm lets wait after a requeue come on top."""
SETTLE_S = 1.0
BLOCK_S = 5.0
BLOCKS_APART_S = 40.0
PAUSE_S = (0.2, 2.5)
START_S = 120.0
REFILL_S = 30.0
TAIL_S = 25.0
"""The training outlives the storm by so much: what is under way gets done beside it."""


@dataclass
class Run:
    """What happened; times of iterations are in milliseconds."""

    cluster: Cluster
    workload: Workload
    storm: Storm
    host: int = 0
    alone_ms: list[list[float]] = field(default_factory=list)
    other_ms: list[float] = field(default_factory=list)
    _told: int = 0
    _end_s: float = 0.0

    def go(self, witness: Witness | None) -> None:
        """All of it; raises AssertionError when something never comes that must."""
        self._refill()
        self._wait_filling()
        self._alone_block()
        next_block = time.monotonic() + BLOCKS_APART_S
        while time.monotonic() < self._end_s:
            self.storm.strike()
            self._refill()
            time.sleep(self.storm.random.uniform(*PAUSE_S))
            if witness is not None:
                witness.read()
            if time.monotonic() > next_block:
                self._alone_block()
                next_block = time.monotonic() + BLOCKS_APART_S
        self._alone_block()

    def start_training(self, minutes: float) -> None:
        """Submits it and waits until it lends; the storm ends so many minutes from here."""
        self.host = self.workload.submit_training(self.cluster, round(60 * minutes + TAIL_S))
        self._end_s = time.monotonic() + 60 * minutes
        wait_lends(self.cluster, "f1", START_S, slots=1)
        self._new_iterations()

    def finish(self) -> None:
        """No more fills; the training goes on to its end."""
        self.cluster.run("scancel", *map(str, self.storm.unfinished()))
        self.cluster.wait(lambda: not self.storm.unfinished(), 60.0, "the fills to end")
        self.other_ms += self._new_iterations()
        self.cluster.wait_end(self.host, TAIL_S + 240.0)

    def _refill(self) -> None:
        waiting, running = self.storm.unfinished(), self.storm.running()
        for _ in range(min(FILLS - len(running), FILLS_AT_MOST - len(waiting))):
            self.storm.fills.append(self.workload.submit_fill(self.cluster))

    def _wait_filling(self) -> None:
        self.cluster.wait(
            lambda: any(self.cluster.state(job) == "RUNNING" for job in self.storm.fills),
            START_S,
            "a fill to run",
        )
        time.sleep(SETTLE_S)

    def _new_iterations(self) -> list[float]:
        found = iterations_ms(self.cluster.output(self.host))
        new, self._told = found[self._told :], len(found)
        return new

    def _alone_block(self) -> None:
        """Some seconds in which the switch is off."""
        off_ns = self.storm.off()
        time.sleep(SETTLE_S)
        self.other_ms += self._new_iterations()
        time.sleep(BLOCK_S)
        self.alone_ms.append(self._new_iterations())
        self.storm.on(off_ns)

    def slowdown(self) -> dict[str, float]:
        """Of the median iteration; `spread` is that among the blocks alone."""
        medians = [statistics.median(block) for block in self.alone_ms if len(block) > 2]
        alone = statistics.median([ms for block in self.alone_ms for ms in block])
        return {
            "iterations": len(self.other_ms),
            "alone_ms": alone,
            "median_ms": statistics.median(self.other_ms),
            "slowdown": statistics.median(self.other_ms) / alone - 1,
            "spread": (max(medians) - min(medians)) / alone,
        }


def new_run(cluster: Cluster, workload: Workload, seed: int) -> Run:
    """A run whose blows follow from the seed."""
    return Run(cluster, workload, Storm(cluster, workload.fill_program, random.Random(seed)))
