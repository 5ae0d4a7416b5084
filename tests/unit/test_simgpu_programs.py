"""simtrain and siminfer behave as the programs that they stand for."""

import json
import signal
import time
from pathlib import Path

import pytest

from tests.unit.simgpu_machine import Machine, finish


def last_json(text: str) -> dict[str, float]:
    found = json.loads(text.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def test_training_takes_its_compute_and_stall_and_hardly_any_cpu(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    training = machine.program("simtrain", "--iterations", 12, job=4)
    lines = [line.split() for line in finish(training).splitlines()[:-1]]
    assert [(word, int(number)) for word, number, _ in lines] == [
        ("iteration", n + 1) for n in range(12)
    ]
    assert min(float(ms) for _, _, ms in lines) >= 100
    kernels = [op for op in machine.log().operations if op.name == "train_gemm"]
    assert len(kernels) == 12 * 300
    assert {c.job for c in machine.log().contexts.values()} == {4}


def test_an_idle_stall_takes_no_cpu(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    training = machine.program(
        "simtrain", "--iterations", 1, "--compute-us", 1000, "--stall-ms", 3000
    )
    time.sleep(1)
    ticks = []
    for _ in range(2):
        stat = Path(f"/proc/{training.pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks.append(int(stat[11]) + int(stat[12]))
        time.sleep(1)
    finish(training)
    assert ticks[1] - ticks[0] <= 1  # hundredths of a second


def test_training_prints_the_same_every_time_without_its_times(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus=2)
    options = ["--iterations", 5, "--compute-us", 3000, "--stall-ms", 2, "--no-times"]
    options += ["--comm-us", 300, "--devices", 2]
    outputs = {
        finish(machine.program("simtrain", *options, "--stream", stream))
        for stream in ("legacy", "own", "legacy")
    }
    assert len(outputs) == 1
    for gpu in (0, 1):
        collectives = [op for op in machine.log(gpu).operations if op.communication]
        assert [op.end_ns - op.start_ns for op in collectives] == [300_000] * 15
        assert all(op.name.startswith("nccl") for op in collectives)


def test_dry_style_lets_the_queue_run_dry_before_it_waits(tmp_path: Path) -> None:
    out = finish(
        Machine(tmp_path).program(
            *("simtrain", "--iterations", 5, "--compute-us", 10000),
            *("--stall-ms", 30, "--sync-style", "dry"),
        )
    )
    assert last_json(out)["median_ms"] >= 40


@pytest.mark.parametrize(("arguments", "code"), [(["--seconds", "30"], 143), ([], 0)])
def test_sigterm_ends_training_with_its_report(
    tmp_path: Path, arguments: list[str], code: int
) -> None:
    training = Machine(tmp_path).program("simtrain", *arguments)
    time.sleep(0.8)
    training.send_signal(signal.SIGTERM)
    out, _ = training.communicate(timeout=10)
    assert training.returncode == code
    assert last_json(out)["stopped"] is True


def test_killed_again_and_again_inference_repeats_nothing_and_loses_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (tmp_path / "in").write_text("".join(f'{{"text": "item {i}"}}\n' for i in range(300)))
    options = ["--input", tmp_path / "in", "--output", tmp_path / "out"]
    options += ["--progress", tmp_path / "progress", "--kernels-per-batch", 10]
    for kill_after in (0.15, 0.2, 0.25):
        process = machine.program("siminfer", *options)
        time.sleep(kill_after)
        process.send_signal(signal.SIGTERM if kill_after == 0.2 else signal.SIGKILL)
        process.communicate(timeout=10)
        if (tmp_path / "out").exists():
            with (tmp_path / "out").open("a") as file:
                file.write('{"item": 9')  # as if the kill had cut a line short
    report = last_json(finish(machine.program("siminfer", *options)))
    results = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [result["item"] for result in results] == list(range(300))
    assert len({result["result"] for result in results}) == 300
    assert json.loads((tmp_path / "progress").read_text()) == {"done": 300, "total": 300}
    assert report["done"] == 300
    assert report["items"] <= 300
    assert last_json(finish(machine.program("siminfer", *options)))["items"] == 0


@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [
        (
            "simtrain",
            ["--stall-ms", "x"],
            "--stall-ms must be a whole number from 0 to 1000000, not",
        ),
        ("simtrain", ["--sync-style", "wet"], '--sync-style must be sync or dry, not "wet"'),
        ("simtrain", ["--devices", "2"], "--devices 2: only 1 visible"),
        ("siminfer", ["--in-flight", "65"], "--in-flight must be a whole number from 1 to 64, not"),
        ("siminfer", ["--input", "/nowhere"], "cannot read --input /nowhere: No such file"),
        ("siminfer", ["extra"], 'unexpected argument "extra"'),
    ],
)
def test_bad_options_get_one_sentence(
    tmp_path: Path, program: str, arguments: list[str], message: str
) -> None:
    process = Machine(tmp_path).program(program, *arguments)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 2
    assert message in err
    assert len(err.splitlines()) == 1
