"""Several fills take turns on a simulated GPU: what each had of it, and training's wait, are told
once. The driver's log says what is true."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agent.shared_waits import SharedWaits
from tests.stolen_time import stolen_time
from tests.unit.gated_machine import Machine, gated_machine
from tests.unit.lending_agent import LendingAgent, wait_until

JOBS = (9001, 9002, 9003)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return gated_machine(tmp_path)


@pytest.mark.parametrize("jobs", [JOBS, JOBS[:1] * 3], ids=["jobs", "processes-of-one"])
def test_what_several_fills_tell_is_what_the_driver_saw(
    machine: Machine, jobs: tuple[int, ...]
) -> None:
    with LendingAgent(machine.socket, jobs=jobs) as agent, stolen_time() as stolen:
        training = machine.train(8, "--compute-us", "30000", "--stall-ms", "40")
        time.sleep(1)
        fills = []
        for member, job in enumerate(jobs):
            fills.append(machine.infer(5, "--kernel-us", "100", job=job))
            wait_until("its gate", lambda: len(agent.fills) == len(fills))
            if len(set(jobs)) == 1:
                face = agent.fills[member].view.gpus[0]
                face.member, face.members = member, len(jobs)
        for fill in fills:
            assert fill.wait(30) == 0
        training.terminate()
        training.wait(30)
        time.sleep(0.2)
        gpu_time_ns, uses, users = agent.gpu_time_ns(), agent.collect(), agent.users
    found = machine.truth(*set(jobs))
    truly = sum(op.end_ns - op.start_ns for op in machine.fill_work(*set(jobs)))
    assert found.filled_share >= 0.5 * stolen.given
    least_ns = 0.02 * found.bubble_ns  # a part that is worth counting
    assert all(found.fill[job].gpu_time_ns >= least_ns for job in set(jobs)), found.fill
    assert gpu_time_ns == pytest.approx(truly, rel=0.015)
    waits = SharedWaits()
    told = sum(
        waits.charge(("GPU", use.host_board_id, use.bubble_seq), user, use.intrusion_ns)
        for use, user in zip(uses, users, strict=True)
    )
    # As in test_gate_simulated: small waits to within a fiftieth of a per cent of the wall time.
    assert abs(told - found.waited_ns) <= max(0.1 * found.waited_ns, 0.0002 * found.wall_ns)
    assert sum(use.intrusion_ns for use in uses) > 1.5 * told  # each tells of the whole wait
