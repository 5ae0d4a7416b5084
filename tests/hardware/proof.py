"""With the gate shut for 2 s, does anything of a fill run? A GPU-written counter says it.

    python -m tests.hardware.proof --out FOLDER

On a GPU host, no Slurm; about 90 s. A path is one way to the GPU (a driver function: paths.c; a
framework: proof_frameworks.py), gone again and again by a fill of its own. What it does shows in
memory that the GPU writes and this process reads. Several run at once, each with a gate of its
own. The gate is shut; from 100 ms later on, until it is opened again, that memory must stand still,
while the program is seen to stand in the call under test. Before and afterwards it must move.
What is hooked and not tried here, and why, is in paths_not_tried.txt.

  proven      all of that
  leaks       something moved while the gate was shut, or the call came back
  not proven  it did not move before or after, or the program never stood in the call
  absent      no such function in this driver, or the framework is not installed
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.board import Closed
from tests.hardware.bed import PROGRAMS, Bed, compiled, write_json
from tests.hardware.proof_page import WHERE_BEHIND, WHERE_CALL, Page
from tests.unit.lending_agent import LendingAgent

SHUT_S = 2.0
IN_FLIGHT_S = 0.1
MOVES_S = 1.5
LOOK_S = 0.004
ATTEMPTS = 3
WAVE = 20
MEMORY_LIMIT_BYTES = 32 << 30  # the programs of a wave are one job to the agent, and share it
ABSENT_CODE = 3
MORE_WAYS = (
    "cuLaunchKernel/null",
    "cuLaunchKernel/address",
    "cuLaunchKernel_ptsz/address",
    "cuLaunchKernel/linked",
    "cuLaunchKernelEx/address",
    "cuGraphLaunch/address",
    "cuMemcpyHtoDAsync_v2/address",
    "cuMemcpyDtoH_v2/address",
    "cuMemsetD32Async/address",
)
FRAMEWORKS = (
    "torch-eager",
    "torch-compile",
    "torch-graph",
    "triton",
    "cublas",
    "cudnn",
    "cupy",
    "jax",
    "nccl",
)


@dataclass
class Watched:
    """One path's program and what was seen of it."""

    name: str
    trace: str
    page: Page
    process: subprocess.Popen[str]
    status: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    def running(self) -> bool:
        """Alive and without a verdict."""
        if not self.status and self.process.poll() is not None:
            self.ended()
        return not self.status

    def ended(self) -> None:
        """Finds out why its program is gone."""
        out, err = self.process.communicate()
        words = json.loads(out.splitlines()[-1]) if out.strip().startswith("{") else {}
        last = (err.strip().splitlines() or [""])[-1]
        gone = "absent" in words or self.process.returncode == ABSENT_CODE
        self.status = "absent" if gone else "not proven"
        self.facts["why"] = words.get("absent", last or f"exit code {self.process.returncode}")

    def stop(self) -> None:
        self.page.words.stop = 1
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def as_json(self) -> dict[str, Any]:
        return {"path": self.name, "trace": self.trace, "status": self.status, **self.facts}


class Wave:
    """Programs that run at once under one agent, and the shutting of their gates."""

    def __init__(self, bed: Bed, agent: LendingAgent, environment: dict[str, str]) -> None:
        self._bed = bed
        self._agent = agent
        self._environment = environment
        self.paths: list[Watched] = []

    def start(self, name: str, trace: str, command: Sequence[str]) -> None:
        """`command` gets the file's name as its last word but flags for the dry run."""
        file = self._bed.folder / f"page-{len(list(self._bed.folder.glob('page-*')))}"
        page = Page(file, create=True)
        words = [*command, str(file), *(["simulated"] if self._bed.simulated else [])]
        process = subprocess.Popen(
            words,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.paths.append(Watched(name, trace, page, process))

    def _running(self) -> list[Watched]:
        return [path for path in self.paths if path.running()]

    def _unsettled(self) -> list[Watched]:
        """Those that have neither stood in their call nor moved while shut."""
        settled = ("stood_in_call", "changes_while_shut", "returns_while_shut")
        return [p for p in self._running() if not any(p.facts.get(key) for key in settled)]

    def await_motion(self, seconds: float, key: str, least: int = 2) -> None:
        """Until each has come back some times more and its memory has changed; notes whether."""
        at_first = {path.name: (path.page.words.returned, path.page.seen()) for path in self.paths}
        end = time.monotonic() + seconds
        for path in self.paths:
            path.facts[key] = False
        while time.monotonic() < end:
            waiting = [path for path in self._running() if not path.facts[key]]
            if not waiting:
                return
            for path in waiting:
                times, seen = at_first[path.name]
                more = path.page.words.returned >= times + least
                path.facts[key] = more and path.page.seen() != seen
            time.sleep(LOOK_S)

    def shut(self, seconds: float) -> None:
        """Shuts all gates for so long and notes what moved after the time for work in flight."""
        tested = self._unsettled()
        self._agent.allow(Closed.OFF)
        time.sleep(IN_FLIGHT_S)
        returned = {p.name: p.page.words.returned for p in tested}
        last = {p.name: p.page.seen() for p in tested}
        changes = dict.fromkeys(last, 0)
        end = time.monotonic() + seconds - IN_FLIGHT_S
        while time.monotonic() < end:
            for path in tested:
                now = path.page.seen()
                changes[path.name] += now != last[path.name]
                last[path.name] = now
            time.sleep(LOOK_S)
        for path in tested:
            words = path.page.words
            moved = {"changes": changes[path.name], "returns": words.returned - returned[path.name]}
            for what, count in moved.items():
                key = f"{what}_while_shut"
                path.facts[key] = path.facts.get(key, 0) + count
            path.facts["stood_in_call"] = (
                words.where == WHERE_CALL and words.tried == words.returned + 1
            )
            path.facts["where"] = words.where
        self._agent.allow()

    def prove(self, shut_s: float, ready_by: float) -> None:
        """All of it; every path has a status afterwards."""
        self.await_motion(ready_by - time.monotonic(), "moved_before", least=3)
        for attempt in range(ATTEMPTS):
            if not self._unsettled():
                break
            if attempt:  # held elsewhere: the next time it may be in the call
                time.sleep(0.1)
            self.shut(shut_s)
            time.sleep(0.05)
        self.await_motion(MOVES_S, "moved_after")
        for path in self._running():
            path.status = verdict(path.facts)

    def stop(self) -> None:
        for path in self.paths:
            path.stop()
            path.status = path.status or "not proven"


def verdict(facts: dict[str, Any]) -> str:
    """What was seen, in a word."""
    if facts.get("changes_while_shut") or facts.get("returns_while_shut"):
        return "leaks"
    if facts.get("where") == WHERE_BEHIND:  # each time: the call under test was let through
        return "leaks"
    wanted = ("moved_before", "stood_in_call", "moved_after")
    return "proven" if all(facts.get(key) for key in wanted) else "not proven"


def linked_program() -> Path:
    """paths.c with the driver as a library that it needs, as the linker would have it."""
    stub = PROGRAMS / "stub"
    if not (PROGRAMS / "paths-linked").exists():
        stub.mkdir(parents=True, exist_ok=True)
        (stub / "stub.c").write_text("int cuLaunchKernel(void) { return 1; }\n")
        library = stub / "libcuda.so.1"
        command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library)]
        subprocess.run([*command, str(stub / "stub.c")], check=True)
    flags = ("-DLINKED", "-Wl,--no-as-needed", str(stub / "libcuda.so.1"))
    return compiled("paths", "paths_calls", target="paths-linked", flags=flags)


def driver_paths() -> list[tuple[str, str]]:
    """Name and trace of every path of paths.c."""
    program = str(compiled("paths", "paths_calls"))
    text = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout
    traces = dict(line.split() for line in text.splitlines())
    more = {name: traces[name.split("/")[0]] for name in MORE_WAYS}
    return [*traces.items(), *more.items()]


def prove_driver(
    bed: Bed, paths: list[tuple[str, str]], shut_s: float, deadline: float, found: list[Any]
) -> None:
    """The paths of paths.c, some at a time."""
    plain = linked = compiled("paths", "paths_calls")
    try:
        linked = linked_program()
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"no linked program: {error}")  # the plain one says that it is not, in its place
    longest_s = 0.0
    for first in range(0, len(paths), WAVE):
        began = time.monotonic()
        names = paths[first : first + WAVE]
        if began + longest_s > deadline:
            found += [
                {"path": n, "trace": t, "status": "not proven", "why": "no time was left"}
                for n, t in names
            ]
            continue
        with bed.agent(ignore_training=True, memory_limit_bytes=MEMORY_LIMIT_BYTES) as agent:
            wave = Wave(bed, agent, bed.environment("gate"))
            try:
                for name, trace in names:
                    program = linked if name.endswith("/linked") else plain
                    wave.start(name, trace, [str(program), name])
                    time.sleep(0.02)
                wave.prove(shut_s, min(deadline, time.monotonic() + 15))
            finally:
                wave.stop()
                found += [path.as_json() for path in wave.paths]
        longest_s = max(longest_s, time.monotonic() - began)


class FrameworkWave:
    """The frameworks: started first, since they take long, and proven last."""

    def __init__(self, bed: Bed, names: Sequence[str]) -> None:
        self._agent = bed.agent(ignore_training=True, memory_limit_bytes=MEMORY_LIMIT_BYTES)
        self.wave = Wave(bed, self._agent, bed.environment("gate") | {"PYTHONUNBUFFERED": "1"})
        for name in names:
            command = [sys.executable, "-m", "tests.hardware.proof_frameworks", name]
            self.wave.start(name, "framework", command)

    def prove(self, shut_s: float, deadline: float) -> list[dict[str, Any]]:
        try:
            self.wave.prove(shut_s, deadline)
        finally:
            self.wave.stop()
            self._agent.die()
        return [path.as_json() for path in self.wave.paths]


def print_table(result: dict[str, Any]) -> None:
    for row in result["paths"]:
        more = "" if row["status"] == "proven" else f"  {row.get('why') or row}"
        print(f"{row['status']:10} {row['path']:42} {row['trace']}{more}")
    print("versions:", result["versions"])
    print("count:", result["count"])


def collect_versions(python: str) -> dict[str, str]:
    """What is installed, by the interpreter that runs the frameworks."""
    code = (
        "import importlib.metadata as m, json\n"
        "d = {x.metadata['Name']: x.version for x in m.distributions()}\n"
        "w = ('torch', 'triton', 'jax', 'jaxlib', 'cupy-cuda13x', 'nvidia-cublas',"
        " 'nvidia-cudnn-cu13', 'nvidia-nccl-cu13')\n"
        "print(json.dumps({k: d[k] for k in w if k in d}))"
    )
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        return {}
    found: dict[str, str] = json.loads(done.stdout) if done.returncode == 0 else {}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--driver", default="")
    parser.add_argument("--cuda", default="")
    parser.add_argument("--simulated", action="store_true", help="dry run on the simulated GPU")
    parser.add_argument("--shut", type=float, default=SHUT_S, help="seconds")
    parser.add_argument("--total", type=float, default=85, help="seconds for all")
    parser.add_argument("--only", nargs="*", help="these paths")
    options = parser.parse_args()
    began = time.monotonic()
    found: list[dict[str, Any]] = []
    result: dict[str, Any] = {
        "what": "nothing of a fill runs while its gate is shut",
        "simulated": options.simulated,
        "driver": options.driver,
        "cuda": options.cuda,
        "versions": collect_versions(sys.executable),
        "shut_s": options.shut,
        "paths": found,
    }

    def wanted(name: str) -> bool:
        return options.only is None or name in options.only

    def store() -> None:
        states = [row["status"] for row in found]
        result["count"] = {state: states.count(state) for state in sorted(set(states))}
        write_json(options.out, "proof.json", result)

    with Bed(simulated=options.simulated) as bed:
        frameworks = FrameworkWave(bed, [name for name in FRAMEWORKS if wanted(name)])
        try:
            paths = [each for each in driver_paths() if wanted(each[0])]
            prove_driver(bed, paths, options.shut, began + options.total - 25, found)
            store()
        finally:
            found += frameworks.prove(options.shut, began + options.total - 3 * options.shut - 3)
            store()
    print_table(result)
    good = {"proven", "absent"}
    return 0 if found and all(row["status"] in good for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
