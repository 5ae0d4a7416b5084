"""How much later does a CUDA program start, and is its output the same, whatever is wrong with us?

    python -m tests.hardware.start --out FOLDER

Runs one small program (driver, context, a copy there and back) repeatedly on a real GPU: plain,
with no agent, with an agent that accepts and never answers, and with a broken library path. Prints
and stores medians in ms; fails when output or exit code differ or a start is over 100 ms later.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

LIBRARY = Path(__file__).resolve().parents[2] / "build/shim/libspecinf.so"
ROUNDS = 7
LATEST_MS = 100.0
PROGRAM = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
def check(result):
    assert result == 0, result
check(cuda.cuInit(0))
context = ctypes.c_void_p()
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
at = ctypes.c_uint64()
check(cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(1 << 20)))
there = (ctypes.c_ubyte * 4096)(*([7] * 4096))
back = (ctypes.c_ubyte * 4096)()
check(cuda.cuMemcpyHtoD_v2(at, there, ctypes.c_size_t(4096)))
check(cuda.cuMemcpyDtoH_v2(back, at, ctypes.c_size_t(4096)))
print("sum", sum(back))
"""


class SilentAgent:
    """Accepts every connection and never says a word."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(16)
        self._held: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            self._held.append(self._listener.accept()[0])


def run(environment: dict[str, str]) -> tuple[float, int, str]:
    """One run: milliseconds, exit code, standard output."""
    began = time.perf_counter()
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    )
    return (time.perf_counter() - began) * 1000, done.returncode, done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--driver", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        silent = Path(folder) / "silent.sock"
        agent = SilentAgent(silent)
        preload = {"LD_PRELOAD": str(LIBRARY), "SFILL_ROLE": "monitor"}
        cases: dict[str, dict[str, str]] = {
            "plain": {},
            "no_agent": {**preload, "SFILL_SOCKET": str(Path(folder) / "nobody.sock")},
            "silent_agent": {**preload, "SFILL_SOCKET": str(silent)},
            "broken_path": {"LD_PRELOAD": "/nowhere/libspecinf.so"},
        }
        runs: dict[str, list[tuple[float, int, str]]] = {name: [] for name in cases}
        run({})  # the driver is loaded and the GPU awake
        for _ in range(ROUNDS):
            for name, environment in cases.items():
                runs[name].append(run(environment))
        del agent
    median_ms = {name: statistics.median(each[0] for each in runs[name]) for name in cases}
    later_ms = {name: median_ms[name] - median_ms["plain"] for name in cases}
    expected = {(code, text) for _, code, text in runs["plain"]}
    same = all((code, text) in expected for each in runs.values() for _, code, text in each)
    result = {
        "what": "start of a small CUDA program",
        "driver": options.driver,
        "rounds": ROUNDS,
        "median_ms": median_ms,
        "later_ms": later_ms,
        "same_output_and_exit_code": same and len(expected) == 1,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "start.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 0 if result["same_output_and_exit_code"] and max(later_ms.values()) <= LATEST_MS else 1


if __name__ == "__main__":
    sys.exit(main())
