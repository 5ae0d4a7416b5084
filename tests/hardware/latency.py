"""How soon after a bubble begins a fill runs, and how late training starts, by GPU timestamps.

    python -m tests.hardware.latency --out FOLDER

On a GPU host, no Slurm; about 40 s. latency.c plays a training whose bubbles are of one kind after
the other, and a fill beside it; this process plays the agent with a site's default numbers, and
allows the fill and shuts it out in turn. Each kernel writes the GPU's clock at its begin and end.

  opening   training's last kernel ends -> the fill's first kernel begins
  closing   training's next launch call -> the fill's last kernel ends (0: it had ended by then)
  start     training's launch call -> its kernel begins; with fill, and with the fill shut out

The last two need the GPU's clock on the host's: they are compared before and after each run.
"""

from __future__ import annotations

import argparse
import dataclasses
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent.board import POLICY_IGNORE_TRAINING, Closed
from agent.policy import Tuning
from agent.settings import AgentSettings
from deploy.sandbox.simgpu.log_file import Kind, log_path, read_log
from tests.hardware.bed import FILL, Bed, ChildError, compiled, write_json
from tests.hardware.latency_figures import (
    Block,
    Clock,
    ClockPair,
    Iteration,
    Kernel,
    bubbles_of,
    figures,
)
from tests.unit.lending_agent import LendingAgent

KINDS = ("sync", "poll", "dry", "wait")
GOALS_P50_US = {"sync": 20, "poll": 20, "dry": 100, "wait": 30}
GOAL_P99_US = 500
CAUSES = {1: "host", 2: "tail", 3: "wait", 4: "communication"}
WARM_UP_S = 0.8
FILLED_S, SHUT_S, SETTLE_S = 0.5, 0.25, 0.02
START_S, END_S = 12.0, 5.0
HEAD = struct.Struct("<16Q")
ITERATION = struct.Struct("<8Q")
KERNEL = struct.Struct("<2Q")
FILL_BYTES = HEAD.size + KERNEL.size * (1 << 20)
TRAIN_BYTES = HEAD.size + ITERATION.size * (1 << 14)


def site_tuning() -> Tuning:
    """The gate's numbers where a site has set none."""
    fields = AgentSettings.model_fields
    names = [field.name for field in dataclasses.fields(Tuning)]
    return Tuning(**{name: fields[name].default for name in names})


class Program:
    """A role of latency.c and its file."""

    def __init__(
        self, bed: Bed, role: str, kind: str, seconds: float, size: int, socket_role: str
    ) -> None:
        self.file = bed.folder / f"latency-{kind}-{role}"
        with self.file.open("wb") as file:
            file.truncate(size)
        command = [str(compiled("latency")), role, kind, str(self.file), str(seconds)]
        if bed.simulated:
            command.append("simulated")
        self.process = subprocess.Popen(
            command,
            env=bed.environment(socket_role),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def head(self) -> tuple[int, ...]:
        with self.file.open("rb") as file:
            return HEAD.unpack(file.read(HEAD.size))

    def records(self, form: struct.Struct) -> list[tuple[int, ...]]:
        count = self.head()[0]
        with self.file.open("rb") as file:
            file.seek(HEAD.size)
            return list(form.iter_unpack(file.read(count * form.size)))

    def await_count(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self.head()[0] == 0:
            if self.process.poll() is not None or time.monotonic() > end:
                raise ChildError(f"{self.file.name} does not begin: {self.last_words()}")
            time.sleep(0.01)

    def finish(self, seconds: float) -> None:
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise ChildError(f"{self.file.name} does not end") from error
        if code != 0:
            raise ChildError(f"{self.file.name}: exit code {code}: {self.last_words()}")

    def last_words(self) -> str:
        self.stop()
        assert self.process.stderr is not None
        return (self.process.stderr.read().strip().splitlines() or [""])[-1]

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def alternate(agent: LendingAgent, training: Program, seconds: float) -> Iterator[Block]:
    """Allows the fill and shuts it out in turn; ends before the training does."""
    time.sleep(WARM_UP_S)
    end = time.monotonic() + seconds - WARM_UP_S - 0.1
    filled = True
    while training.process.poll() is None:
        length = FILLED_S if filled else SHUT_S
        if time.monotonic() + length > end:
            break
        agent.allow(Closed.OPEN if filled else Closed.OFF)
        time.sleep(SETTLE_S)
        begin = time.monotonic_ns()
        time.sleep(length - SETTLE_S)
        yield Block(begin, time.monotonic_ns(), filled)
        filled = not filled
    agent.allow()


def start_fill(bed: Bed, agent: LendingAgent, seconds: float) -> Program:
    """A fill that is past its start, which would take up many bubbles; held by the gate since."""
    page = agent.policy.memory.view
    page.flags |= POLICY_IGNORE_TRAINING
    fill = Program(bed, "fill", "-", seconds, FILL_BYTES, "gate")
    try:
        fill.await_count(START_S)
        time.sleep(0.2)
    finally:
        page.flags &= ~POLICY_IGNORE_TRAINING
    return fill


def causes_of(agent: LendingAgent, begin_ns: int) -> dict[str, int]:
    """Of the latest bubbles, as the monitor wrote them on its board."""
    if not agent.training:
        return {}
    board = agent.training[max(agent.training)].view
    found = Counter(
        CAUSES.get(bubble.cause, "unknown")
        for bubble in board.bubbles
        if bubble.seq and bubble.begin_ns >= begin_ns
    )
    return dict(found)


def times_by_gpu(training: Program, fill: Program) -> tuple[list[Iteration], list[Kernel], Any]:
    """What the kernels have written, on the host's clock."""
    head = training.head()
    clock = Clock(ClockPair(*head[2:5]), ClockPair(*head[5:8]))
    iterations = [
        Iteration(launch, clock.host_ns(first), clock.host_ns(last))
        for launch, _issued, first, _first_end, _begin, last, *_ in training.records(ITERATION)
    ]
    kernels = [
        Kernel(clock.host_ns(begin), clock.host_ns(end))
        for begin, end in fill.records(KERNEL)
        if begin and end and head[2] <= begin <= head[5]
    ]
    window_us = max(clock.begin.window_ns, clock.end.window_ns) / 1000
    first = clock.begin.gpu_ns - clock.begin.host_ns
    drift_us = (clock.end.gpu_ns - clock.end.host_ns - first) / 1000
    return iterations, kernels, {"window_us": window_us, "drift_us": drift_us}


def times_by_log(bed: Bed, training: Program) -> tuple[list[Iteration], list[Kernel], Any]:
    """The simulated GPU's log in their stead."""
    log = read_log(log_path(bed.state, 0))
    own = log.contexts_of(pids=[training.process.pid])
    others = log.contexts_of(jobs=[FILL])
    work = sorted(
        (op for op in log.operations if op.kind == Kind.KERNEL), key=lambda op: op.start_ns
    )
    ours = [op for op in work if op.context in own]
    each = training.head()[1]
    iterations = [
        Iteration(record[0], ours[i * each].start_ns, ours[i * each + each - 1].end_ns)
        for i, record in enumerate(training.records(ITERATION))
        if i * each + each <= len(ours)
    ]
    kernels = [Kernel(op.start_ns, op.end_ns) for op in work if op.context in others]
    return iterations, kernels, {"window_us": 0.0, "drift_us": 0.0}


def measured(
    bed: Bed, agent: LendingAgent, fill: Program, kind: str, seconds: float
) -> dict[str, Any]:
    """One kind of bubble."""
    training = Program(bed, "train", kind, seconds, TRAIN_BYTES, "monitor")
    try:
        training.await_count(START_S)
        begin_ns = time.monotonic_ns()
        blocks = list(alternate(agent, training, seconds))
        causes = causes_of(agent, begin_ns)
        training.finish(seconds + END_S)
        if fill.process.poll() is not None:
            raise ChildError(f"the fill has ended: {fill.last_words()}")
        by_log = bed.simulated
        iterations, kernels, clock = (
            times_by_log(bed, training) if by_log else times_by_gpu(training, fill)
        )
    finally:
        training.stop()
    kernels.sort(key=lambda kernel: kernel.begin_ns)
    found = figures(bubbles_of(iterations, kernels, blocks))
    return {"causes_on_board": causes, "clock": clock, **found}


def met(kind: str, row: dict[str, Any]) -> dict[str, bool | None]:
    """Which goals are met; None where nothing of it was seen."""
    found: dict[str, bool | None] = {}
    for what in ("opening", "closing"):
        p50, p99 = row[what]["p50_us"], row[what]["p99_us"]
        found[what] = None if p50 is None else p50 <= GOALS_P50_US[kind] and p99 <= GOAL_P99_US
    return found


def print_table(kinds: dict[str, Any]) -> None:
    names = ("opening", "closing", "start_filled", "start_shut")
    print(f"{'p50/p99, us':6} {'bubbles':>8} {'used':>6} {'filled':>6}", end="")
    print("".join(f"{name:>18}" for name in names), " goals, causes on the board")
    for kind, row in kinds.items():
        if "error" in row:
            print(f"{kind:11} error: {row['error']}")
            continue
        print(
            f"{kind:11} {row['bubbles']:8} {row['used_share']!s:>6} {row['filled_share']!s:>6}",
            end="",
        )
        spreads = (f"{row[name]['p50_us']} / {row[name]['p99_us']}" for name in names)
        print("".join(f"{text:>18}" for text in spreads), f" {row['goals_met']}", end="")
        print(f" {row['causes_on_board']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--driver", default="")
    parser.add_argument("--cuda", default="")
    parser.add_argument("--simulated", action="store_true", help="dry run on the simulated GPU")
    parser.add_argument("--seconds", type=float, default=7.0, help="of each kind")
    parser.add_argument("--total", type=float, default=38, help="no kind begins that ends later")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    options = parser.parse_args()
    deadline = time.monotonic() + options.total
    kinds: dict[str, Any] = {}
    tuning = site_tuning()
    result: dict[str, Any] = {
        "what": "gate latency by kind of bubble",
        "simulated": options.simulated,
        "driver": options.driver,
        "cuda": options.cuda,
        "tuning": vars(tuning),
        "kinds": kinds,
    }
    with Bed(simulated=options.simulated) as bed, bed.agent(tuning=tuning) as agent:
        fill = start_fill(bed, agent, options.total + 60)
        try:
            for position, kind in enumerate(options.kinds):
                left = (deadline - time.monotonic()) / (len(options.kinds) - position) - 1.5
                seconds = min(options.seconds, left)
                try:
                    if seconds < WARM_UP_S + FILLED_S + SHUT_S + 0.2:
                        raise ChildError("no time was left")
                    kinds[kind] = measured(bed, agent, fill, kind, seconds)
                    kinds[kind]["goals_met"] = met(kind, kinds[kind])
                except (ChildError, OSError, struct.error) as error:
                    kinds[kind] = {"error": str(error)}
                write_json(options.out, "latency.json", result)
        finally:
            fill.stop()
    print_table(kinds)
    whole = all("error" not in row for row in kinds.values())
    goals = all(
        value is not False for row in kinds.values() for value in row.get("goals_met", {}).values()
    )
    return 0 if whole and (options.simulated or goals) else 1


if __name__ == "__main__":
    sys.exit(main())
