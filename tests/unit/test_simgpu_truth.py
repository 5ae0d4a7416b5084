"""The reader of the simulated GPU's log computes bubbles, fill and waiting as defined."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.sandbox.simgpu.intervals import gaps, intersect, measure, subtract, union
from deploy.sandbox.simgpu.log_file import (
    Context,
    GpuLog,
    Kind,
    LogError,
    Operation,
    Switch,
    read_log,
)
from deploy.sandbox.simgpu.truth import main, truth
from tests.unit.simgpu_machine import Machine, finish, wait_line

TRAIN, FILL, OTHER = 1, 2, 3
US = 1000


def log_of(
    operations: list[tuple[int, int, int, int]],
    switches: list[tuple[int, int, int, int]] | None = None,
    kind: Kind = Kind.KERNEL,
) -> GpuLog:
    """operations: context, ready, start, end; switches: from, to, begin, end; microseconds."""
    log = GpuLog(0)
    for number, job in ((TRAIN, 10), (FILL, 20), (OTHER, 30)):
        log.contexts[number] = Context(number, number, 0, job, 0, f"program{number}")
    for i, (context, ready, start, end) in enumerate(operations):
        times = (ready * US, ready * US, start * US, end * US)
        log.operations.append(Operation(kind, 0, context, "k", 1, i + 1, *times, 0))
    for source, target, begin, end in switches or []:
        log.switches.append(Switch(source, target, begin * US, end * US))
    return log


def test_bubbles_are_gaps_of_a_tenth_of_a_millisecond_between_ready_and_done() -> None:
    log = log_of(
        [
            (TRAIN, 0, 0, 500),
            (TRAIN, 599, 599, 700),
            (TRAIN, 800, 950, 1000),
            (TRAIN, 2000, 2000, 2100),
        ]
    )
    found = truth(log, {TRAIN}, {FILL})
    assert found.bubbles == [(700 * US, 800 * US), (1000 * US, 2000 * US)]
    assert found.wall_ns == 2100 * US
    assert found.bubble_share == pytest.approx(1100 / 2100)
    assert found.filled_share == 0
    assert found.waited_ns == 0  # it waited from 800 to 950, but no fill had the GPU
    assert found.waited_any_ns == 150 * US


def test_only_kernels_of_the_fill_inside_bubbles_count_as_filling() -> None:
    log = log_of(
        [
            (TRAIN, 0, 0, 500),
            (FILL, 400, 630, 800),
            (OTHER, 400, 800, 900),
            (FILL, 400, 1430, 1600),
            (TRAIN, 1500, 1730, 2000),
        ],
        [
            (TRAIN, FILL, 500, 630),
            (FILL, OTHER, 800, 800),
            (OTHER, FILL, 1300, 1430),
            (FILL, TRAIN, 1600, 1730),
        ],
    )
    found = truth(log, {TRAIN}, {FILL})
    assert found.bubbles == [(500 * US, 1500 * US)]
    assert found.filled_ns == (170 + 70) * US
    assert found.fill[20].kernels == 2
    assert found.fill[20].gpu_time_ns == 340 * US
    assert found.fill[20].first_ns == 630 * US
    assert set(found.training) == {10}
    assert found.waited_ns == 230 * US  # fill's kernel to its end, then the switch back


def test_waiting_is_counted_once_and_not_while_other_training_work_runs() -> None:
    log = log_of(
        [
            (FILL, 0, 0, 300),
            (TRAIN, 100, 430, 600),
            (TRAIN, 200, 600, 700),
            (TRAIN, 650, 700, 800),
        ],
        [(FILL, TRAIN, 300, 430)],
    )
    found = truth(log, {TRAIN}, {FILL})
    assert found.waited_ns == found.waited_any_ns == 330 * US
    clipped = truth(log, {TRAIN}, {FILL}, begin_ns=200 * US, end_ns=400 * US)
    assert clipped.waited_ns == 200 * US
    assert clipped.waited_fraction == 1.0


def test_markers_are_not_training_work() -> None:
    log = log_of([(TRAIN, 0, 0, 100), (TRAIN, 1000, 1000, 1100)])
    log.operations.extend(log_of([(TRAIN, 500, 500, 501)], kind=Kind.MARK).operations)
    assert truth(log, {TRAIN}, {FILL}).bubbles == [(100 * US, 1000 * US)]


@pytest.mark.parametrize(("server", "waited_us"), [(0, 500), (7, 0)])
def test_a_stopped_collective_waits_unless_both_are_clients_of_one_mps_server(
    server: int, waited_us: int
) -> None:
    switches = [(TRAIN, FILL, 100, 230), (FILL, TRAIN, 400, 600)]
    log = log_of([(FILL, 100, 230, 400)], [] if server else switches)
    times = (0, 0, 0, 1000 * US)
    ran = 1000 * US if server else 500 * US
    collective = Operation(
        *(Kind.KERNEL, 8 + 128, TRAIN, "nccl", 1, 9, *times, 0), ran_ns=ran, lost_ns=3 * US
    )
    log.operations.append(collective)
    for number in (TRAIN, FILL):
        log.contexts[number] = Context(number, number, 0, 10 * number, 0, "p", server)
    found = truth(log, {TRAIN}, {FILL})
    assert found.waited_ns == waited_us * US
    assert found.slowed_ns == 3 * US
    with pytest.raises(ValueError, match="did any work"):
        truth(log, {TRAIN}, {FILL}, communication_is_bubble=True)


def test_a_training_that_did_nothing_is_an_error_and_so_is_a_foreign_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="GPU 0: none of the training contexts did any work"):
        truth(log_of([(FILL, 0, 0, 1)]), {TRAIN}, {FILL})
    path = tmp_path / "log-0.bin"
    path.write_bytes(b"x" * 5000)
    with pytest.raises(LogError, match="not the log of a simulated GPU"):
        read_log(path)
    assert main(["--state", str(tmp_path)]) == 2


def test_a_known_schedule_on_the_driver_gives_the_known_truth(tmp_path: Path) -> None:
    """A fill's kernel of 20 ms is on the GPU when training, idle for 10 ms, goes on."""
    machine = Machine(tmp_path)
    training = machine.start(
        "import sys\n"
        "gpu.launch('train', 1000); gpu.synchronize()\n"
        "print('bubble', flush=True); sys.stdin.readline()\n"
        "gpu.launch('train', 1000); gpu.synchronize()\n",
        job=10,
    )
    wait_line(training, "bubble")
    fill = machine.start(
        "gpu.launch('fill', 200000); print('runs', flush=True); gpu.synchronize()", job=20
    )
    wait_line(fill, "runs")
    out, err = training.communicate("\n", timeout=60)
    assert training.returncode == 0, out + err
    finish(fill)
    log = machine.log()
    found = truth(log, log.contexts_of(jobs=[10]), log.contexts_of(jobs=[20]))
    at = [op for op in log.operations if op.name]
    first, kernel, second = sorted(at, key=lambda op: op.start_ns)
    assert (first.name, kernel.name, second.name) == ("train", "fill", "train")
    assert found.bubbles == [(first.end_ns, second.launch_ns)]
    assert found.filled_ns == second.launch_ns - kernel.start_ns
    assert found.waited_ns == kernel.end_ns + 130_000 - second.launch_ns
    assert kernel.start_ns - kernel.launch_ns == 130_000


def test_a_marker_before_a_kernel_does_not_hide_how_long_the_kernel_waited(tmp_path: Path) -> None:
    """The marker itself is frozen while fill has the GPU; the kernel behind it was ready."""
    machine = Machine(tmp_path)
    training = machine.start(
        "import sys\n"
        "words = gpu.words(); s = gpu.stream()\n"
        "gpu.launch('train', 100, s); gpu.synchronize(s)\n"
        "print('bubble', flush=True); sys.stdin.readline()\n"
        "gpu.write(s, ctypes.addressof(words), 1); gpu.launch('train', 100, s)\n"
        "gpu.synchronize(s)\n",
        job=10,
    )
    wait_line(training, "bubble")
    fill = machine.start(
        "gpu.launch('fill', 300000); print('runs', flush=True); gpu.synchronize()", job=20
    )
    wait_line(fill, "runs")
    training.communicate("\n", timeout=60)
    finish(fill)
    log = machine.log()
    (kernel,) = [op for op in log.operations if op.name == "fill"]
    second = [op for op in log.operations if op.name == "train"][1]
    assert second.start_ns == kernel.end_ns + 131_000  # the switch and the marker
    assert second.ready_ns < kernel.end_ns
    assert 0 <= second.ready_ns - second.launch_ns <= 1000


times = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def points(intervals: list[tuple[int, int]]) -> set[int]:
    return {t for begin, end in intervals for t in range(begin, end)}


@given(times, times)
def test_interval_sets_agree_with_sets_of_points(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    left, right = union(a), union(b)
    assert points(left) == points(a)
    assert all(x[1] < y[0] for x, y in itertools.pairwise(left))
    assert points(intersect(left, right)) == points(a) & points(b)
    assert points(subtract(left, right)) == points(a) - points(b)
    assert points(gaps(left, 10, 50)) == set(range(10, 50)) - points(a)
    assert measure(left) == len(points(a))
