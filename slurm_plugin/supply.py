"""Supply: what each twin should lend, and which steps bring Slurm there.

Pure decisions, no input or output. A twin lends `slots in use + the largest free room on one GPU`,
so that what Slurm places fits one GPU; a twin with nothing to lend is drained.

Slurm has one trap here. When a twin's slurmd registers (after `scontrol reconfigure`, and about
every half hour) while slots are in use and the count differs from the one at the registration
before, Slurm calls the node invalid, starts nothing there and drains it: "gres/fill count changed
and jobs are using them (A != B)". Running jobs go on. Such a twin is set back to A, its slurmd
made to register again, and then it is resumed. (Lending is resumed without a registration, see
CommandCluster.resume.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from db.wire.messages import HostMode, Report
from slurm_plugin.cluster.interface import Twin

REASON_NOTHING = "sfill: nothing to lend"
REASON_SILENT = "sfill: the node does not report"
REASON_OFF = "sfill: filling is off"
OUR_REASON = "sfill:"
_COUNT_CHANGED = re.compile(r"count changed and jobs are using them \((\d+) != \d+\)")
_COUNT_TOO_HIGH = re.compile(r"count (?:reported lower than configured|too low) \((\d+) < \d+\)")


@dataclass(frozen=True)
class Wanted:
    """What a twin should lend: `count` slots in all, or nothing (0) because of `reason`."""

    count: int
    reason: str = ""


def wanted_of(report: Report | None, *, off: bool, silent: bool, max_slots: int = 0) -> Wanted:
    """What the twin of a node should lend after that node's last report.

    `off` is the operator's switch; `silent` says that the report is too old to be believed.
    `max_slots` is the ceiling that slurm.conf gives a twin (0: unknown).
    """
    if off:
        return Wanted(0, REASON_OFF)
    if report is None or silent:
        return Wanted(0, REASON_SILENT)
    if report.off:
        return Wanted(0, REASON_OFF)
    lending = [gpu for gpu in report.gpus if gpu.host_mode is HostMode.ON and gpu.host_job_id]
    if not lending:
        return Wanted(0, REASON_NOTHING)
    used = sum(max(0, gpu.used_slots) for gpu in report.gpus)
    free = max(max(0, gpu.lendable_slots) for gpu in lending)
    count = used + free
    return Wanted(min(count, max_slots) if max_slots else count, REASON_NOTHING)


@dataclass
class TwinMemory:
    """What is remembered of a twin from one round to the next."""

    registered: int | None = None  # count at the last registration, from Slurm's complaint
    highest: int = 0  # count seen that is not of our making: slurm.conf's own
    asked: int | None = None  # count that we asked for last
    ceiling: int | None = None  # most that its slurmd offers, learnt from Slurm's complaint
    raise_wanted_since: float | None = None
    invalid: bool = False  # Slurm calls it invalid
    ready: bool = False  # Slurm's record lends no more than wanted, or is not ours to change


@dataclass(frozen=True)
class Step:
    """What to do with a twin now; fields that are None or False leave things as they are."""

    drain: str | None = None  # the reason
    count: int | None = None
    resume: bool = False
    register: bool = False  # the node's slurmd must register again
    note: str | None = None  # worth a line in the audit log

    @property
    def changes(self) -> bool:
        """Whether Slurm's record is changed."""
        return self.drain is not None or self.count is not None or self.resume


NOTHING = Step()


def ours(twin: Twin) -> bool:
    """Whether a drain may be ended by us: we made it, or Slurm did over our counts."""
    return twin.reason.startswith(OUR_REASON) or _slurm_disliked(twin)


def _slurm_disliked(twin: Twin) -> bool:
    return bool(_COUNT_CHANGED.search(twin.reason) or _COUNT_TOO_HIGH.search(twin.reason))


def next_step(
    twin: Twin, wanted: Wanted, memory: TwinMemory, *, now_s: float, raise_after_s: float
) -> Step:
    """The next step towards `wanted` from what Slurm shows; brings `memory` up to date.

    `now_s` is a monotonic clock. Called again after each reading of Slurm's record.
    """
    _learn(twin, memory)
    wanted = _within_ceiling(wanted, memory)
    if twin.invalid:
        step = _towards_registration(twin, memory)
    elif wanted.count <= 0:
        step = _nothing_to_lend(twin, wanted, memory)
    elif twin.drained:
        step = _resume(twin, wanted)
    else:
        step = _count(twin, wanted, memory, now_s, raise_after_s)
    if not (twin.drained or twin.invalid) and twin.count == wanted.count:
        memory.raise_wanted_since = None
    memory.invalid = twin.invalid
    memory.ready = not step.changes
    if step.count is not None:
        memory.asked = step.count
    return step


def _learn(twin: Twin, memory: TwinMemory) -> None:
    if twin.count != memory.asked:
        memory.highest = max(memory.highest, twin.count)
    changed = _COUNT_CHANGED.search(twin.reason)
    if twin.drained and changed:
        memory.registered = int(changed.group(1))
    too_high = _COUNT_TOO_HIGH.search(twin.reason)
    if twin.drained and too_high:
        memory.ceiling = int(too_high.group(1))


def _within_ceiling(wanted: Wanted, memory: TwinMemory) -> Wanted:
    if memory.ceiling is None or wanted.count <= memory.ceiling:
        return wanted
    return Wanted(memory.ceiling, wanted.reason)


def _towards_registration(twin: Twin, memory: TwinMemory) -> Step:
    """Slurm refuses RESUME until the slurmd has registered with a count that it likes."""
    if not ours(twin):
        return NOTHING  # nothing that counts of ours could mend
    # Slurm gives its reason only where the node was not drained. Where slots are in use and the
    # guess is wrong, only their end lets it register.
    good = memory.ceiling or memory.highest
    if twin.used and memory.registered is not None:
        good = memory.registered
    count = good if good != twin.count else None
    note = None if memory.invalid else f"Slurm calls {twin.name} invalid ({twin.reason})"
    return Step(count=count, register=True, note=note)


def _nothing_to_lend(twin: Twin, wanted: Wanted, memory: TwinMemory) -> Step:
    if twin.drained and not twin.reason.startswith(OUR_REASON):
        return NOTHING
    if not (twin.drained and twin.reason == wanted.reason):
        return Step(drain=wanted.reason)
    # At the ceiling a drained twin lets jobs that name it, or that are larger than what it lent
    # last, wait for it; at a lower count Slurm refuses them at submission.
    most = memory.ceiling or memory.highest
    if not twin.used and twin.count < most:
        return Step(count=most)
    return NOTHING


def _resume(twin: Twin, wanted: Wanted) -> Step:
    if not ours(twin):
        return NOTHING
    count = wanted.count
    if twin.used and _COUNT_CHANGED.search(twin.reason):
        # It has just registered: the count follows once Slurm shows no complaint any more.
        count = twin.count
    return Step(count=count if count != twin.count else None, resume=True)


def _count(
    twin: Twin, wanted: Wanted, memory: TwinMemory, now_s: float, raise_after_s: float
) -> Step:
    if twin.count == wanted.count:
        return NOTHING
    if not twin.responding:
        # About to register: the count must hold until it has, and nothing starts there before.
        return NOTHING
    if wanted.count < twin.count:
        memory.raise_wanted_since = None
        return Step(count=wanted.count)
    if memory.raise_wanted_since is None:
        memory.raise_wanted_since = now_s
    if now_s - memory.raise_wanted_since < raise_after_s:
        return NOTHING
    memory.raise_wanted_since = None
    return Step(count=wanted.count)


@dataclass
class PartitionMemory:
    """What is remembered of the partition."""

    held: bool = False  # an operator took it down; it stays down until he puts it up


# Set together with UP: a reload of slurm.conf takes both away, an operator only the state. A job
# has one node at least anyway.
UP_MIN_NODES = 1


def partition_step(state: str, min_nodes: int, *, all_ready: bool, memory: PartitionMemory) -> bool:
    """Whether the partition is to be put UP now.

    It goes UP only when every twin's record has been published; a partition that is not UP
    although it bears our mark was taken down by an operator.
    """
    if state == "UP":
        memory.held = False
        return False
    if min_nodes == UP_MIN_NODES:
        memory.held = True
    return all_ready and not memory.held
