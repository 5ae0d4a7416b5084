"""Kills, stops and restarts fills and daemons at random beside a training; prints one JSON.

    python -m tests.chaos --minutes N [--sandbox DIR | --gpus sim:1|real] [--seed S] [--out FILE]

Boots a sandbox of one node unless it is given a running one. As root. Ends with 1 when a check
fails.
"""

from __future__ import annotations

import argparse
import json
import pwd
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.sandbox.layout import load
from tests.chaos.run import new_run
from tests.chaos.verdict import checks
from tests.chaos.witness import Witness
from tests.chaos.workload import Real, Simulated
from tests.cluster.cluster import USERS, Cluster
from tests.cluster.conftest import down, up


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--minutes",
        type=float,
        required=True,
        help="from the training's start to the storm's end",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--sandbox", type=Path, help="folder of a running sandbox")
    where.add_argument("--gpus", default="sim:1", help="of a sandbox of its own: sim:1 or real")
    parser.add_argument("--seed", type=int, default=1, help="of the order of blows")
    parser.add_argument("--out", type=Path, help="file for the JSON as well")
    options = parser.parse_args(arguments)
    _make_users()
    with _sandbox(options.sandbox, options.gpus) as cluster:
        result = storm(cluster, options.minutes, options.seed)
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return 0 if result["ok"] else 1


def storm(cluster: Cluster, minutes: float, seed: int) -> dict[str, Any]:
    """One run and its verdict."""
    simulated = cluster.sandbox.simulated
    run = new_run(cluster, Simulated() if simulated else Real(), seed)
    began = time.monotonic()
    fault = ""
    found: dict[str, dict[str, Any]] = {}
    try:
        run.start_training(minutes)
        gpu = cluster.sandbox.folder / "gpu/state"
        minor = cluster.sandbox.gpus[0][0].minor
        witness = Witness(gpu, minor, run.host) if simulated else None
        run.go(witness)
        run.finish()
        found = checks(run, witness)
    except AssertionError as error:
        fault = str(error)
        cluster.cancel_all()
    return {
        "ok": not fault and all(check["ok"] for check in found.values()),
        "fault": fault,
        "minutes": minutes,
        "seconds": time.monotonic() - began,
        "seed": seed,
        "simulated": simulated,
        "checks": found,
        "fills": len(run.storm.fills),
        "blows": [{**blow, "at_s": round(blow["at_s"] - began, 2)} for blow in run.storm.told],
    }


def _make_users() -> None:
    for user in USERS:
        try:
            pwd.getpwnam(user)
        except KeyError:
            subprocess.run(["useradd", "--create-home", user], check=True)


@contextmanager
def _sandbox(given: Path | None, gpus: str) -> Iterator[Cluster]:
    if given is not None:
        yield _cluster(given)
        return
    folder = Path(tempfile.mkdtemp(prefix="sfill-chaos-", dir="/tmp"))
    folder.chmod(0o755)  # jobs of ordinary users read in it
    answer = up(folder, "--nodes", "1", "--gpus", gpus, "--no-web")
    if answer.returncode != 0:
        sys.exit(f"deploy/sandbox/up: {answer.stdout}{answer.stderr}")
    try:
        yield _cluster(folder)
    finally:
        answer = down(folder)
        print(f"chaos: logs are in {folder}/log {answer.stderr}", file=sys.stderr)


def _cluster(folder: Path) -> Cluster:
    files = folder / "files"
    files.mkdir(exist_ok=True)
    files.chmod(0o1777)
    return Cluster(load(folder), files)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
