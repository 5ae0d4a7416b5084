"""MPS on the simulated GPU: clients of one server run side by side, and fall together."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.mps_daemon import MpsDaemon, is_alive
from deploy.sandbox.simgpu.log_file import GpuLog, Operation
from deploy.sandbox.simgpu.truth import truth
from tests.unit.simgpu_machine import Machine, finish, wait_line

REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


class Mps:
    """A control daemon in a pipe directory of its own, asked as the real one is."""

    def __init__(self, machine: Machine, pipe: Path, *options: str) -> None:
        self.environment = {**machine.environment, "CUDA_MPS_PIPE_DIRECTORY": str(pipe)}
        self.program = str(machine.built / "bin/simmps-control")
        self.pipe = pipe
        subprocess.run([self.program, "-d", *options], env=self.environment, check=True, timeout=10)
        deadline = time.monotonic() + 10
        while not (pipe / "nvidia-cuda-mps-control.pid").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def ask(self, command: str, code: int = 0) -> list[str]:
        done = subprocess.run(
            [self.program],
            input=command + "\n",
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=20,
        )
        assert done.returncode == code, done.stderr
        return done.stdout.split()

    def server(self) -> int:
        """The one server, once it is up."""
        deadline = time.monotonic() + 10
        while True:
            for server in self.ask("get_server_list"):
                if self.ask(f"get_server_status {server}") != ["INITIALIZING"]:
                    return int(server)
            assert time.monotonic() < deadline
            time.sleep(0.01)


@contextlib.contextmanager
def mps(machine: Machine, folder: Path, *options: str) -> Iterator[Mps]:
    daemon = Mps(machine, folder, *options)
    try:
        yield daemon
    finally:
        pid = int((folder / "nvidia-cuda-mps-control.pid").read_text())
        daemon.ask("quit -t 1")
        assert not (folder / "nvidia-cuda-mps-control.pid").exists()
        deadline = time.monotonic() + 5
        while is_alive(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not is_alive(pid)


def named(log: GpuLog, name: str) -> list[Operation]:
    return [op for op in log.operations if op.name == name]


def both(machine: Machine, pipe: Path, codes: list[str], **limits: str) -> GpuLog:
    """Runs clients that begin together, jobs 1 and 2; limits are those of the second."""
    begin = "import sys\nprint('up', flush=True); sys.stdin.readline()\n"
    clients = [
        machine.start(begin + code, job=job + 1, CUDA_MPS_PIPE_DIRECTORY=str(pipe), **more)
        for job, (code, more) in enumerate(zip(codes, ({}, limits), strict=True))
    ]
    for client in clients:
        wait_line(client, "up")
    for client in clients:
        assert client.stdin is not None
        client.stdin.write("\n")
        client.stdin.flush()
    for client in clients:
        finish(client)
    return machine.log()


@pytest.mark.parametrize(
    ("limits", "left", "right"),
    [
        ({}, 1 / 2, 1 / 2),
        ({"CUDA_MPS_CLIENT_PRIORITY": "1"}, 10 / 11, 1 / 11),
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "20"}, 4 / 5, 1 / 5),
    ],
)
def test_kernels_of_two_clients_share_the_gpu(
    tmp_path: Path, limits: dict[str, str], left: float, right: float
) -> None:
    machine = Machine(tmp_path)
    with mps(machine, tmp_path / "pipe"):
        codes = [f"gpu.launch('{name}', 200000); gpu.synchronize()" for name in ("left", "right")]
        log = both(machine, tmp_path / "pipe", codes, **limits)
    assert log.switches == []
    (a,), (b,) = named(log, "left"), named(log, "right")
    beside_ns = min(a.end_ns, b.end_ns) - max(a.start_ns, b.start_ns)
    assert beside_ns > 50_000_000
    for op, share, most in ((a, left, 1.0), (b, right, right if "ACTIVE" in str(limits) else 1.0)):
        alone_ns = op.end_ns - op.start_ns - beside_ns
        assert beside_ns * share + alone_ns * most == pytest.approx(200_000_000, rel=1e-5)
        assert op.ran_ns == op.end_ns - op.start_ns
        assert op.lost_ns == pytest.approx(beside_ns * (most - share), rel=1e-5)
    found = truth(log, log.contexts_of(jobs=[1]), log.contexts_of(jobs=[2]))
    assert found.waited_ns == 0  # no slice is waited for
    assert found.slowed_ns == a.lost_ns > 0


def test_communication_is_filled_under_mps_and_hardly_slows_the_fill(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with mps(machine, tmp_path / "pipe"):
        train = (
            f"s = gpu.stream(); gpu.launch('k', 1000, s); gpu.launch('{REDUCE}', 300000, s)\n"
            "gpu.launch('k', 1000, s); gpu.synchronize(s)\n"
        )
        fill = "for _ in range(90): gpu.launch('fill', 900)\ngpu.synchronize()\n"
        log = both(machine, tmp_path / "pipe", [train, fill])
    (reduce,) = named(log, REDUCE)
    assert reduce.end_ns - reduce.start_ns == 300_000_000
    beside = [
        op
        for op in named(log, "fill")
        if op.start_ns >= reduce.start_ns and op.end_ns <= reduce.end_ns
    ]
    assert len(beside) > 50
    assert all(op.end_ns - op.start_ns == 1_000_000 for op in beside)
    contexts = log.contexts_of(jobs=[1]), log.contexts_of(jobs=[2])
    assert truth(log, *contexts).bubbles == []
    found = truth(log, *contexts, communication_is_bubble=True)
    assert found.bubbles == [(reduce.start_ns, reduce.end_ns)]
    assert found.filled_ns > 50_000_000


def test_who_is_no_client_takes_turns_with_the_server_as_one(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with mps(machine, tmp_path / "pipe"):
        outside = machine.start(
            "import sys\nprint('up', flush=True); sys.stdin.readline()\n"
            "for _ in range(40): gpu.launch('outside', 500)\ngpu.synchronize()\n"
        )
        wait_line(outside, "up")
        assert outside.stdin is not None
        outside.stdin.write("\n")
        outside.stdin.flush()
        work = "for _ in range(60): gpu.launch('client', 500)\ngpu.synchronize()\n"
        log = both(machine, tmp_path / "pipe", [work, work])
        finish(outside)
    clients, others = named(log, "client"), named(log, "outside")
    assert (len(clients), len(others)) == (120, 40)
    for op in others:
        assert op.end_ns - op.start_ns == 500_000
        assert not any(c.start_ns < op.end_ns and op.start_ns < c.end_ns for c in clients)


def test_the_control_program_lists_and_terminates_clients(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with mps(machine, tmp_path / "pipe") as daemon:
        assert daemon.ask("get_server_list") == []
        daemon.ask(f"start_server -uid {os.getuid()}")
        server = daemon.server()
        assert daemon.ask(f"get_server_status {server}") == ["ACTIVE"]
        hold = "import sys\nprint('up', flush=True); sys.stdin.readline()\n"
        check = "gpu.launch('after', 10); gpu.synchronize()\n"
        gone = (
            "s = gpu.stream(); gpu.launch('sim_endless', 10, s)\n"
            "print('up', flush=True)\n"
            "assert gpu.cuda.cuStreamSynchronize(s) == 810\n"
            "assert gpu.cuda.cuCtxCreate_v2(ctypes.byref(ctypes.c_void_p()), 0, 0) == 810\n"
        )
        pipe = str(tmp_path / "pipe")
        stays = machine.start(hold + check, CUDA_MPS_PIPE_DIRECTORY=pipe)
        goes = machine.start(gone, CUDA_MPS_PIPE_DIRECTORY=pipe)
        wait_line(stays, "up")
        wait_line(goes, "up")
        listed = daemon.ask(f"get_client_list {server}")
        assert {int(pid) for pid in listed} == {stays.pid, goes.pid}
        daemon.ask(f"terminate_client {server} {goes.pid}")
        finish(goes)
        stays.communicate("\n", timeout=30)
        assert stays.returncode == 0
        daemon.ask("terminate_client 1 1", code=1)
        daemon.ask("get_client_list 1", code=1)
        daemon.ask("no_such_command", code=1)
        assert {c.server for c in machine.log().contexts.values()} == {server}


def test_the_agents_own_code_runs_the_simulated_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path)
    for key in ("SIMGPU_DIR", "SIMGPU_DEV"):
        monkeypatch.setenv(key, machine.environment[key])
    program = str(machine.built / "bin/simmps-control")
    daemon = MpsDaemon(program, tmp_path / "mps/0", ("GPU-0",), several_users=False)
    daemon.start(os.getuid(), 10)
    try:
        (server,) = daemon.servers()
        client = machine.start(
            "s = gpu.stream(); gpu.launch('sim_endless', 10, s); print('up', flush=True)\n"
            "assert gpu.cuda.cuStreamSynchronize(s) == 810\n",
            CUDA_MPS_PIPE_DIRECTORY=str(daemon.pipe),
        )
        wait_line(client, "up")
        assert daemon.clients() == {client.pid: server}
        assert daemon.terminate([client.pid], 5) == [client.pid]
        finish(client)
    finally:
        daemon.stop(5)
    assert not is_alive(server)
    assert daemon.process_id() is None


FAULTS = {
    "fault": "gpu.launch('sim_illegal_address', 1000)\nassert gpu.cuda.cuCtxSynchronize() == 700\n",
    "kill": "import os\nos.kill(os.getpid(), 9)\n",
}


@pytest.mark.parametrize("kind", ["fault", "kill", "server"])
def test_a_fault_in_one_client_is_a_fault_in_all_until_they_are_gone(
    tmp_path: Path, kind: str
) -> None:
    machine = Machine(tmp_path)
    pipe = str(tmp_path / "pipe")
    code = {"fault": 700, "kill": 719, "server": 806}[kind]
    with mps(machine, tmp_path / "pipe") as daemon:
        victim = machine.start(
            "import sys\ngpu.launch('sim_endless', 1); print('up', flush=True)\n"
            f"assert gpu.cuda.cuCtxSynchronize() == {code}\n"
            "print('failed', flush=True); sys.stdin.readline()\n",
            CUDA_MPS_PIPE_DIRECTORY=pipe,
        )
        wait_line(victim, "up")
        server = daemon.server()
        apart = machine.program("simtrain", "--seconds", 1, "--stall-ms", 5, "--compute-us", 2000)
        if kind == "server":
            os.kill(server, signal.SIGKILL)
        else:
            machine.start(
                "gpu.launch('sim_endless', 1)\n" * (kind == "kill") + FAULTS[kind],
                CUDA_MPS_PIPE_DIRECTORY=pipe,
            ).wait(30)
        wait_line(victim, "failed")
        if kind != "server":
            assert daemon.ask(f"get_server_status {server}") == ["FAULT"]
            late = machine.start("", CUDA_MPS_PIPE_DIRECTORY=pipe)
            assert "cuInit gave 807" in late.communicate(timeout=30)[1]
        victim.communicate("\n", timeout=30)
        assert victim.returncode == 0
        machine.run("gpu.launch('after', 10); gpu.synchronize()\n", CUDA_MPS_PIPE_DIRECTORY=pipe)
        finish(apart)  # who is no client goes on


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become two users")
@pytest.mark.parametrize("options", [(), ("-M",)])
def test_two_users_are_served_at_once_only_with_m(tmp_path: Path, options: tuple[str, ...]) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and folder != Path("/") and folder != Path("/tmp"):
            folder.chmod(0o755)
    machine = Machine(tmp_path)
    with mps(machine, tmp_path / "pipe", *options) as daemon:
        daemon.ask("start_server -uid 0")
        daemon.server()
        (machine.nodes / "nvidia0").chmod(0o666)
        machine.run(
            "gpu.launch('k', 10); gpu.synchronize()", CUDA_MPS_PIPE_DIRECTORY=str(daemon.pipe)
        )
        other = subprocess.run(
            [str(machine.built / "bin/siminfer"), "--items", "1"],
            env=daemon.environment,
            user=65534,
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert other.returncode == (0 if options else 1), other.stderr
    assert options or "CUDA_ERROR_MPS_CONNECTION_FAILED" in other.stderr


def test_processes_with_no_daemon_in_their_pipe_directory_run_as_ever(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.run(
        "gpu.launch('k', 10); gpu.synchronize()", CUDA_MPS_PIPE_DIRECTORY=str(tmp_path / "none")
    )
    (context,) = machine.log().contexts.values()
    assert context.server == 0
