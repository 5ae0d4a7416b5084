"""The node: everything the agent knows, and the one place that turns it into policy pages."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace

from agent.accounts import Accounts
from agent.admission import Candidate, Room, room, slots, slots_held, warm
from agent.attachments import Fill, Training
from agent.board import Closed, Shut
from agent.budget import Budget
from agent.calibration import JobCalibration
from agent.clock import UtcClock, now_ns
from agent.gpus import Gpu
from agent.jobs import FillJob, HostJob, Jobs
from agent.ledger import Ledger
from agent.nvml import Device
from agent.packet import Packet
from agent.policy import FillVerdict, Policy, Tuning
from agent.settings import AgentSettings
from agent.standstill import MainLoop
from db.wire import messages
from db.wire.messages import HostMode, ShareMode

log = logging.getLogger(__name__)

FILL_LINGERS_NS = 1_000_000_000  # a driver gives a killed process's memory back within that


class Node:
    """State of the agent's main thread. Other modules change it, then call `refresh`."""

    def __init__(self, settings: AgentSettings, devices: list[Device]) -> None:
        self.settings = settings
        self.clock = UtcClock()
        self.ledger = Ledger(self.clock)
        self.jobs = Jobs()
        self.main_loop = MainLoop()
        self.started_ns = now_ns()
        loosened = {
            "ignore_training": settings.ignore_training,
            "predict_end": settings.predict_end,
        }
        self.gpus = {
            device.uuid: Gpu(device, Policy(device.uuid, **loosened)) for device in devices
        }
        self.trainings: dict[int, Training] = {}  # by board id
        self.fills: dict[int, Fill] = {}  # by board id
        self.accounts = Accounts()
        self.budgets: dict[int, Budget] = {}  # by host job
        self.calibrations: dict[int, JobCalibration] = {}  # by host job
        self.held_out: set[int] = set()  # host jobs whose fills are held out just now
        self.requeue: set[int] = set()  # evicted fills the controller has not dealt with
        self.off_here = False  # `off` on this node's socket
        self.off_wanted = False  # `off` by the controller
        self.spool_full = ""
        self.on_change: Callable[[], None] = lambda: None
        self._next_board_id = (self.clock.now_us() // 1000) << 20

    @property
    def off(self) -> bool:
        return self.off_here or self.off_wanted

    @property
    def stopped(self) -> str:
        """Why the whole node lends nothing; empty when it may."""
        return "filling is off on this node" if self.off else self.spool_full

    def new_board_id(self) -> int:
        """Unique on this node, over restarts of the agent too."""
        self._next_board_id += 1
        return self._next_board_id

    def may_keep(self, board_id: int) -> bool:
        """Whether a board that a process kept may have this id: given out once, and free."""
        taken = board_id in self.trainings or board_id in self.fills
        return 0 < board_id <= self._next_board_id and not taken

    # Views

    def trainings_on(self, gpu: str) -> list[Training]:
        return [each for each in self.trainings.values() if self._stands_on(each, gpu)]

    def _stands_on(self, training: Training, gpu: str) -> bool:
        """Whether a board counts on a GPU: its process says so, and no other job holds the GPU."""
        holder = self.jobs.host_of(gpu) if gpu in training.gpus else None
        return gpu in training.gpus and (holder is None or holder.job_id == training.job.job_id)

    def fills_on(self, gpu: str) -> list[Fill]:
        return [each for each in self.fills.values() if each.gpu == gpu]

    def fill_present(self, gpu: str) -> bool:
        """Whether a fill's process is on a GPU, or was so lately that its memory may still be."""
        known = self.gpus.get(gpu)
        left_ns = known.fill_left_ns if known is not None else 0
        return bool(self.fills_on(gpu)) or (left_ns > 0 and now_ns() - left_ns < FILL_LINGERS_NS)

    @property
    def attached(self) -> list[Training | Fill]:
        """Every process that has a board."""
        return [*self.trainings.values(), *self.fills.values()]

    def budget_of(self, host: HostJob) -> Budget:
        """The host job's intrusion budget, made at first use."""
        if host.job_id not in self.budgets:
            age_ns = max(0, self.clock.now_us() - host.started_at_us) * 1000
            self.budgets[host.job_id] = Budget(
                host.slowdown, self.settings, now_ns() - age_ns, round(host.intrusion_us * 1000)
            )
        return self.budgets[host.job_id]

    def room_of(self, gpu: Gpu) -> Room:
        host, fills = self.jobs.host_of(gpu.uuid), self.jobs.fills_of(gpu.uuid)
        return room(gpu, host, fills, self.settings, now_ns=now_ns(), stopped=self.stopped)

    def candidates(self) -> list[Candidate]:
        return [
            Candidate(gpu, self.room_of(gpu), len(self.jobs.fills_of(gpu.uuid)))
            for gpu in self.gpus.values()
        ]

    def report_of(self, gpu: Gpu) -> messages.Gpu:
        """The GPU as the controller is told of it."""
        host = self.jobs.host_of(gpu.uuid)
        return messages.Gpu(
            uuid=gpu.uuid,
            minor=gpu.device.minor,
            name=gpu.device.name,
            memory_bytes=gpu.device.memory_bytes,
            host_job_id=host.job_id if host else None,
            host_mode=host.mode if host else None,
            lendable_slots=slots(self.room_of(gpu).free_bytes, self.settings),
            used_slots=slots_held(self.jobs.fills_of(gpu.uuid), self.settings),
            simulated=gpu.device.simulated,
        )

    # Policy

    def refresh(self) -> None:
        """Writes every policy page from the state, and tells the reporter and the state file."""
        for gpu in self.gpus.values():
            self.refresh_gpu(gpu)
        self.on_change()

    def refresh_gpu(self, gpu: Gpu) -> None:
        host = self.jobs.host_of(gpu.uuid)
        fills = self.jobs.fills_of(gpu.uuid)
        verdicts = [
            FillVerdict(fill.job_id, self._verdict(gpu, host, fill), fill.memory_bytes)
            for fill in fills
        ]
        if sum(verdict.closed == Closed.OPEN for verdict in verdicts) > 1:
            verdicts = self._leave_out_idle(gpu, verdicts)
        opens = any(verdict.closed == Closed.OPEN for verdict in verdicts)
        if opens:
            gpu.times.may_open(now_ns())
        # Shut before the boards change, open after: a gate never sees more than is true.
        if any(verdict.closed != Closed.OPEN for verdict in verdicts) or not verdicts:
            gpu.policy.write_fills(verdicts)
        trainings = self.trainings_on(gpu.uuid)
        gpu.policy.write_boards([each.board_id for each in trainings], gpu.unknown)
        gpu.policy.write_tuning(self._tuning(host))
        gpu.policy.write_share(by_mps=host is not None and host.share_mode == ShareMode.MPS)
        gpu.policy.write_fills(verdicts)
        if not opens:
            gpu.times.shut(now_ns())
        for training in trainings:
            present = any(self.fill_present(each) for each in training.gpus)
            training.memory.view.fill_present = present

    def _verdict(self, gpu: Gpu, host: HostJob | None, fill: FillJob) -> Closed:
        if self.stopped or fill.evicted:
            return Closed.OFF
        if gpu.fault:
            return Closed.UNKNOWN
        if host is not None and host.job_id in self.held_out:
            return Closed.CALIBRATION
        if self.settings.ignore_training:
            return Closed.OPEN
        if host is None or host.mode != HostMode.ON or not self.trainings_on(gpu.uuid):
            return Closed.NO_HOST
        if gpu.unknown or self._unseen(gpu):
            return Closed.UNKNOWN
        if not gpu.ready_ns or not warm(gpu, self.settings, now_ns()):
            return Closed.BOARDS
        if self.budget_of(host).stopped:
            return Closed.BUDGET
        return Closed.OPEN

    def _unseen(self, gpu: Gpu) -> bool:
        """Whether nobody has looked at a GPU since the agent began, or since it stood still: a
        training that came to it meanwhile has no board. However long the look takes."""
        since_ns = max(self.started_ns, self.main_loop.woke_ns)
        return self.settings.guard and gpu.scanned_ns < since_ns

    @staticmethod
    def _leave_out_idle(gpu: Gpu, verdicts: list[FillVerdict]) -> list[FillVerdict]:
        """Of several fills that may run, only those that want to take turns."""
        active = gpu.turns.active(now_ns())
        return [
            replace(verdict, closed=Closed.TURN)
            if verdict.closed == Closed.OPEN and verdict.job_id not in active
            else verdict
            for verdict in verdicts
        ]

    def _tuning(self, host: HostJob | None) -> Tuning:
        settings = self.settings
        budget = self.budget_of(host) if host else None
        return Tuning(
            dwell_us=settings.dwell_us,
            in_flight_us=budget.in_flight_us if budget else settings.in_flight_us,
            min_bubble_us=budget.min_bubble_us if budget else settings.min_bubble_us,
            unknown_op_us=settings.unknown_op_us,
            max_op_us=settings.max_op_us,
            turn_us=settings.turn_us,
            graph_part_us=settings.graph_part_us,
        )

    # Pushes to gates

    def push_gpu(self, fill: Fill) -> None:
        """Hands a gate its job's account, its GPU's policy page and training boards."""
        gpu = self.gpus.get(fill.gpu)
        if gpu is None or fill.connection is None:
            return
        if (account := self.accounts.of(fill)) is not None:
            fill.connection.send(Packet("account", {"uuid": gpu.uuid}), account.memory.descriptor)
        descriptor = gpu.policy.memory.read_only_descriptor()
        try:
            fill.connection.send(Packet("policy", {"uuid": gpu.uuid}), descriptor)
        finally:
            os.close(descriptor)
        for training in self.trainings_on(gpu.uuid):
            self.push_board(fill, training)

    def push_board(self, fill: Fill, training: Training) -> None:
        if fill.connection is None:
            return
        descriptor = training.memory.read_only_descriptor()
        try:
            fields = {"board_id": str(training.board_id), "uuid": fill.gpu}
            fill.connection.send(Packet("board", fields), descriptor)
        finally:
            os.close(descriptor)

    # What the boards say

    def read_boards(self) -> bool:
        """Reads readiness, new GPUs and faults off training boards; True when policy changed."""
        changed = False
        for training in list(self.trainings.values()):
            before = training.gpus
            if training.read_sections():
                self.board_moved(training, before)
                changed = True
            self._tell_shut(training)
        for gpu in self.gpus.values():
            changed |= self._read_ready(gpu)
            gpu.turns.look(self.fills_on(gpu.uuid), now_ns())
        return changed

    def board_moved(self, training: Training, before: set[str]) -> None:
        """A training process has come to use a GPU: its board goes to the gates there."""
        for uuid in training.gpus - before:
            if uuid not in self.gpus:
                log.warning("board %d names a GPU that is not here: %s", training.board_id, uuid)
            if self._stands_on(training, uuid):
                for fill in self.fills_on(uuid):
                    self.push_board(fill, training)

    def _read_ready(self, gpu: Gpu) -> bool:
        now = now_ns()
        was_warm = bool(gpu.ready_ns) and warm(gpu, self.settings, now)
        ready = {
            each.board_id: gpu.ready_ns.get(each.board_id, now)
            for each in self.trainings_on(gpu.uuid)
            if each.memory.view.ready
        }
        changed = ready.keys() != gpu.ready_ns.keys()
        gpu.ready_ns = ready
        return changed or was_warm != (bool(ready) and warm(gpu, self.settings, now))

    def _tell_shut(self, training: Training) -> None:
        shut = int(training.memory.view.head.shut)
        if shut and not training.shut_told:
            training.shut_told = True
            name = Shut(shut).name.lower() if shut in list(Shut) else str(shut)
            self.ledger.event(
                "shut",
                f"the board of process {training.process.process_id} is shut for good: {name}",
                job_id=training.job.job_id,
            )
