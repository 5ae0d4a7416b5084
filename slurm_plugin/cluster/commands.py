"""Slurm through its commands, which change least from release to release (22.05 to 26.05)."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from slurm_plugin.cluster.interface import (
    ClusterError,
    ClusterUnreachableError,
    Job,
    Partition,
    Twin,
)
from slurm_plugin.cluster.parsing import (
    JOB_FORMAT,
    fields,
    parse_job,
    parse_partition,
    parse_twin,
    with_count,
)

log = logging.getLogger(__name__)

# A list of names goes into one command as long as it stays well within a command line.
NAMES_PER_CALL = 500
# Reason that a node has between the two steps of a resume.
RESUMING = "sfill: about to lend"
# How these commands say that no slurmctld answered, as opposed to that it refused.
_UNREACHABLE = (
    "unable to contact",
    "connection refused",
    "timed out",
    "communication",
    "socket timed out",
    "zero bytes were transmitted",
    "primary controller not responding",
    "could not establish a configuration source",
)
_FORMATS = ("SLURM_", "SQUEUE_", "SCONTROL_", "SACCT_")
_UNKNOWN_JOB = "invalid job id"
_ENDED = ("already finished", "already completing", "already done", "invalid job id")


class CommandCluster:
    """SlurmCluster on scontrol, scancel and sacctmgr. Safe to share between threads."""

    def __init__(
        self,
        *,
        gres: str = "fill",
        timeout_s: float = 5.0,
        slurm_conf: str = "",
        slurm_bin: str = "",
    ) -> None:
        """`gres` counts the slots; `timeout_s` bounds each command.

        `slurm_conf` is Slurm's configuration file, `slurm_bin` the folder of its commands; empty is
        what the environment says.
        """
        self._folder = slurm_bin
        self._gres = gres
        self._timeout_s = timeout_s
        self._listed = ""  # a list of nodes as Slurm abbreviates it, and their names
        self._names: tuple[str, ...] = ()
        self._environment = dict(os.environ, LC_ALL="C")
        if slurm_conf:
            self._environment["SLURM_CONF"] = slurm_conf
        # Whoever starts us may have formats or filters of his own set.
        for name in [name for name in self._environment if name.startswith(_FORMATS)]:
            if name != "SLURM_CONF":
                del self._environment[name]

    def partition(self, name: str) -> Partition:
        line = self._run("scontrol", "show", "partition", name, "-o").strip()
        listed = fields(line).get("Nodes", "")
        if listed != self._listed:
            self._names = () if listed == "(null)" else self._expand(listed)
            self._listed = listed
        return parse_partition(line, self._names)

    def set_partition(self, name: str, *, state: str, min_nodes: int | None = None) -> None:
        more = [] if min_nodes is None else [f"MinNodes={min_nodes}"]
        self._run("scontrol", "update", f"PartitionName={name}", f"State={state}", *more)

    def twins(self, names: Collection[str]) -> dict[str, Twin]:
        twins = (parse_twin(line, self._gres) for line in self._nodes(names))
        return {twin.name: twin for twin in twins}

    def _nodes(self, names: Collection[str]) -> Iterator[str]:
        """The line of each node that Slurm knows."""
        for some in _portions(names):
            # -d adds what is in use; a name that is unknown is said on standard output.
            text = self._run("scontrol", "-d", "show", "node", ",".join(some), "-o")
            for line in text.splitlines():
                if line.startswith("NodeName="):
                    yield line

    def hosts_of(self, node: str) -> tuple[str, ...]:
        for line in self._run("scontrol", "show", "node", node, "-o").splitlines():
            known = fields(line)
            if known.get("NodeName") == node:
                found = (known.get("NodeAddr", ""), known.get("NodeHostName", ""))
                return tuple(host for host in dict.fromkeys(found) if host)
        return ()

    def drain(self, names: Collection[str], reason: str) -> None:
        self._update_nodes(names, "State=DRAIN", f"Reason={reason}")

    def resume(self, names: Collection[str]) -> None:
        # At the end of a drain slurmctld bars the node until its slurmd has registered anew, which
        # can take many seconds (it waits for all pings under way, those to dead nodes too) and can
        # go wrong (see slurm_plugin.supply). At the end of FAIL it does not, so the drain is turned
        # into FAIL first, which bars the node as well.
        try:
            self._update_nodes(names, "State=FAIL", f"Reason={RESUMING}")
        finally:
            self._update_nodes(names, "State=RESUME")

    def set_count(self, names: Collection[str], count: int) -> None:
        # Slurm replaces the whole list: what else a node has must be written again.
        by_list: dict[str, list[str]] = defaultdict(list)
        for line in self._nodes(names):
            known = fields(line)
            listed = with_count(known.get("Gres", ""), self._gres, count)
            by_list[listed].append(known["NodeName"])
        for listed, some in by_list.items():
            self._update_nodes(some, f"Gres={listed}")

    def _update_nodes(self, names: Collection[str], *what: str) -> None:
        """All of `names`, even when Slurm refuses it for one of them."""
        refused: list[str] = []
        for some in _portions(names):
            try:
                self._run("scontrol", "update", f"NodeName={','.join(some)}", *what)
            except ClusterUnreachableError:
                raise
            except ClusterError as error:
                # Slurm stops at the first name that it refuses.
                refused += [str(error)] if len(some) == 1 else self._one_by_one(some, what)
        if refused:
            raise ClusterError("; ".join(refused))

    def _one_by_one(self, names: Sequence[str], what: Sequence[str]) -> list[str]:
        refused = []
        for name in names:
            try:
                self._run("scontrol", "update", f"NodeName={name}", *what)
            except ClusterUnreachableError:
                raise
            except ClusterError as error:
                refused.append(f"{name}: {error}")
        return refused

    def job(self, job_id: int) -> Job | None:
        try:
            found = parse_job(
                self._run("squeue", "-har", "-t", "all", "-j", str(job_id), "-O", JOB_FORMAT),
                job_id,
            )
        except ClusterUnreachableError:
            raise
        except ClusterError as error:
            if _UNKNOWN_JOB in str(error).lower():
                return None
            raise
        if found is None:
            return None
        job, listed = found
        return replace(job, nodes=self._expand(listed))

    def _expand(self, listed: str) -> tuple[str, ...]:
        """The names in a list of nodes, as f[1-3]."""
        if "[" not in listed:
            return tuple(name for name in listed.split(",") if name)
        return tuple(self._run("scontrol", "show", "hostnames", listed).split())

    def requeue(self, job: Job) -> None:
        self._run("scontrol", "requeue", job.address)

    def start_after(self, job: Job, seconds: int) -> None:
        self._run("scontrol", "update", f"JobId={job.address}", f"EligibleTime=now+{seconds}")

    def cancel(self, job: Job, reason: str) -> None:
        try:
            self._run("scontrol", "notify", job.address, reason)
        except ClusterUnreachableError:
            raise
        except ClusterError as error:
            # Nobody waits at a terminal: the job is cancelled all the same.
            log.debug("job %d was not told why: %s", job.job_id, error)
        self._run("scancel", job.address)

    def has_accounting(self) -> bool:
        for line in self._run("scontrol", "show", "config").splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "AccountingStorageType":
                return value.strip() not in ("", "(null)", "none", "accounting_storage/none")
        return False

    def set_admin_comment(self, job_id: int, text: str) -> None:
        try:
            known = self.job(job_id)
            address = known.address if known else str(job_id)
            self._run("scontrol", "update", f"JobId={address}", f"AdminComment={text}")
        except ClusterUnreachableError:
            raise
        except ClusterError as error:
            if not any(word in str(error).lower() for word in _ENDED):
                raise
            # slurmctld changes no job that has ended; its record in the accounts can be changed.
            where = ["modify", "job", "where", f"jobid={job_id}"]
            self._run("sacctmgr", "-i", *where, "set", f"admincomment={text}")

    def _run(self, *command: str) -> str:
        began = time.monotonic()
        program = str(Path(self._folder) / command[0]) if self._folder else command[0]
        try:
            done = subprocess.run(
                [program, *command[1:]],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout_s,
                env=self._environment,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise ClusterUnreachableError(
                f"{command[0]} gave no answer within {self._timeout_s:g} s"
            ) from None
        except OSError as error:
            raise ClusterUnreachableError(f"{command[0]}: {error.strerror}") from None
        log.debug("%s: %d in %.3f s", command, done.returncode, time.monotonic() - began)
        if done.returncode == 0:
            return done.stdout
        said = " ".join((done.stderr.strip() or done.stdout.strip()).split())
        text = said or f"{command[0]} ended with {done.returncode}"
        if any(word in said.lower() for word in _UNREACHABLE):
            raise ClusterUnreachableError(text)
        raise ClusterError(text)


def _portions(names: Collection[str]) -> Iterator[list[str]]:
    ordered = sorted(names)
    for start in range(0, len(ordered), NAMES_PER_CALL):
        yield ordered[start : start + NAMES_PER_CALL]
