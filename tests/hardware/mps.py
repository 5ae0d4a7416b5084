"""Sharing by MPS through a sandbox's Slurm: training and fill of two users on one GPU.

    python -m tests.hardware.mps --sandbox DIR --out FOLDER

Sets the sandbox's agent to MPS with fills of anyone, runs a training and a fill beside it, and
stores: mode and reason, the clients of the training's MPS server, bubbles used, the training's
iterations; then, with the controller away, so that the agent has to end the fill by itself, that
the fill left the server before it was killed, and that the daemon went with its training. A second
training is left running: `down` must leave nothing of it either (tests/hardware/run.sh looks).
--simulated runs the simulated programs, for a try without a GPU.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, func, select

from agent.mps_daemon import MpsDaemon, MpsError
from db.models import BubbleUse, HostJob
from deploy.sandbox import daemons, services
from deploy.sandbox.jobs import Jobs
from deploy.sandbox.layout import Sandbox, load
from tests.bench.cluster import prepare, submit

USERS = ("sfilluser1", "sfilluser2")
HOST = ["--gres=gpu:1", "--fill-host=on", "-t", "5"]
FILL = ["--fill=mem=16G", "-t", "5"]
START_S, USES_S, END_S = 60, 60, 30
LEAST_USES = 50
WATCH_S = 5.0


def share_by_mps(sandbox: Sandbox, program: str) -> None:
    """Sets the agent of n1 to MPS and restarts it."""
    file = sandbox.node_conf("n1")
    own = {"share": "mps", "mps_for": "any", "mps_program": program}
    lines = [f'{key} = "{value}"' for key, value in own.items()]
    file.write_text("\n".join([file.read_text(), *lines, "evict_grace_s = 1.0", ""]))
    services.stop(sandbox, "sfilld-n1")
    daemons.start(sandbox, "sfilld-n1")
    services.wait_for(sandbox, "sfilld-n1", sandbox.agent_socket("n1").exists, 20.0)


class Pair:
    """A training and a fill of two users."""

    def __init__(self, sandbox: Path, *, simulated: bool) -> None:
        folder = sandbox / "mps-jobs"
        self.train, self.fill = (Jobs(sandbox, folder / user, user) for user in USERS)
        self.simulated = simulated
        for jobs in (self.train, self.fill):
            jobs.folder.mkdir(parents=True, exist_ok=True)
            prepare(jobs)

    def submit_training(self, name: str) -> int:
        if self.simulated:
            command = ["simtrain", "--seconds", "240", "--stall-ms", "40"]
            return self.train.submit(name, HOST, command)
        return submit(
            self.train, name, HOST, "deploy.examples.train_host_stall", "--seconds", "240"
        )

    def submit_fill(self) -> int:
        if self.simulated:
            options = [each.replace("16G", "4G") for each in FILL]
            return self.fill.submit("fill", options, ["siminfer", "--seconds", "240"])
        arguments = [f"--report={self.fill.folder / 'fill.txt'}", "--batch=16"]
        return submit(self.fill, "fill", FILL, "tests.bench.measured_fill", *arguments)

    def iterations_ms(self) -> list[float]:
        """The training's iterations so far, as it prints them."""
        lines = self.train.log("train").read_text().splitlines()
        words = [line.split() for line in lines if line.startswith("iteration")]
        return [float(each[2]) for each in words if len(each) > 2]


def uses_of(sandbox: Path, fill: int) -> tuple[int, float]:
    """Bubbles that a fill has used by the ledger, and its GPU time in seconds."""
    with create_engine(f"sqlite:///{sandbox}/db/sfill.db").connect() as connection:
        columns = select(func.count(), func.sum(BubbleUse.gpu_time_us))
        count, us = connection.execute(columns.where(BubbleUse.fill_slurm_job_id == fill)).one()
    return int(count), float(us or 0) / 1e6


def share_of(sandbox: Path, train: int) -> tuple[str | None, str | None]:
    """Mode of a host job and why, by the ledger."""
    with create_engine(f"sqlite:///{sandbox}/db/sfill.db").connect() as connection:
        columns = select(HostJob.share_mode, HostJob.share_reason)
        mode, reason = connection.execute(columns.where(HostJob.slurm_job_id == train)).one()
    return mode, reason


def clients_of(daemon: MpsDaemon) -> list[int] | str:
    """Process ids of the daemon's clients, or why they can't be told."""
    try:
        return sorted(daemon.clients())
    except MpsError as error:
        return str(error)


def going(sandbox: Sandbox, program: str, pair: Pair) -> tuple[int, int, MpsDaemon, dict[str, Any]]:
    """A training and a fill that both run, their daemon, and what is to be seen of them."""
    folder = sandbox.folder
    train = pair.submit_training("train")
    daemon = MpsDaemon(program, sandbox.run / f"mps-n1/{train}", (), True)

    def has_client() -> bool:
        return isinstance(clients := clients_of(daemon), list) and bool(clients)

    wanted = daemon.pipe.exists if pair.simulated else has_client
    pair.train.wait_for_output(train, "train", wanted, START_S)
    fill = pair.submit_fill()
    pair.fill.wait(
        lambda: uses_of(folder, fill)[0] >= LEAST_USES, USES_S, f"{LEAST_USES} bubbles used"
    )
    time.sleep(WATCH_S)
    mode, reason = share_of(folder, train)
    uses, gpu_time_s = uses_of(folder, fill)
    iterations = pair.iterations_ms()
    seen = {
        "share_mode": mode,
        "share_reason": reason,
        "mps_clients": clients_of(daemon),
        "uses": uses,
        "fill_gpu_time_s": gpu_time_s,
        "iterations": len(iterations),
        "median_ms": statistics.median(iterations) if iterations else None,
    }
    return train, fill, daemon, seen


def ended(sandbox: Sandbox, pair: Pair, train: int, daemon: MpsDaemon) -> dict[str, Any]:
    """How it ends while no controller requeues the fill: the agent has to get it off the GPU."""
    services.stop(sandbox, "sfillctld")
    log = sandbox.log / "sfilld-n1.out"
    pair.train.cancel(train)
    pair.train.wait(lambda: "killed:" in log.read_text(), END_S, "the fill to be killed")
    pair.train.wait(lambda: not daemon.folder.exists(), END_S, "the daemon to go")
    lines = log.read_text().splitlines()
    return {
        "taken_off_the_server": [line for line in lines if "mps_client:" in line],
        "killed": [line for line in lines if "killed:" in line],
        "daemon_gone": daemon.process_id() is None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sandbox", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--driver", default="")
    parser.add_argument("--mps-program", default=shutil.which("nvidia-cuda-mps-control"))
    parser.add_argument("--simulated", action="store_true")
    options = parser.parse_args()
    if options.mps_program is None:
        parser.error("this machine has no nvidia-cuda-mps-control")
    sandbox = load(options.sandbox)
    share_by_mps(sandbox, options.mps_program)
    pair = Pair(options.sandbox, simulated=options.simulated)
    train, _, daemon, seen = going(sandbox, options.mps_program, pair)
    result = {
        "what": "training and fill of two users under MPS",
        "driver": options.driver,
        **seen,
        **ended(sandbox, pair, train, daemon),
    }
    left = pair.submit_training("left")
    pipe = sandbox.run / f"mps-n1/{left}/pipe"
    pair.train.wait(pipe.exists, START_S, "the second training's daemon")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "mps.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    several = options.simulated or len(result["mps_clients"]) >= 2
    taken_off = options.simulated or result["taken_off_the_server"]
    right = result["share_mode"] == "mps" and several and taken_off and result["daemon_gone"]
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
