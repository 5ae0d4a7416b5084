"""What Slurm's commands print is read right, and their failures are told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_plugin.cluster import ClusterError, ClusterUnreachableError, CommandCluster
from slurm_plugin.cluster.interface import Job
from slurm_plugin.cluster.parsing import parse_gres, parse_job, parse_states, parse_twin

# Printed by Slurm 22.05.8, shortened in the middle where nothing is read.
NODE = (
    "NodeName=f1 Arch=x86_64 CoresPerSocket=4  CPUAlloc=1 CPUEfctv=4 CPUTot=4 CPULoad=0.19"
    " AvailableFeatures=(null) ActiveFeatures=(null) Gres=fill:4 GresDrain=N/A GresUsed=fill:2"
    " NodeAddr=127.0.0.1 NodeHostName=vm Port=23031 Version=22.05.8 OS=Linux 6.18.44 #1 SMP @0 "
    " RealMemory=4000 State=MIXED+DRAIN+INVALID_REG ThreadsPerCore=1 Partitions=fill "
    " CfgTRES=cpu=4,mem=4000M,billing=4,gres/fill=32 AllocTRES=cpu=1,mem=100M,gres/fill=2"
)
BY = " [root@2026-11-30T20:24:57]"
PARTITION = (
    "PartitionName=fill AllowGroups=ALL Default=NO MaxNodes=UNLIMITED MinNodes=0"
    " Nodes=f[1-2] PriorityTier=1 OverSubscribe=NO State=DOWN TotalCPUs=8 TotalNodes=2"
)
JOB = "4   4   RUNNING   {batch}   1   2   f[1-2]   "


def test_a_node_is_read_with_what_it_has_and_what_is_in_use() -> None:
    twin = parse_twin(f"{NODE} Reason=sfill: nothing to lend{BY}", "fill")
    assert (twin.name, twin.count, twin.used) == ("f1", 4, 2)
    assert twin.states == {"MIXED", "DRAIN", "INVALID_REG"}
    assert twin.drained and twin.invalid and twin.responding
    assert twin.reason == "sfill: nothing to lend"
    assert parse_twin(NODE, "fill").reason == ""


def test_free_texts_of_a_node_cannot_pose_as_its_fields() -> None:
    free = f" Reason=a [b] x=y State=IDLE Gres=fill:9{BY} Comment=my Reason=c Gres=fill:1"
    twin = parse_twin(NODE + free, "fill")
    assert twin.count == 4 and twin.drained
    assert twin.reason == "a [b] x=y State=IDLE Gres=fill:9"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("fill:32", 32),
        ("gpu:a100:4(S:0-1),fill:7(S:0)", 7),
        ("gres:fill:3", 3),
        ("gpu:2(IDX:0,1),fill:5", 5),
        ("fill:1K", 1024),
        ("fill", 1),
        ("refill:4,gpu:fill:2", 0),
        ("(null)", 0),
        ("", 0),
    ],
)
def test_counts_of_a_gres(text: str, count: int) -> None:
    assert parse_gres(text, "fill") == count


def test_a_count_that_is_no_number_is_an_error() -> None:
    with pytest.raises(ClusterError, match="fill:many"):
        parse_gres("fill:many", "fill")


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("IDLE+DRAIN", {"IDLE", "DRAIN"}),
        ("IDLE*+DRAIN", {"IDLE", "DRAIN", "NOT_RESPONDING"}),
        ("MIXED+CLOUD+NOT_RESPONDING", {"MIXED", "CLOUD", "NOT_RESPONDING"}),
        ("DOWN*", {"DOWN", "NOT_RESPONDING"}),
        ("IDLE+PLANNED", {"IDLE", "PLANNED"}),
    ],
)
def test_state_words(text: str, states: set[str]) -> None:
    assert parse_states(text) == states


def test_a_job_says_whether_it_can_be_requeued() -> None:
    found = parse_job(JOB.format(batch=1), 4)
    assert found is not None
    batch, nodes = found
    assert nodes == "f[1-2]"
    assert (batch.state, batch.batch, batch.requeue, batch.restarts) == ("RUNNING", True, True, 2)
    interactive = parse_job(JOB.format(batch=0), 4)
    assert interactive is not None and not interactive[0].batch
    assert parse_job(JOB.format(batch=1), 7) is None


@pytest.mark.parametrize(
    "line",
    ["4 4 RUNNING 1 1 abc f1", "4 4 RUNNING 1", "4 4 x RUNNING 1 1 2 f1", "4 4 RUNNING 1 1 -2 f1"],
)
def test_a_job_that_is_not_understood_is_an_error_that_callers_know(line: str) -> None:
    with pytest.raises(ClusterError, match="not understood"):
        parse_job(line, 4)


def test_of_an_array_the_task_that_was_asked_for_is_taken_and_addressed() -> None:
    tasks = "5 4_0 COMPLETED 1 1 0 f1\n4 4_2 PENDING 1 1 1 \n6 4_1 RUNNING 1 1 0 f1\n"
    found = parse_job(tasks, 4)
    assert found is not None
    job, nodes = found
    assert (job.state, job.address, nodes) == ("PENDING", "4_2", "")
    other = parse_job(tasks, 6)
    assert other is not None and other[0].address == "4_1"
    alone = parse_job(JOB.format(batch=1), 4)
    assert alone is not None and alone[0].address == "4"


class Recorded:
    """A folder of stand-ins for Slurm's commands that record how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "calls"

    def says(self, program: str, script: str) -> None:
        path = self.folder / program
        path.write_text(
            f'#!/bin/sh\nprintf "%s|" "{program}" "$@" >> {self.log}\n'
            f"echo >> {self.log}\n{script}\n"
        )
        path.chmod(0o755)

    def calls(self) -> list[list[str]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.rstrip("|").split("|") for line in lines]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def cluster(recorded: Recorded, timeout_s: float = 5.0) -> CommandCluster:
    return CommandCluster(slurm_bin=str(recorded.folder), timeout_s=timeout_s)


def test_setting_the_count_keeps_what_else_a_node_has(recorded: Recorded) -> None:
    recorded.says(
        "scontrol",
        'case "$*" in *show*) echo "NodeName=f1 Gres=gpu:a100:4(S:0-1),fill:32 State=IDLE";'
        ' echo "NodeName=f2 Gres=fill:32,nic:4 State=IDLE"; echo "NodeName=f3 Gres=fill:7 X=";'
        ' echo "NodeName=f4 Gres=fill:9 X=";; esac',
    )
    cluster(recorded).set_count(["f1", "f2", "f3", "f4"], 6)
    assert recorded.calls()[1:] == [
        ["scontrol", "update", "NodeName=f1", "Gres=gpu:a100:4,fill:6"],
        ["scontrol", "update", "NodeName=f2", "Gres=nic:4,fill:6"],
        ["scontrol", "update", "NodeName=f3,f4", "Gres=fill:6"],
    ]


def test_twins_with_equal_values_are_changed_by_one_call(recorded: Recorded) -> None:
    recorded.says("scontrol", "exit 0")
    slurm = cluster(recorded)
    slurm.drain({"f2", "f1"}, "sfill: nothing to lend")
    slurm.resume({f"f{n}" for n in range(1200)})
    calls = recorded.calls()
    assert calls[0] == [
        "scontrol",
        "update",
        "NodeName=f1,f2",
        "State=DRAIN",
        "Reason=sfill: nothing to lend",
    ]
    # A drain is turned into FAIL, whose end needs no registration, then ended: 3 calls each.
    states = [call[3] for call in calls[1:]]
    assert states == ["State=FAIL"] * 3 + ["State=RESUME"] * 3


def test_what_slurm_refuses_for_one_twin_is_done_for_the_others(recorded: Recorded) -> None:
    refuses = 'case "$*" in *f2*) echo "Invalid node state specified" >&2; exit 1;; esac'
    recorded.says("scontrol", refuses)
    with pytest.raises(ClusterError, match="f2: Invalid node state") as caught:
        cluster(recorded).drain(["f1", "f2", "f3"], "sfill: nothing to lend")
    assert "f1:" not in str(caught.value)
    each = ["NodeName=f1,f2,f3", "NodeName=f1", "NodeName=f2", "NodeName=f3"]
    assert [call[2] for call in recorded.calls()] == each


def test_a_twin_that_cannot_be_resumed_holds_up_no_other(recorded: Recorded) -> None:
    recorded.says("scontrol", 'case "$*" in *f2*) echo "Invalid node state" >&2; exit 1;; esac')
    with pytest.raises(ClusterError, match="f2"):
        cluster(recorded).resume(["f1", "f2"])
    assert ["scontrol", "update", "NodeName=f1", "State=RESUME"] in recorded.calls()


@pytest.mark.parametrize(
    "text",
    [
        "slurm_load_node error: Unable to contact slurm controller (connect failure)",
        "slurm_update error: Socket timed out on send/recv operation",
    ],
)
def test_no_answer_is_told_apart_from_a_refusal(recorded: Recorded, text: str) -> None:
    recorded.says("scontrol", f'echo "{text}" >&2; exit 1')
    with pytest.raises(ClusterUnreachableError):
        cluster(recorded).twins(["f1"])


def test_a_command_that_hangs_is_given_up(recorded: Recorded) -> None:
    recorded.says("scontrol", "exec sleep 30")
    with pytest.raises(ClusterUnreachableError, match="no answer within"):
        cluster(recorded, timeout_s=0.2).twins(["f1"])


def test_without_slurms_commands_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnreachableError, match="No such file"):
        CommandCluster(slurm_bin=str(tmp_path)).twins(["f1"])


def test_the_partition_comes_with_the_names_of_its_nodes(recorded: Recorded) -> None:
    recorded.says(
        "scontrol",
        f'case "$2" in partition) echo "{PARTITION}";; hostnames) printf "f1\\nf2\\n";; esac',
    )
    slurm = cluster(recorded)
    found = slurm.partition("fill")
    assert (found.state, found.nodes, found.min_nodes) == ("DOWN", ("f1", "f2"), 0)
    slurm.partition("fill")
    assert len(recorded.calls()) == 3  # the list of nodes is expanded once


def test_the_nodes_of_a_job_are_named_one_by_one(recorded: Recorded) -> None:
    job = JOB.format(batch=1)
    recorded.says("squeue", f'echo "{job}"')
    recorded.says("scontrol", 'printf "f1\nf2\n"')
    found = cluster(recorded).job(4)
    assert found is not None and found.nodes == ("f1", "f2")


def test_a_job_that_slurm_does_not_know_is_none(recorded: Recorded) -> None:
    recorded.says("squeue", 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1')
    assert cluster(recorded).job(99999) is None


def test_a_cancelled_job_is_told_why_first(recorded: Recorded) -> None:
    recorded.says("scontrol", "exit 1")
    recorded.says("scancel", "exit 0")
    cluster(recorded).cancel(Job(7, "RUNNING", batch=False, requeue=False), "no longer lent")
    assert recorded.calls() == [["scontrol", "notify", "7", "no longer lent"], ["scancel", "7"]]


def test_one_task_of_an_array_is_changed_and_not_all(recorded: Recorded) -> None:
    for program in ("scontrol", "scancel"):
        recorded.says(program, "exit 0")
    recorded.says("squeue", "echo 4 4_2 RUNNING 1 1 0 f1")
    slurm = cluster(recorded)
    job = slurm.job(4)
    assert job is not None
    slurm.requeue(job)
    slurm.start_after(job, 2)
    slurm.cancel(job, "why")
    slurm.set_admin_comment(4, "{}")
    changing = [call for call in recorded.calls() if call[0] != "squeue"]
    assert [call[1:] for call in changing] == [
        ["requeue", "4_2"],
        ["update", "JobId=4_2", "EligibleTime=now+2"],
        ["notify", "4_2", "why"],
        ["4_2"],
        ["update", "JobId=4_2", "AdminComment={}"],
    ]


def test_the_comment_of_an_ended_job_goes_to_the_accounts(recorded: Recorded) -> None:
    recorded.says("scontrol", 'echo "Job has already finished for job 3" >&2; exit 1')
    recorded.says("sacctmgr", "exit 0")
    recorded.says("squeue", 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1')
    cluster(recorded).set_admin_comment(3, '{"a":1}')
    assert recorded.calls()[2][-1] == 'admincomment={"a":1}'


def test_whether_there_are_accounts_is_read_from_the_configuration(recorded: Recorded) -> None:
    for value, expected in [("accounting_storage/slurmdbd", True), ("(null)", False)]:
        recorded.says("scontrol", f'echo "AccountingStorageType   = {value}"')
        assert cluster(recorded).has_accounting() is expected
