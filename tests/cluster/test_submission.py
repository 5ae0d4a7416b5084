"""What sbatch, srun and salloc say to users: bad requests are refused at once, good ones routed."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import USERS, Cluster

USER = USERS[0]
# "sbatch: error: Batch job submission failed: Unspecified error" follows what job_submit.lua says.
SLURMS_OWN_LINE = "Unspecified error"


def refuse(cluster: Cluster, *command: str) -> str:
    """The one sentence with which a submission ends; nothing may have been queued."""
    answer = cluster.run(*command, user=USER)
    lines = [line for line in answer.stderr.splitlines() if SLURMS_OWN_LINE not in line]
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert len(lines) == 1, answer.stderr
    assert cluster.check("squeue", "-h", "-a", "-u", USER) == ""
    return lines[0].partition("error: ")[2]


def accept(cluster: Cluster, *options: str) -> dict[str, str]:
    """Record of a held job that was submitted with these options."""
    return cluster.job(cluster.submit("--hold", *options, script="true"))


BAD = [
    # What the option itself says.
    ("--fill=mem=banana", "mem=banana", "K, M, G or T"),
    ("--fill=mem=10000G", "mem=10000G", "the most is mem=24G"),
    ("--fill=mem=", "mem=", "as in mem=16G"),
    ("--fill=", "empty", "mem=SIZE"),
    ("--fill=memory=16G", "'memory'", "mem=SIZE"),
    ("--fill=mem=1G,mem=2G", "mem=", "once"),
    ("--fill=mem=1G,colour=red", "'colour'", "mem=SIZE"),
    ("--fill-host=maybe", "'maybe'", "off, observe or on"),
    ("--fill-host=on,slowdown=90%", "slowdown=90%", "from 0.01 to 20"),
    ("--fill-host=on,share=both", "share=both", "share=timeslice or share=mps"),
    ("--fill-host=observe,mem=1G", "mem=", "'on' only"),
    ("--fill --fill-host", "--fill-host", "leave one out"),
    # What it asks together with others.
    ("--fill --gres=gpu:1", "--gres=gpu", "--fill=mem=SIZE"),
    ("--fill --gpus=1", "--gpus", "--fill=mem=SIZE"),
    ("--fill --gpus-per-node=1", "--gpus", "--fill=mem=SIZE"),
    ("--fill -n1 --gpus-per-task=1", "--gpus", "--fill=mem=SIZE"),
    ("--fill --cpus-per-gpu=1", "per-gpu", "--fill=mem=SIZE"),
    ("--fill --gres=fill:1", "--gres=fill", "--fill=mem=SIZE"),
    ("--fill -p train", "-p train", "partition fill"),
    ("--fill -p train,fill", "-p train,fill", "partition fill"),
    ("--fill --exclusive", "--exclusive", "leave it out"),
    ("--fill=mem=25G", "mem=25G", "the most is mem=24G"),
    ("--fill-host", "--fill-host", "--gres=gpu:N"),
    ("--fill-host=on,mem=4G", "--fill-host", "--gres=gpu:N"),
    ("--fill-host --gres=gpu:0", "--fill-host", "--gres=gpu:N"),
    ("--fill-host --gpus=0", "--fill-host", "--gres=gpu:N"),
    # By hand.
    ("-p fill", "-p fill", "--fill=mem=SIZE"),
    ("-p train,fill", "-p train,fill", "--fill=mem=SIZE"),
    ("--gres=fill:1", "gres/fill", "--fill=mem=SIZE"),
    ("-p train,fill --gres=fill:1", "-p train,fill", "--fill=mem=SIZE"),
    ("--gres=gpu:1,fill:1", "gres/fill", "--fill=mem=SIZE"),
    ("--gres=nic:1", "gres/nic", "leave it out"),
]


@pytest.mark.parametrize(("options", "names", "allowed"), BAD)
def test_a_bad_request_is_refused_with_one_sentence(
    cluster: Cluster, options: str, names: str, allowed: str
) -> None:
    sentence = refuse(cluster, "sbatch", *options.split(), "--wrap=true")
    assert names in sentence
    assert allowed in sentence


@pytest.mark.parametrize("command", ["srun", "salloc"])
@pytest.mark.parametrize("options", ["--fill=mem=banana", "--fill --fill-host"])
def test_srun_and_salloc_refuse_like_sbatch(cluster: Cluster, command: str, options: str) -> None:
    assert refuse(cluster, command, *options.split(), "true").startswith("--fill")


def test_the_variables_are_checked_and_the_option_wins(cluster: Cluster) -> None:
    def with_variable(setting: str, *options: str) -> list[str]:
        return ["env", setting, "sbatch", *options, "--wrap=true"]

    sentence = refuse(cluster, *with_variable("SFILL_FILL=mem=banana"))
    assert sentence.startswith("SFILL_FILL: mem=banana")
    sentence = refuse(cluster, *with_variable("SFILL_FILL_HOST=maybe"))
    assert sentence.startswith("SFILL_FILL_HOST: ")
    sentence = refuse(cluster, *with_variable("SFILL_FILL=mem=2G", "--gres=gpu:1"))
    assert sentence.startswith("SFILL_FILL: a fill job is lent its GPU")

    options = ["--hold", "--parsable", "--output=/dev/null"]
    job_id = cluster.check(*with_variable("SFILL_FILL=mem=3G", *options), user=USER).strip()
    assert cluster.job(int(job_id))["TresPerNode"].endswith("fill:3")
    won = with_variable("SFILL_FILL=mem=banana", "--fill=mem=2G", *options)
    assert cluster.job(int(cluster.check(*won, user=USER)))["TresPerNode"].endswith("fill:2")
    profile = with_variable("SFILL_FILL_HOST=on", *options)
    assert cluster.job(int(cluster.check(*profile, user=USER)))["Partition"] == "train"


@pytest.mark.parametrize("command", ["sbatch", "srun", "salloc"])
def test_the_options_stand_in_the_help(cluster: Cluster, command: str) -> None:
    text = cluster.check(command, "--help")
    assert "--fill=mem=SIZE" in text
    assert "--fill-host=off|observe|on[,mem=SIZE][,slowdown=PCT][,share=timeslice|mps]" in text
    assert "SFILL_FILL_HOST" in text


@pytest.mark.parametrize(
    ("option", "slots"), [("--fill", 16), ("--fill=mem=1500M", 2), ("--fill=mem=24G", 24)]
)
def test_a_fill_becomes_a_job_of_the_fill_partition(
    cluster: Cluster, option: str, slots: int
) -> None:
    job = accept(cluster, option)
    assert job["Partition"] == "fill"
    assert job["TresPerNode"].replace("/", ":") == f"gres:fill:{slots}"
    assert job["NumNodes"] in ("1", "1-1")
    assert job["Requeue"] == "1"


def test_an_array_of_fills_is_routed_alike(cluster: Cluster) -> None:
    job = accept(cluster, "--fill=mem=2G", "--array=1-3")
    assert (job["Partition"], job["ArrayTaskId"]) == ("fill", "1-3")
    assert job["TresPerNode"].endswith("fill:2")


def components(cluster: Cluster, answer: str) -> list[str]:
    """Partition and slots of each component of a heterogeneous job, in order."""
    records = cluster.check("scontrol", "-o", "show", "job", answer.strip()).splitlines()
    fields = [dict(word.partition("=")[::2] for word in record.split()) for record in records]
    fields.sort(key=lambda each: int(each["HetJobOffset"]))
    return [each["Partition"] + each.get("TresPerNode", "")[-2:] for each in fields]


HETEROGENEOUS = [
    (("--fill=mem=2G", "--fill=mem=3G"), ["fill:2", "fill:3"]),
    (("--fill=mem=2G", "--fill=mem=2G"), ["fill:2", "fill:2"]),
    (("--fill=mem=2G", "-n1", "--fill=mem=3G"), ["fill:2", "train", "fill:3"]),
    (("--gres=gpu:1 --fill-host=on", "--fill=mem=2G"), ["train:1", "fill:2"]),
    (("--fill=mem=2G", "--gres=gpu:1 --fill-host=on"), ["fill:2", "train:1"]),
]


@pytest.mark.parametrize(("options", "expected"), HETEROGENEOUS)
@pytest.mark.parametrize("how", ["script", "command line"])
def test_each_component_of_a_heterogeneous_job_asks_for_itself(
    cluster: Cluster, how: str, options: tuple[str, ...], expected: list[str]
) -> None:
    script = cluster.files / "heterogeneous.sh"
    if how == "script":
        lines = "\n#SBATCH hetjob\n".join(f"#SBATCH {each}" for each in options)
        words = []
    else:
        lines = ""
        words = shlex.split(" : ".join(options))
    script.write_text(f"#!/bin/bash\n{lines}\ntrue\n")
    command = ["sbatch", "--parsable", "--hold", "--output=/dev/null", *words, str(script)]
    assert components(cluster, cluster.check(*command, user=USER)) == expected


@pytest.mark.parametrize(
    "options",
    [
        "--gres=gpu:2 --exclusive --mem=0",
        "--gres=gpu:2 --exclusive --mem=0 --fill-host=on,mem=8G,slowdown=0.5%",
        "--gpus=1 --fill-host",
        "--gpus-per-node=1 --fill-host=off",
        "-n1 --gpus-per-task=1 --fill-host=observe",
    ],
)
def test_a_training_is_taken_as_it_came(cluster: Cluster, options: str) -> None:
    plain = [word for word in options.split() if not word.startswith("--fill-host")]
    fields = ("Partition", "TresPerNode", "TresPerJob", "TresPerTask", "OverSubscribe", "NumNodes")
    asked, alone = (accept(cluster, *words) for words in (options.split(), plain))
    assert [asked.get(name) for name in fields] == [alone.get(name) for name in fields]


def test_no_job_becomes_or_stops_being_a_fill_later(cluster: Cluster) -> None:
    fill = accept(cluster, "--fill=mem=2G")
    train = accept(cluster, "--gres=gpu:1")
    for job, changes in (
        (fill, ["Partition=train", "Gres=gpu:1", "Gres=fill:1", "OverSubscribe=no"]),
        (train, ["Partition=fill", "Partition=train,fill", "Gres=fill:1", "Gres=nic:1"]),
    ):
        for change in changes:
            answer = cluster.run("scontrol", "update", f"JobId={job['JobId']}", change, user=USER)
            assert answer.returncode != 0, change
        cluster.check("scontrol", "update", f"JobId={job['JobId']}", "TimeLimit=5", user=USER)
        now = cluster.job(int(job["JobId"]))
        for name in ("Partition", "TresPerNode", "OverSubscribe"):
            assert now[name] == job[name]


@pytest.fixture
def failing_script(cluster: Cluster) -> Iterator[None]:
    """job_submit.lua with a fault in what each of its checks uses."""
    script = cluster.sandbox.etc / "job_submit.lua"
    sound = script.read_text()
    at = sound.index("local function submit(")
    fault = "check_closed = function() error('injected') end\n"
    _replace(script, sound[:at] + fault + sound[at:])
    yield
    _replace(script, sound)
    assert accept(cluster, "--fill=mem=1G")["Partition"] == "fill"


def _replace(script: Path, text: str) -> None:
    """New text, dated ahead: slurmctld reads a script again only when its date, in whole seconds,
    is later than that of the one it has."""
    later = max(time.time(), script.stat().st_mtime) + 2
    script.write_text(text)
    os.utime(script, (later, later))


def test_a_failing_script_refuses_fills_and_nothing_else(
    cluster: Cluster, failing_script: None
) -> None:
    for request in ("--fill=mem=2G", "-p fill", "--gres=fill:1"):
        sentence = refuse(cluster, "sbatch", *shlex.split(request), "--wrap=true")
        assert sentence.startswith("--fill: ")
        assert "job_submit.lua failed" in sentence
    job_id = cluster.submit("--gres=gpu:1", script="echo ran")
    assert cluster.wait_end(job_id) == "COMPLETED"
    assert cluster.output(job_id) == "ran\n"
