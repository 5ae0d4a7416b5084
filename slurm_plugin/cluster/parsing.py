"""Reading what `scontrol show ... -o` prints: one record a line, `Key=value` with spaces between.

Values may hold spaces and even `=`, so a key counts only where it is one that the record can have
and begins a word. Free texts (Reason, Comment, Extra) come last in a node's line and are cut
off first, since they may say anything.
"""

from __future__ import annotations

import re

from slurm_plugin.cluster.interface import ClusterError, Job, Partition, Twin

_FIELD = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_/:.()-]*)=(\S*)")
_REASON = re.compile(r"\sReason=(.*)$")
_FREE_TEXT = re.compile(r"\s(?:Reason|Comment|Extra)=")
# Who set the reason and when, behind the text.
_BY = re.compile(r"\s*\[[^\[\]]*@[^\[\]]*\].*$")
# scontrol writes round counts with a suffix.
_SUFFIX = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def fields(line: str) -> dict[str, str]:
    """The one-word values of a line; of a key that comes twice, the first."""
    found: dict[str, str] = {}
    for key, value in _FIELD.findall(line):
        found.setdefault(key, value)
    return found


def parse_twin(line: str, gres: str) -> Twin:
    """A node from its line of `scontrol -d show node -o`."""
    cut = _FREE_TEXT.search(line)
    known = fields(line[: cut.start()] if cut else line)
    reason = _REASON.search(line)
    try:
        name, state = known["NodeName"], known["State"]
    except KeyError as error:
        raise ClusterError(f"scontrol shows a node without {error.args[0]}: {line[:200]}") from None
    return Twin(
        name=name,
        states=parse_states(state),
        reason=_BY.sub("", reason.group(1)) if reason else "",
        count=parse_gres(known.get("Gres", ""), gres),
        used=parse_gres(known.get("GresUsed", ""), gres),
    )


def parse_states(text: str) -> frozenset[str]:
    """State words; Slurm marks a node that does not answer with a star."""
    words = {word.rstrip("$~#!%@^-") for word in text.upper().split("+")}
    plain = {word.rstrip("*") for word in words}
    if any(word.endswith("*") for word in words):
        plain.add("NOT_RESPONDING")
    return frozenset(plain)


def parse_gres(text: str, name: str) -> int:
    """The count of one GRES in `gpu:a100:4(S:0-1),fill:32`; 0 when it is not there."""
    total = 0
    for item in _split(text):
        words = _plain(item).split(":")
        if words[0] != name:
            continue
        number = re.fullmatch(r"(\d+)([KMGT]?)", words[-1]) if len(words) > 1 else None
        if len(words) > 1 and number is None:
            raise ClusterError(f"scontrol shows a GRES count that is no number: {item}")
        total += int(number.group(1)) * _SUFFIX[number.group(2)] if number else 1
    return total


def with_count(text: str, name: str, count: int) -> str:
    """A node's list of GRES with another count for one of them, as `scontrol update` takes it."""
    items = [_plain(item) for item in _split(text)]
    others = [item for item in items if item.split(":")[0] != name]
    return ",".join([*others, f"{name}:{count}"])


def _plain(item: str) -> str:
    """`gpu:a100:4(S:0-1)` without what Slurm adds when it prints it."""
    return re.sub(r"\(.*", "", item).removeprefix("gres:").removeprefix("gres/")


def _split(text: str) -> list[str]:
    """At commas outside brackets: `fill:2(IDX:0,3),gpu:1` has two items."""
    return [item for item in re.split(r",(?![^()]*\))", text) if item and item != "(null)"]


def parse_partition(line: str, nodes: tuple[str, ...]) -> Partition:
    """A partition from its line of `scontrol show partition -o`."""
    known = fields(line)
    try:
        return Partition(
            name=known["PartitionName"],
            state=known["State"].upper(),
            nodes=nodes,
            min_nodes=int(known.get("MinNodes", "0")),
        )
    except (KeyError, ValueError) as error:
        raise ClusterError(f"scontrol shows a partition not understood: {error}") from None


# What is asked of a job, with widths: only what its owner cannot choose. `scontrol show job` prints
# the job's name, comment and paths in between, which may look like any other field.
JOB_FORMAT = ",".join(
    f"{field}:{width}"
    for field, width in (
        ("JobID", 24),
        ("JobArrayID", 80),
        ("State", 32),
        ("BatchFlag", 12),
        ("Requeue", 12),
        ("RestartCnt", 16),
        ("NodeList", 20000),
    )
)
_NUMBER = re.compile(r"[0-9]{1,10}")
_ONE_TASK = re.compile(r"[0-9]+_[0-9]+")


def parse_job(text: str, job_id: int) -> tuple[Job, str] | None:
    """A job and its list of nodes as Slurm abbreviates it, from `squeue -O JOB_FORMAT`.

    Of an array all tasks are shown when its first task is asked for. Raises ClusterError.
    """
    for line in text.splitlines():
        words = line.split()
        if not words or words[0] != str(job_id):
            continue
        numbers = words[3:6]
        if len(words) not in (6, 7) or not all(_NUMBER.fullmatch(word) for word in numbers):
            raise ClusterError(f"squeue shows a job that is not understood: {line.strip()[:200]}")
        job = Job(
            job_id=job_id,
            state=words[2].upper(),
            batch=numbers[0] != "0",
            requeue=numbers[1] != "0",
            restarts=int(numbers[2]),
            # Of an array the number alone would mean all of its tasks.
            name=words[1] if _ONE_TASK.fullmatch(words[1]) else "",
        )
        return job, words[6] if len(words) == 7 and words[6] != "(null)" else ""
    return None
