"""The agent as a whole: builds the parts, ties them to one event loop, and runs the timers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from agent import VERSION, mps, unknown_fills
from agent.calibrator import Calibrator
from agent.clock import now_ns
from agent.devices import Devices
from agent.drain import Drain
from agent.endless import EndlessKernels
from agent.eviction import Eviction
from agent.forgotten_jobs import ForgottenJobs
from agent.guard import Guard, GuardThread
from agent.job_of_process import JobFinder
from agent.jobs import HostJob
from agent.mps import Mps
from agent.node import Node
from agent.node_status import status
from agent.nvml import Device, GpuQueries
from agent.packet import Packet, PacketError
from agent.policy import Heartbeat
from agent.reporter import Reporter, Spooler
from agent.rescue import Rescue
from agent.server import Connection, Server, close_all
from agent.settings import AgentSettings
from agent.shim_verbs import ShimVerbs
from agent.slurm_verbs import SlurmVerbs
from agent.spool import Spool
from agent.standstill import Standstill
from agent.state_file import StateFile
from agent.step_verbs import StepVerbs
from agent.timers import every
from agent.twin_registration import TwinRegistration
from agent.unknown_fills import UnknownFills
from agent.windows import Windows
from db.wire.messages import AnewRecord, Report, ReportAnswer

log = logging.getLogger(__name__)

_SOCKET_LOOK_S = 2.0
# Questions whose answer serves nobody once the asker has hung up: he has gone on without it.
_VOID_WHEN_LATE = frozenset(
    {"attach", "rescue", "fill_memory", "memory", "ready", "step", "task", "status"}
)


class Agent:
    """One node's agent. `run` returns when it is told to stop."""

    def __init__(self, settings: AgentSettings, queries: GpuQueries) -> None:
        """Reads the GPUs and the state on disk. Raises GpuError, OSError."""
        self.settings = settings
        self._queries = queries
        every = queries.devices()
        own = [each for each in every if not settings.gpus or each.minor in settings.gpus]
        own.sort(key=lambda each: each.minor)
        self._tell_missing(own)
        self.node = Node(settings, own)
        self.state = StateFile(settings.state_dir, self.node)
        self._restarted = self.state.load()
        self.spool = Spool(settings.spool_dir, settings.spool_max_bytes)
        self.node.ledger.stored = self.spool.positions
        self.windows = Windows(self.node, now_ns())
        self._calibrator = Calibrator(self.node)
        self._drain = Drain(self.node, self.windows, self._calibrator)
        self._finder = JobFinder(
            environment_socket=settings.socket_path if settings.job_from_environment else ""
        )
        self._mps = Mps(self.node)
        self._eviction = Eviction(self.node, self._finder, self._mps)
        self._mps.on_lost = self._mps_lost
        self._guard = Guard(self.node, self._finder, self._eviction)
        self._endless = EndlessKernels(self.node, self._eviction)
        self._shims = ShimVerbs(self.node, self._finder, self._drain, self.windows, self._endless)
        self._rescue = Rescue(self.node, self._eviction)
        devices = Devices(settings, [each.minor for each in every])
        self._slurm = SlurmVerbs(self.node, self._eviction, self._drain, self.windows, self._mps)
        self._steps = StepVerbs(self.node, self._finder, devices, self._mps)
        self._forgotten = ForgottenJobs(self.node, self._finder, self._slurm.give_up)
        self._unknown_fills = UnknownFills(
            self.node, self._finder, self._eviction, state_lost=not self._restarted
        )
        self._twin = TwinRegistration(settings.twin)
        self._server = Server(settings.socket_path, self, settings.max_connections_per_user)
        policies = [gpu.policy for gpu in self.node.gpus.values()]
        self._heartbeat = Heartbeat(policies, settings.heartbeat_ms)
        self._report: Report | None = None
        self._beats_at_tick = 0
        self._stop = asyncio.Event()

    def _tell_missing(self, own: list[Device]) -> None:
        for minor in set(self.settings.gpus) - {each.minor for each in own}:
            log.error("settings name a GPU with minor %d, which NVML does not show", minor)

    def _tell_loosened(self) -> None:
        """Settings that are for tests and benches stand in the audit log of whoever uses them."""
        settings = self.settings
        loosened = {
            "job_from_environment": settings.job_from_environment,
            "ignore_training": settings.ignore_training,
            "predict_end off": not settings.predict_end,
            "guard off": not settings.guard,
            "budget_control off": not settings.budget_control,
        }
        for name in (name for name, given in loosened.items() if given):
            self.node.ledger.event("loosened", f"{name}: a setting for tests and benches is in use")

    async def run(self) -> None:
        """Serves until `stop` is called. Raises OSError at the start."""
        loop = asyncio.get_running_loop()
        self._server.start()
        threads = self._start_threads(loop)
        self.node.on_change = self._changed
        self.node.main_loop.on_stood = self._stood
        self.node.main_loop.look()
        self.node.refresh()
        self._mps.resume()
        if self._restarted:
            self._eviction.resume()
        else:
            self.node.ledger.add(AnewRecord(at_us=self.node.clock.now_us()))
        began = "again after a restart" if self._restarted else "anew"
        self.node.ledger.event("agent_begins", f"the agent of {self.settings.node} begins {began}")
        self._tell_loosened()
        timers = [
            asyncio.create_task(every(self.settings.drain_interval_s, self._tick, at_once=True)),
            asyncio.create_task(every(self._forgotten.interval_s, self._forgotten.look)),
            asyncio.create_task(every(unknown_fills.INTERVAL_S, self._unknown_fills.look)),
            asyncio.create_task(every(mps.LOOK_S, self._mps.look)),
            asyncio.create_task(every(_SOCKET_LOOK_S, self._look_at_socket)),
        ]
        await self._stop.wait()
        for timer in timers:
            timer.cancel()
        await self._mps.close()
        self._finish(*threads)

    def stop(self) -> None:
        """Ends `run`. Gates shut themselves as the heartbeat stops; jobs run on."""
        self._stop.set()

    def _start_threads(
        self, loop: asyncio.AbstractEventLoop
    ) -> tuple[GuardThread, Spooler, Reporter | None]:
        def on_main(function: Callable[..., None]) -> Callable[..., None]:
            def call(*arguments: object) -> None:
                with contextlib.suppress(RuntimeError):  # the loop ended meanwhile
                    loop.call_soon_threadsafe(function, *arguments)

            return call

        guard = GuardThread(self.node, self._queries, self._guard.hearing, self._guard.apply)
        spooler = Spooler(
            self.node.ledger,
            self.spool,
            min(0.5, self.settings.report_interval_s),
            on_main(self._spool_full),
            on_main(self._drain.stored),
        )
        self._reporter: Reporter | None = None
        if self.settings.controller_url:
            self._reporter = Reporter(
                self.settings, self.spool, lambda: self._report, on_main(self._answered)
            )
        started = (guard, spooler, self._reporter)
        for thread in (self._heartbeat, *started):
            if thread is not None:
                thread.start()
        return started

    def _finish(self, guard: GuardThread, spooler: Spooler, reporter: Reporter | None) -> None:
        self._heartbeat.stop()
        guard.stop()
        self._server.stop()
        self._drain.end()
        self.windows.close(now_ns())
        self.node.ledger.event("agent_ends", f"the agent of {self.settings.node} was told to stop")
        self.state.save(sums=True)
        self.state.close()
        spooler.stop()
        if not self.node.ledger.waiting:
            self._drain.stored({each.board_id: each.drained for each in self.node.fills.values()})
        if reporter is not None:
            reporter.stop()
        self.spool.close()

    # Timers

    def _tick(self) -> None:
        # Before the heartbeat: gates open by what pages and boards said before a standstill.
        self.node.main_loop.look()
        self._beats_at_tick = self._heartbeat.turns
        self._heartbeat.alive()
        window = self.windows.began_ns
        self._drain.all()
        self._calibrator.tick(now_ns())
        self._guard.look()
        changed = self.node.read_boards()
        self._endless.look(self.node.main_loop.awake_ns())
        changed |= self._control_budgets()
        if changed:
            self.node.refresh()
        else:
            for gpu in self.node.gpus.values():
                self.node.refresh_gpu(gpu)
            self._renew_report()
        if self.windows.began_ns != window:
            self.state.save(sums=True)

    def _look_at_socket(self) -> None:
        if text := self._server.look():
            self.node.ledger.event("socket", text)

    def _stood(self, stood: Standstill) -> None:
        """The main loop goes on after a standstill: nobody was answered, nothing was seen."""
        self.node.clock.sample()
        beats = (self._heartbeat.turns - self._beats_at_tick) * self.settings.heartbeat_ms / 1000
        if stood.suspended_ns > stood.until_ns - stood.since_ns:
            why = "its machine was suspended"
        elif beats > stood.seconds / 2:
            why = "its main loop was stuck"
        else:
            why = "it was stopped, or had no processor"
        self.node.ledger.event(
            "stood_still",
            f"the agent of {self.settings.node} stood still for {stood.seconds:.1f} s: {why}. "
            "Nothing was filled meanwhile, and a training that began then goes unwatched",
        )
        self._shims.stood(stood)
        self.node.refresh()

    def _control_budgets(self) -> bool:
        changed = False
        for host in self.node.jobs.hosts.values():
            text = self.node.budget_of(host).control(now_ns())
            if text:
                changed = True
                text = f"host job {host.job_id}: {text}"
                self.node.ledger.event("budget", text, job_id=host.job_id, user=host.user)
        return changed

    # Changes, reports and answers

    def _changed(self) -> None:
        self.state.save()
        self._renew_report()

    def _renew_report(self) -> None:
        report = Report(
            node=self.settings.node,
            twin=self.settings.twin,
            boot_id=self.spool.boot_id,
            version=VERSION,
            slot_bytes=self.settings.slot_bytes,
            gpus=[self.node.report_of(gpu) for gpu in self.node.gpus.values()],
            fill_jobs=sorted(self.node.jobs.fills),
            off=self.node.off,
            requeue=sorted(self.node.requeue),
        )
        if report != self._report:
            self._report = report
            if self._reporter is not None:
                self._reporter.wake()

    def _answered(self, answer: ReportAnswer) -> None:
        self.node.requeue -= set(answer.requeued)
        if answer.register_twin:
            self._twin.ask()
        if answer.off != self.node.off_wanted:
            self.node.off_wanted = answer.off
            word = "off" if answer.off else "on"
            self.node.ledger.event(word, f"filling is {word} by the controller")
            self.node.refresh()
        elif answer.requeued:
            self._changed()

    def _mps_lost(self, host: HostJob) -> None:
        """A fill that is a client of a lost daemon can no longer be taken off its server."""
        fills = [fill for fill in self.node.jobs.fills.values() if fill.host_job_id == host.job_id]
        self._eviction.begin(fills, f"the MPS daemon of training job {host.job_id} failed")

    def _spool_full(self, full: str) -> None:
        self.node.spool_full = full
        text = f"filling stops: {full}" if full else "the spool has room again: filling goes on"
        self.node.ledger.event("spool", text)
        self.node.refresh()

    # Packets

    def handle(self, connection: Connection, packet: Packet, descriptors: list[int]) -> None:
        """Deals with one packet of any peer; an error is the peer's, never ours."""
        self.node.main_loop.look()
        if packet.verb in _VOID_WHEN_LATE and connection.hung_up():
            close_all(descriptors)
            return
        try:
            if packet.verb == "attach":
                self._shims.attach(connection, packet, descriptors)
                return
            close_all(descriptors)
            self._dispatch(connection, packet)
        except PacketError as error:
            connection.send(Packet("error", {"reason": str(error)}))
        except Exception:
            log.exception("an unforeseen error at %s", packet.verb)
            connection.send(Packet("error", {"reason": "the agent failed; see its log"}))

    def _dispatch(self, connection: Connection, packet: Packet) -> None:
        verb, user_id = packet.verb, connection.user_id
        if verb == "gpu":
            self._shims.gpu(connection, packet)
        elif verb == "log":
            self._shims.log(connection, packet)
        elif verb == "rescue":
            self._rescue.rescue(connection, packet)
        elif verb == "fill_memory":
            self._rescue.fill_memory(connection, packet)
        elif verb == "memory":
            self._shims.memory(connection, packet)
        elif verb == "status":
            connection.send(status(self.node, user_id))
        elif verb == "task":
            connection.send(self._steps.task(connection, packet))
        elif verb in ("off", "on") and user_id in (0, self.settings.slurm_user_id):
            connection.send(self._slurm.switch(verb == "off", user_id))
        elif verb in ("off", "on"):
            connection.send(Packet("refused", {"reason": "only root and SlurmUser may do this"}))
        elif verb in ("job_begin", "job_end", "ready", "step"):
            self._of_slurm(connection, packet)
        else:
            connection.send(Packet("error", {"reason": f"unknown verb {verb[:40]!r}"}))

    def _of_slurm(self, connection: Connection, packet: Packet) -> None:
        if connection.user_id not in self.settings.prolog_user_ids:
            connection.send(Packet("error", {"reason": f"{packet.verb} is for Slurm's side only"}))
        elif packet.verb == "job_begin":
            connection.send(self._slurm.job_begin(packet, late=connection.hung_up()))
        elif packet.verb == "job_end":
            self._slurm.job_end(connection, packet)
        elif packet.verb == "ready":
            self._slurm.ready(connection, packet)
        else:
            connection.send(self._steps.step(packet))

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""
        self._shims.closed(connection)
        connection.process.close()
