"""A Slurm in memory that behaves, where supply is concerned, as 22.05 was seen to behave."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from slurm_plugin.cluster.interface import (
    ClusterError,
    ClusterUnreachableError,
    Job,
    Partition,
    Twin,
)

CEILING = 32


@dataclass
class FakeNode:
    """A twin's record and what slurmctld remembers of its last registration."""

    name: str
    ceiling: int = CEILING
    count: int = CEILING
    registered: int = CEILING
    used: int = 0
    drain: str | None = None
    invalid: bool = False
    responding: bool = True

    def register(self) -> None:
        """Its slurmd registers: slurmctld checks the count."""
        self.responding = True
        reason = None
        if self.count > self.ceiling:
            reason = (
                f"gres/fill count reported lower than configured ({self.ceiling} < {self.count})"
            )
        elif self.registered != self.count:
            if self.used:
                reason = (
                    "gres/fill count changed and jobs are using them"
                    f" ({self.registered} != {self.count})"
                )
            else:
                self.registered = self.count
        self.invalid = reason is not None
        if reason and self.drain is None:
            self.drain = reason

    def twin(self) -> Twin:
        states = {"MIXED" if self.used else "IDLE"}
        states |= {"DRAIN"} if self.drain is not None else set()
        states |= {"INVALID_REG"} if self.invalid else set()
        states |= set() if self.responding else {"NOT_RESPONDING"}
        return Twin(self.name, frozenset(states), self.drain or "", self.count, self.used)


@dataclass
class FakeSlurm:
    """SlurmCluster without a Slurm."""

    nodes: dict[str, FakeNode] = field(default_factory=dict)
    state: str = "DOWN"
    min_nodes: int = 0
    jobs: dict[int, Job] = field(default_factory=dict)
    hosts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    away: bool = False
    refuses: str = ""  # the name of a call
    accounting: bool = True
    calls: list[tuple[object, ...]] = field(default_factory=list)
    comments: dict[int, str] = field(default_factory=dict)

    @classmethod
    def with_twins(cls, *names: str) -> FakeSlurm:
        return cls(nodes={name: FakeNode(name) for name in names})

    def reconfigure(self) -> None:
        """`scontrol reconfigure`: slurm.conf's counts and partition state again, all register."""
        self.state, self.min_nodes = "DOWN", 0
        for node in self.nodes.values():
            node.count = node.ceiling
            node.register()

    def restart(self) -> None:
        """slurmctld restarts: it forgets the last registrations and keeps drains."""
        self.state, self.min_nodes = "DOWN", 0
        for node in self.nodes.values():
            node.count = node.registered = node.ceiling
            node.register()

    def _ask(self, *call: object) -> None:
        if self.away:
            raise ClusterUnreachableError("no slurmctld")
        if call[0] == self.refuses:
            raise ClusterError(f"{self.refuses} is refused")
        self.calls.append(call)

    def partition(self, name: str) -> Partition:
        self._ask("partition")
        return Partition(name, self.state, tuple(self.nodes), self.min_nodes)

    def set_partition(self, name: str, *, state: str, min_nodes: int | None = None) -> None:
        self._ask("set_partition", state)
        self.state = state
        self.min_nodes = self.min_nodes if min_nodes is None else min_nodes

    def twins(self, names: Collection[str]) -> dict[str, Twin]:
        self._ask("twins")
        return {name: node.twin() for name, node in self.nodes.items() if name in names}

    def hosts_of(self, node: str) -> tuple[str, ...]:
        self._ask("hosts_of", node)
        return self.hosts.get(node, ())

    def drain(self, names: Collection[str], reason: str) -> None:
        self._ask("drain", tuple(names), reason)
        for name in names:
            self.nodes[name].drain = reason

    def resume(self, names: Collection[str]) -> None:
        self._ask("resume", tuple(names))
        for name in names:
            node = self.nodes[name]
            if node.invalid or node.drain is None:
                raise ClusterError("Invalid node state specified")
            node.drain = None

    def set_count(self, names: Collection[str], count: int) -> None:
        self._ask("set_count", tuple(names), count)
        for name in names:
            self.nodes[name].count = count

    def job(self, job_id: int) -> Job | None:
        self._ask("job", job_id)
        return self.jobs.get(job_id)

    def requeue(self, job: Job) -> None:
        job_id = job.job_id
        self._ask("requeue", job_id)
        job = self.jobs[job_id]
        if not job.batch:
            raise ClusterError("Only batch jobs are accepted or processed")
        self.jobs[job_id] = replace(job, state="COMPLETING", restarts=job.restarts + 1)

    def start_after(self, job: Job, seconds: int) -> None:
        self._ask("start_after", job.job_id, seconds)

    def cancel(self, job: Job, reason: str) -> None:
        job_id = job.job_id
        self._ask("cancel", job_id, reason)
        self.jobs[job_id] = replace(self.jobs[job_id], state="CANCELLED")

    def has_accounting(self) -> bool:
        self._ask("has_accounting")
        return self.accounting

    def set_admin_comment(self, job_id: int, text: str) -> None:
        self._ask("set_admin_comment", job_id)
        self.comments[job_id] = text

    def done(self, *names: str) -> list[tuple[object, ...]]:
        """The calls of these names, in order."""
        return [call for call in self.calls if call[0] in names]
