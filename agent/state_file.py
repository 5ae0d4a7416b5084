"""What survives a restart of the agent: jobs and switches, in one small file."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
            state = json.loads(self._path.read_text())
            hosts = [HostJob.from_json(each) for each in state["hosts"]]
            fills = [FillJob.from_json(each) for each in state["fills"]]
            refused = {int(key): str(value) for key, value in state["refused"].items()}
            requeue = {int(each) for each in state["requeue"]}
            off_here, off_wanted = bool(state["off_here"]), bool(state["off_wanted"])
        except FileNotFoundError:
            return False
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.error("%s is damaged (%s): the agent begins anew", self._path, error)
            return False
        node.jobs.hosts = {host.job_id: host for host in hosts}
        node.jobs.fills = {fill.job_id: fill for fill in fills if fill.gpu in node.gpus}
        node.jobs.refused = refused
        node.requeue = requeue
        node.off_here, node.off_wanted = off_here, off_wanted
        return True
