"""What sfillctld needs of Slurm, and nothing else of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol


class ClusterError(Exception):
    """Slurm refused what was asked; the text is Slurm's own."""


class ClusterUnreachableError(ClusterError):
    """No answer came in time: what was asked may or may not have been done."""


@dataclass(frozen=True)
class Twin:
    """A twin node as Slurm sees it."""

    name: str
    states: frozenset[str]  # as IDLE, MIXED, DRAIN, INVALID_REG, NOT_RESPONDING
    reason: str = ""
    count: int = 0  # slots that the node has in Slurm's eyes
    used: int = 0  # of these, allocated to jobs

    @property
    def drained(self) -> bool:
        """Barred from new jobs by an operator, by us or by Slurm."""
        return not self.states.isdisjoint({"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING"})

    @property
    def invalid(self) -> bool:
        """Slurm dislikes what the node's slurmd registered, and starts nothing there."""
        return not self.states.isdisjoint({"INVALID_REG", "INVAL"})

    @property
    def responding(self) -> bool:
        return self.states.isdisjoint({"NOT_RESPONDING", "NO_RESPOND"})


@dataclass(frozen=True)
class Partition:
    """The partition of the twins."""

    name: str
    state: str  # UP, DOWN, DRAIN, INACTIVE
    nodes: tuple[str, ...]
    min_nodes: int


@dataclass(frozen=True)
class Job:
    """A job as far as requeueing it goes."""

    job_id: int
    state: str  # base state: PENDING, RUNNING, COMPLETING, COMPLETED, ...
    batch: bool
    requeue: bool  # whether it may be requeued
    restarts: int = 0
    nodes: tuple[str, ...] = ()
    name: str = ""  # of a task of an array: ARRAY_TASK

    @property
    def address(self) -> str:
        """What Slurm's commands call this one job: an array's number means all of its tasks."""
        return self.name or str(self.job_id)

    @property
    def active(self) -> bool:
        """Holds, or is about to hold, a node."""
        return self.state in {"RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING"}

    @property
    def leaving(self) -> bool:
        """Its nodes are still being cleaned."""
        return self.state in {"COMPLETING", "STAGE_OUT", "REQUEUED"}


class SlurmCluster(Protocol):
    """Every call may raise ClusterError, and ClusterUnreachableError when no answer came."""

    def partition(self, name: str) -> Partition:
        """A partition and the names of its nodes."""
        ...

    def set_partition(self, name: str, *, state: str, min_nodes: int | None = None) -> None:
        """Change a partition's state (UP or DOWN) and, if given, its MinNodes."""
        ...

    def twins(self, names: Collection[str]) -> dict[str, Twin]:
        """The twins that Slurm knows among `names`."""
        ...

    def hosts_of(self, node: str) -> tuple[str, ...]:
        """The addresses and host names that Slurm has for a node; empty for an unknown one."""
        ...

    def drain(self, names: Collection[str], reason: str) -> None:
        """Start no more jobs on these nodes; running ones stay."""
        ...

    def resume(self, names: Collection[str]) -> None:
        """End the drain of these nodes, so that jobs can start there at once."""
        ...

    def set_count(self, names: Collection[str], count: int) -> None:
        """Set the number of slots that these nodes have; their other GRES stay."""
        ...

    def job(self, job_id: int) -> Job | None:
        """A job that slurmctld still knows."""
        ...

    def requeue(self, job: Job) -> None:
        """Stop a running batch job and put it back into the queue."""
        ...

    def start_after(self, job: Job, seconds: int) -> None:
        """Let a pending job start no earlier than that many seconds from now."""
        ...

    def cancel(self, job: Job, reason: str) -> None:
        """Stop a job; `reason` is shown to whoever waits at its srun or salloc."""
        ...

    def has_accounting(self) -> bool:
        """Whether the cluster keeps accounts (slurmdbd)."""
        ...

    def set_admin_comment(self, job_id: int, text: str) -> None:
        """Set a job's AdminComment, during the job or after its end.

        Slurm 22.05 stores the quotes of a job that has ended as backticks.
        """
        ...
