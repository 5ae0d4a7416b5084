"""What survives a restart of the agent: jobs and switches, in one small file."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pydantic import TypeAdapter, ValidationError

from agent.jobs import FillJob, HostJob
from agent.node import Node
from agent.spool import write_atomically

log = logging.getLogger(__name__)

_SUMS = (
    "intrusion_us",
    "bubble_us",
    "filled_us",
    "watched_us",
    "calibrated_us",
    "calibrated_slowdown",
)

_TOO_LARGE = 1 << 63  # no database keeps it


@dataclass
class _State:
    """What the file holds, as `_text` writes it."""

    hosts: list[HostJob]
    fills: list[FillJob]
    refused: dict[int, str]
    requeue: set[int]
    off_here: bool
    off_wanted: bool


class StateFile:
    """Writes the node's state when it differs from what was written last."""

    def __init__(self, folder: Path, node: Node) -> None:
        self._path = folder / f"sfilld-{node.settings.node}.json"
        self._node = node
        self._asked = self._asked_without_sums = ""
        self._writer = ThreadPoolExecutor(1, "state")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def save(self, *, sums: bool = False) -> None:
        """Has the file written if the state changed, or, with `sums`, if only the sums have.

        A thread writes: the main loop answers shims within their 50 ms, however slow the disk.
        A failure is logged, and tried again at the next change.
        """
        identity = self._text(sums=sums)
        if identity in (self._asked, self._asked_without_sums):
            return
        self._asked, self._asked_without_sums = self._text(sums=True), self._text(sums=False)
        self._writer.submit(self._write, self._asked)

    def _write(self, text: str) -> None:
        if text != self._asked:
            return  # a newer one waits already
        try:
            write_atomically(self._path, text)
        except OSError as error:
            log.error("cannot write %s: %s", self._path, error)
            self._asked = self._asked_without_sums = ""

    def close(self) -> None:
        """Waits until what was asked for is written."""
        self._writer.shutdown()

    def _text(self, *, sums: bool) -> str:
        node = self._node
        without = {} if sums else dict.fromkeys(_SUMS, 0.0)
        hosts = [{**host.to_json(), **without} for host in node.jobs.hosts.values()]
        return json.dumps(
            {
                "hosts": hosts,
                "fills": [fill.to_json() for fill in node.jobs.fills.values()],
                "refused": {str(key): value for key, value in node.jobs.refused.items()},
                "requeue": sorted(node.requeue),
                "off_here": node.off_here,
                "off_wanted": node.off_wanted,
            }
        )

    def load(self) -> bool:
        """Takes the state of an earlier life over; False when there is none that can be used."""
        node = self._node
        try:
            state = _parse(self._path.read_text())
        except FileNotFoundError:
            return False
        except (OSError, ValueError, RecursionError) as error:
            self._set_aside(error)
            return False
        node.jobs.hosts = {host.job_id: host for host in state.hosts}
        node.jobs.fills = {fill.job_id: fill for fill in state.fills if fill.gpu in node.gpus}
        node.jobs.refused = state.refused
        node.requeue = state.requeue
        node.off_here, node.off_wanted = state.off_here, state.off_wanted
        return True

    def _set_aside(self, error: Exception) -> None:
        kept = self._path.with_suffix(".damaged")
        with contextlib.suppress(OSError):
            self._path.replace(kept)
        text = f"{self._path} is damaged ({error}): the agent begins anew, and keeps it as {kept}"
        log.error("%s", text)
        self._node.ledger.event("lost", text)


def _parse(text: str) -> _State:
    """Raises ValueError, RecursionError: a file that is none of ours is as good as lost."""
    json.loads(text, parse_constant=_no_number, parse_int=_whole, parse_float=_finite)
    try:
        return _STATE.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(each) for each in first["loc"])
        raise ValueError(f"{place or 'all of it'}: {first['msg']}") from None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _whole(text: str) -> int:
    if not 0 <= (number := int(text)) < _TOO_LARGE:
        raise ValueError(f"{text} is no number of ours")
    return number


def _finite(text: str) -> float:
    if not math.fabs(number := float(text)) < _TOO_LARGE:
        raise ValueError(f"{text} is no number of ours")
    return number


_STATE = TypeAdapter(_State)
