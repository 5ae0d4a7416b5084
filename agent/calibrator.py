"""Ties the calibrated slowdown to the node: what comes in, who is held out, what it costs whom."""

from __future__ import annotations

from collections.abc import Sequence

from agent.attachments import Training
from agent.calibration import BoardCalibration, JobCalibration
from agent.hold_outs import HoldOuts
from agent.jobs import HostJob
from agent.node import Node
from agent.stretches import Bubble, Interval

_INTERVAL_NS = 1_000_000_000
_LATELY_NS = 10_000_000_000


class Calibrator:
    """Main thread only."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._on = node.settings.calibration_fraction > 0
        self._window_ns = round(node.settings.budget_window_s * 1e9)
        self._hold_outs: dict[int, HoldOuts] = {}
        self._fills: dict[int, frozenset[int]] = {}  # fill jobs beside each host job
        self._told: set[int] = set()
        self._last_ns = 0

    def bubbles(
        self, training: Training, uuid: str, bubbles: Sequence[Bubble], *, lost: bool
    ) -> None:
        """Takes in bubbles of a training process on a GPU."""
        host = self._node.jobs.hosts.get(training.job.job_id)
        if not self._on or host is None or uuid not in self._node.gpus:
            return
        boards = self._job_of(host).boards
        key = (uuid, training.board_id)
        if not self._node.jobs.fills_of(uuid):
            if key in boards:
                boards[key].stretches.begin_anew()
            return
        board = boards.setdefault(key, BoardCalibration(self._window_ns))
        board.stretches.take(bubbles, lost=lost)

    def uses(self, uuid: str, uses: Sequence[Interval]) -> None:
        """Takes in when fill ran on a GPU."""
        if self._on and uuid in self._node.gpus:
            self._node.gpus[uuid].times.used(uses)

    def tick(self, now_ns: int) -> None:
        """Says which host jobs have their fills held out now; settles accounts once a second."""
        if not self._on:
            return
        if now_ns - self._last_ns >= _INTERVAL_NS:
            self._last_ns = now_ns
            self._tell_apart(now_ns)
            for host in self._node.jobs.hosts.values():
                self._settle(host, now_ns)
            self._forget()
        hosts = self._node.jobs.hosts.values()
        self._node.held_out = {host.job_id for host in hosts if self._held(host, now_ns)}

    def _job_of(self, host: HostJob) -> JobCalibration:
        known = self._node.calibrations.get(host.job_id)
        if known is None:
            known = JobCalibration(
                past_ns=host.calibrated_us * 1000, known=host.calibrated_slowdown is not None
            )
            self._node.calibrations[host.job_id] = known
        return known

    def _tell_apart(self, now_ns: int) -> None:
        for gpu in self._node.gpus.values():
            boards = [
                board
                for job in self._node.calibrations.values()
                for (uuid, _), board in job.boards.items()
                if uuid == gpu.uuid
            ]
            oldest = min((each.stretches.needed_since_ns for each in boards), default=now_ns)
            gpu.times.forget_before(oldest, now_ns)
            for board in boards:
                board.add(board.stretches.tell_apart(gpu.times, now_ns))

    def _settle(self, host: HostJob, now_ns: int) -> None:
        job = self._node.calibrations.get(host.job_id)
        if job is None:
            return
        fills = frozenset(
            fill.job_id for gpu in host.gpus for fill in self._node.jobs.fills_of(gpu)
        )
        if fills != self._fills.get(host.job_id, fills):
            for board in job.boards.values():
                board.other_fills()
        self._fills[host.job_id] = fills
        job.charge(now_ns, set(self._node.trainings))
        host.calibrated_us = job.total_ns() / 1000
        age_us = max(1, self._node.clock.utc_us(now_ns) - host.started_at_us)
        if job.known:
            host.calibrated_slowdown = min(1.0, host.calibrated_us / age_us)
        budget = self._node.budget_of(host)
        budget.calibrated(job.window_ns(now_ns), job.total_ns())
        fraction = budget.calibrated_fraction(now_ns)
        if fraction > host.slowdown and host.job_id not in self._told:
            self._told.add(host.job_id)
            self._tell(host, fraction, now_ns)

    def _tell(self, host: HostJob, fraction: float, now_ns: int) -> None:
        seen = {
            reason
            for uuid in host.gpus
            if uuid in self._node.gpus
            for reason, at_ns in self._node.gpus[uuid].slowed_by.items()
            if now_ns - at_ns < _LATELY_NS
        }
        why = f"; NVML says that the clock is held down by {', '.join(sorted(seen))}"
        text = (
            f"host job {host.job_id}: compared with stretches without fill, fill costs it "
            f"{fraction:.2%} of its time, more than its budget of {host.slowdown:.2%}"
            f"{why if seen else ''}"
        )
        self._node.ledger.event("slowdown", text, job_id=host.job_id, user=host.user)

    def _held(self, host: HostJob, now_ns: int) -> bool:
        job = self._node.calibrations.get(host.job_id)
        if job is None or not any(self._node.fills_on(uuid) for uuid in host.gpus):
            return False
        if host.job_id not in self._hold_outs:
            self._hold_outs[host.job_id] = HoldOuts(host.job_id, self._node.settings)
        utc_us = self._node.clock.utc_us(now_ns)
        return self._hold_outs[host.job_id].held(
            utc_us, now_ns, job.filled_since_ns(), job.cycle_ns()
        )

    def _forget(self) -> None:
        hosts = self._node.jobs.hosts.keys()
        self._hold_outs = {key: each for key, each in self._hold_outs.items() if key in hosts}
        self._fills = {key: each for key, each in self._fills.items() if key in hosts}
        self._told &= hosts
