"""What a fault in a fill does to the training beside it, in each sharing mode.

    python -m tests.hardware.faults --out FOLDER

On a GPU host, as root, with nvcc and no Slurm; about 90 s. No gate stands between the two: this
is what the hardware and the driver contain. Beside a training that checks its own results, a fill
writes to an illegal address, fails a device-side assert, is killed with kernels in flight, or
never ends; under MPS the last two also with `terminate_client` before the kill, as the agent does
it. Prints and stores what each did to the training. Fails only where a fault of time slicing
reached the training, or something could not be tried.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.mps_daemon import MpsDaemon, MpsError

SOURCE = Path(__file__).with_name("faults.cu")
BEFORE_S = 1.0
AFTER_S = 1.5
ARMED_S = 10.0
FAULT_S = 5.0
IN_FLIGHT_S = 1.0
HUNG_S = 5.0
END_S = 10.0
MOST_S = 115.0


@dataclass(frozen=True)
class Fault:
    """A fault of a fill; `killed`: it needs a kill; `taken_off`: the server is told first."""

    name: str
    killed: bool = False
    taken_off: bool = False

    @property
    def label(self) -> str:
        after = ", after terminate_client" if self.taken_off else ""
        return f"{self.name}{', killed' if self.killed else ''}{after}"


FAULTS = (
    Fault("assert"),
    Fault("busy", killed=True),
    Fault("busy", killed=True, taken_off=True),
    Fault("endless", killed=True),
    Fault("endless", killed=True, taken_off=True),
    Fault("illegal"),
)


class Program:
    """A running role of faults.cu and the lines that it has printed, each with its time."""

    def __init__(self, command: list[str], environment: dict[str, str], user: str | None) -> None:
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            user=user,
            group=None if user is None else pwd.getpwnam(user).pw_gid,
        )
        self.lines: list[tuple[float, str]] = []
        self._new: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append((time.monotonic(), line.strip()))
            self._new.put(line)

    def says(self, word: str, seconds: float) -> bool:
        """Whether a line that begins so comes, or has come, within the time."""
        deadline = time.monotonic() + seconds
        while not any(text.startswith(word) for _, text in list(self.lines)):
            left = deadline - time.monotonic()
            if left <= 0 or (self.process.poll() is not None and self._new.empty()):
                return any(text.startswith(word) for _, text in list(self.lines))
            with contextlib.suppress(queue.Empty):
                self._new.get(timeout=min(left, 0.1))
        return True

    def iterations(self, since: float, until: float) -> list[float]:
        """Milliseconds of the iterations that ended in that time."""
        found = [
            (at, text.split()) for at, text in list(self.lines) if text.startswith("iteration")
        ]
        return [float(words[2]) for at, words in found if since <= at < until]

    @property
    def last(self) -> str:
        return self.lines[-1][1] if self.lines else ""

    def ended(self, seconds: float) -> int | None:
        """Its exit code, if it ends within the time."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Bench:
    """One sharing mode on one GPU: a training that is started anew when a fault has ended it."""

    def __init__(self, program: str, folder: Path, gpu: str, daemon: MpsDaemon | None) -> None:
        self._program = program
        self._stop = folder / "stop"
        self._daemon = daemon
        users = [each.pw_name for each in pwd.getpwall()]
        pair = ("sfilluser1", "sfilluser2")
        several = os.geteuid() == 0 and all(name in users for name in pair)
        if daemon is not None:
            several = several and daemon.several_users
        self._trainer: str | None = pair[0] if several else None
        self._filler: str | None = pair[1] if several else None
        self._environment = {"CUDA_VISIBLE_DEVICES": gpu}
        if daemon is not None:
            self._environment["CUDA_MPS_PIPE_DIRECTORY"] = str(daemon.pipe)
        self._training: Program | None = None

    def _train(self) -> Program:
        training = self._training
        if training is None or training.process.poll() is not None:
            self._stop.unlink(missing_ok=True)
            command = [self._program, "train", str(self._stop)]
            self._training = training = Program(command, self._environment, self._trainer)
            if not training.says("iteration", ARMED_S):
                raise RuntimeError(f"the training does not begin: {training.last}")
        return training

    def run(self, fault: Fault) -> dict[str, Any]:
        """One fault beside the training, and what the training did before, during and after."""
        training = self._train()
        begins = time.monotonic()
        time.sleep(BEFORE_S)
        environment = self._environment
        if self._daemon is not None:
            environment = {**environment, "CUDA_MPS_CLIENT_PRIORITY": "1"}
        began = time.monotonic()
        fill = Program([self._program, fault.name], environment, self._filler)
        try:
            armed = fill.says("armed", ARMED_S)
            taken_off = self._end(fault, fill)
        finally:
            fill.kill()
        over = time.monotonic()
        time.sleep(AFTER_S)
        if not training.iterations(over, time.monotonic()):
            training.ended(HUNG_S)
        now = time.monotonic()
        during, after = training.iterations(began, over), training.iterations(over, now)
        code = training.process.poll()
        hung = code is None and not after
        if hung:
            training.kill()
        return {
            "fault": fault.label,
            "fill": {
                "armed": armed,
                "exit_code": fill.process.returncode,
                "said": fill.last,
                **({"taken_off": taken_off} if fault.taken_off else {}),
            },
            "training": {
                "goes_on": code is None and not hung,
                "hung": hung,
                "exit_code": code,
                "said": training.last if code is not None else "",
                "iterations_during": len(during),
                "median_ms_before": median(training.iterations(begins, began)),
                "median_ms_during": median(during),
                "longest_ms": max([*during, *after], default=None),
                "median_ms_after": median(after),
            },
        }

    def _end(self, fault: Fault, fill: Program) -> bool:
        """Waits for a fault that ends its program, or kills it; whether the server was told."""
        if not fault.killed:
            fill.ended(FAULT_S)
            return False
        time.sleep(IN_FLIGHT_S)
        return bool(
            fault.taken_off
            and self._daemon is not None
            and self._daemon.terminate([fill.process.pid], 2.0)
        )

    def close(self) -> dict[str, Any] | None:
        """Ends the training as it ends by itself, and says whether its results are right."""
        training = self._training
        if training is None:
            return None
        self._stop.touch()
        code = training.ended(END_S)
        training.kill()
        return {"exit_code": code, "said": training.last, "iterations": len(training.lines) - 1}


def median(values: list[float]) -> float | None:
    """None of nothing."""
    return round(statistics.median(values), 3) if values else None


@contextlib.contextmanager
def mps_daemon(program: str, folder: Path, gpu: str) -> Iterator[MpsDaemon]:
    """The agent's own daemon, for several users where that works; it is stopped in any case."""
    failed = ""
    for several in (True, False):
        daemon = MpsDaemon(program, folder / f"mps{int(several)}", (gpu,), several)
        try:
            daemon.start(os.geteuid(), 10.0)
        except MpsError as error:
            failed = str(error)
            print(f"MPS {'for several users' if several else 'for one user'}: {failed}")
            continue
        try:
            yield daemon
        finally:
            daemon.stop(5.0)
        return
    raise MpsError(failed)


def run_mode(
    mode: str, program: str, folder: Path, gpu: str, daemon: MpsDaemon | None, deadline: float
) -> dict[str, Any]:
    """All faults of one mode. A fault that can't be tried says why."""
    bench = Bench(program, folder, gpu, daemon)
    results: list[dict[str, Any]] = []
    end: dict[str, Any] | None = None
    try:
        for fault in FAULTS:
            if fault.taken_off and daemon is None:
                continue
            if time.monotonic() > deadline:
                results.append({"fault": fault.label, "not_tried": "no time was left"})
                continue
            try:
                results.append(bench.run(fault))
            except (RuntimeError, OSError) as error:
                results.append({"fault": fault.label, "not_tried": str(error)})
            print(json.dumps({"mode": mode, **results[-1]}), flush=True)
    finally:
        end = bench.close()
    several = daemon.several_users if daemon is not None else None
    return {"mode": mode, "several_users": several, "faults": results, "end_of_training": end}


def contained(result: dict[str, Any]) -> bool:
    """Whether every fault was tried and left the training alone, whose results are right."""
    end = result["end_of_training"]
    return bool(
        all(each.get("training", {}).get("goes_on") for each in result["faults"])
        and end is not None
        and (end["exit_code"], end["said"]) == (0, "right")
    )


def first_gpu() -> str:
    """UUID of the first GPU."""
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--driver", default="")
    parser.add_argument("--gpu", help="its UUID (default: the first)")
    parser.add_argument("--program", help="faults.cu, built already")
    parser.add_argument("--mps-program", default="nvidia-cuda-mps-control")
    options = parser.parse_args()
    deadline = time.monotonic() + MOST_S
    modes: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        program = options.program or str(folder / "faults")
        if options.program is None:
            subprocess.run(["nvcc", "-O2", "-arch=native", "-o", program, str(SOURCE)], check=True)
        gpu = options.gpu or first_gpu()
        modes.append(run_mode("timeslice", program, folder, gpu, None, deadline))
        try:
            with mps_daemon(options.mps_program, folder, gpu) as daemon:
                modes.append(run_mode("mps", program, folder, gpu, daemon, deadline))
        except MpsError as error:
            modes.append({"mode": "mps", "not_tried": str(error), "faults": []})
    whole = {"what": "faults of a fill beside a training", "driver": options.driver, "modes": modes}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "faults.json").write_text(json.dumps(whole, indent=1) + "\n")
    print(json.dumps(whole, indent=1))
    tried = all("not_tried" not in each for mode in modes for each in [mode, *mode["faults"]])
    return 0 if tried and contained(modes[0]) else 1


if __name__ == "__main__":
    sys.exit(main())
