"""The blows of a chaos run: what is done to fills and daemons, and what must follow from it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.sandbox import services
from tests.chaos.witness import Window
from tests.cluster.cluster import UNFINISHED, Cluster

AGENT, CONTROLLER = "sfilld-n1", "sfillctld"
SHUT_WITHIN_NS = 1_000_000_000
"""Without a living agent, or once the switch is off, fill has stopped after so long."""
KNOWN_AFTER_S = 5.0
"""An agent that is ended sooner after its start may not have written down that it began."""
GRACE_S = 15.0


@dataclass
class Storm:
    """Deals blows at random and keeps account of them. `fills`: all fill jobs so far."""

    cluster: Cluster
    fill_program: str
    random: random.Random
    fills: list[int] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)
    shut: list[Window] = field(default_factory=list)
    killed_fills: list[int] = field(default_factory=list)
    agent_starts: int = 0
    _agent_since_s: float = float("-inf")
    switched_off: int = 0

    def strike(self) -> None:
        """One blow."""
        blows: list[tuple[int, Callable[[], str]]] = [
            (4, self.kill_fill),
            (4, self.stop_fill),
            (3, self.kill_agent),
            (3, self.stop_agent),
            (2, self.restart_agent),
            (2, self.kill_controller),
            (2, self.stop_controller),
            (2, self.off_and_on),
            (2, self.requeue_fill),
            (1, self.cancel_fill),
        ]
        weights = [weight for weight, _ in blows]
        [(_, blow)] = self.random.choices(blows, weights)
        began = time.monotonic()
        text = blow()
        entry = {"at_s": began, "blow": blow.__name__, "what": text}
        self.told.append(entry)
        print(f"chaos: {blow.__name__}: {text}", flush=True)

    # Fills

    def running(self) -> list[int]:
        """Fill jobs that run."""
        return [job for job in self.fills if self.cluster.state(job) == "RUNNING"]

    def _process(self) -> tuple[int, int] | None:
        """A fill's job and process id."""
        found = [(job, pid) for job in self.running() for pid in self.processes(job)]
        return self.random.choice(found) if found else None

    def processes(self, job: int) -> list[int]:
        """Processes of a fill job that run its program."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                variables = (folder / "environ").read_bytes().split(b"\0")
                words = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            ours = f"SLURM_JOB_ID={job}".encode() in variables
            if ours and self.fill_program.encode() in words:
                found.append(int(folder.name))
        return found

    def kill_fill(self) -> str:
        chosen = self._process()
        if chosen is None:
            return "no fill runs"
        job, pid = chosen
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.killed_fills.append(job)
        return f"job {job}"

    def stop_fill(self) -> str:
        chosen = self._process()
        if chosen is None:
            return "no fill runs"
        job, pid = chosen
        stopped_s = self.random.uniform(0.1, 2.5)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(stopped_s)
            os.kill(pid, signal.SIGCONT)
        return f"job {job} for {stopped_s:.2f} s"

    def requeue_fill(self) -> str:
        running = self.running()
        if not running:
            return "no fill runs"
        job = self.random.choice(running)
        answer = self.cluster.run("scontrol", "requeue", str(job))
        return f"job {job}{': ' + answer.stderr.strip() if answer.returncode else ''}"

    def cancel_fill(self) -> str:
        running = self.running()
        if not running:
            return "no fill runs"
        job = self.random.choice(running)
        self.cluster.run("scancel", str(job))
        return f"job {job}"

    # Daemons

    def _without(self, daemon: str, kill: bool) -> float:
        """A daemon is away for a while; for how long, in seconds."""
        away_s = self.random.uniform(0.2, 3.0)
        if kill:
            self.cluster.kill(daemon, signal.SIGKILL)
        else:
            services.stop(self.cluster.sandbox, daemon)
        gone_ns = time.monotonic_ns()
        time.sleep(away_s)
        back_ns = time.monotonic_ns()
        self.cluster.start(daemon)
        if daemon == AGENT:
            young = gone_ns / 1e9 - self._agent_since_s < KNOWN_AFTER_S
            self.agent_starts += 0 if young else 1
            self._agent_since_s = time.monotonic()
            self._is_shut(gone_ns, back_ns)
        return away_s

    def _stopped(self, daemon: str) -> float:
        pid = self.cluster.pid(daemon)
        stopped_s = self.random.uniform(0.1, 3.0)
        os.kill(pid, signal.SIGSTOP)
        since_ns = time.monotonic_ns()
        try:
            time.sleep(stopped_s)
        finally:
            until_ns = time.monotonic_ns()
            os.kill(pid, signal.SIGCONT)
        if daemon == AGENT:
            self._is_shut(since_ns, until_ns)
        return stopped_s

    def _is_shut(self, begin_ns: int, end_ns: int) -> None:
        if end_ns > begin_ns + SHUT_WITHIN_NS:
            self.shut.append((begin_ns + SHUT_WITHIN_NS, end_ns))

    def kill_agent(self) -> str:
        return f"away for {self._without(AGENT, kill=True):.2f} s"

    def restart_agent(self) -> str:
        return f"away for {self._without(AGENT, kill=False):.2f} s"

    def stop_agent(self) -> str:
        return f"for {self._stopped(AGENT):.2f} s"

    def kill_controller(self) -> str:
        return f"away for {self._without(CONTROLLER, kill=True):.2f} s"

    def stop_controller(self) -> str:
        return f"for {self._stopped(CONTROLLER):.2f} s"

    # The operator's switch

    def off(self) -> int:
        """Throws it and waits until the agent has heard of it; when that was."""
        self._switch("off")
        self.switched_off += 1
        return time.monotonic_ns()

    def on(self, off_ns: int) -> None:
        """Throws it back."""
        until_ns = time.monotonic_ns()
        self._switch("on")
        self._is_shut(off_ns, until_ns)

    def _switch(self, to: str) -> None:
        """A controller that has just been started needs a moment."""
        self.cluster.wait(
            lambda: self.cluster.run("sfill", to).returncode == 0, GRACE_S, f"sfill {to}"
        )

    def off_and_on(self) -> str:
        off_s = self.random.uniform(0.5, 4.0)
        off_ns = self.off()
        time.sleep(off_s)
        self.on(off_ns)
        return f"for {off_s:.2f} s"

    def unfinished(self) -> list[int]:
        """Fill jobs that run or wait."""
        return [job for job in self.fills if self.cluster.state(job) in UNFINISHED]
