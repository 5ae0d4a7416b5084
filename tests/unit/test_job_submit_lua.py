"""job_submit.lua, run by the lua5.1 that slurmctld links, with a stand-in for the slurm table."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "slurm_plugin/job_submit.lua"
NO_VAL, NO_VAL16 = 4294967294, 65534

Value = str | int | list[str]
Job = Mapping[str, Value]

HARNESS = """
said = {}
slurm = { SUCCESS = 0, ERROR = -1, log_info = function() end,
   log_error = function(...) table.insert(said, "log:" .. string.format(...)) end,
   log_user = function(...) table.insert(said, "user:" .. string.format(...)) end }
assert(dofile(SCRIPT) == slurm.SUCCESS)
if FAIL_AT then
   -- A job_desc that fails when this field is touched stands for any fault inside the script.
   local real = job
   job = setmetatable({}, { __index = function(_, key)
      if key == FAIL_AT then error("injected") end
      return real[key] end,
      __newindex = function(_, key, value)
      if key == FAIL_AT then error("injected") end
      real[key] = value end })
end
local rc
if record then rc = slurm_job_modify(job, record, {}, 1000)
else rc = slurm_job_submit(job, {}, 1000) end
print(rc)
for _, key in ipairs({ "partition", "tres_per_node", "tres_per_job", "min_nodes", "max_nodes",
   "requeue", "shared" }) do
   local ok, value = pcall(function() return job[key] end)
   print(key .. "=" .. tostring(ok and value))
end
for _, text in ipairs(said) do print(text) end
"""


class Answer:
    def __init__(self, output: str) -> None:
        lines = output.splitlines()
        self.accepted = lines[0] == "0"
        self.job = dict(line.split("=", 1) for line in lines[1:8])
        self.told = [line.removeprefix("user:") for line in lines[8:] if line.startswith("user:")]
        self.logged = [line for line in lines[8:] if line.startswith("log:")]


def lua(value: Value) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, int):
        return str(value)
    return "{" + ",".join(f"[{i}]={lua(item)}" for i, item in enumerate(value)) + "}"


def run(
    job: Job, record: Job | None = None, fail_at: str | None = None, script: Path = SCRIPT
) -> Answer:
    fields: dict[str, Value] = {
        "min_nodes": NO_VAL,
        "max_nodes": NO_VAL,
        "requeue": NO_VAL16,
        "shared": NO_VAL16,
        **job,
    }
    environment = fields.get("spank_job_env")
    if isinstance(environment, list):
        fields["spank_job_env_size"] = len(environment)
    text = f"SCRIPT = {lua(str(script))}\n"
    text += "job = {" + ",".join(f"{key}={lua(value)}" for key, value in fields.items()) + "}\n"
    if record is not None:
        text += "record = {" + ",".join(f"{key}={lua(v)}" for key, v in record.items()) + "}\n"
    if fail_at:
        text += f"FAIL_AT = {lua(fail_at)}\n"
    done = subprocess.run(
        ["lua5.1", "-"], input=text + HARNESS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return Answer(done.stdout)


def fill(spec: str = "mem=16G", **fields: Value) -> dict[str, Value]:
    environment = [f"_SLURM_SPANK_OPTION_fill_fill={spec}", f"FILL_SPEC={spec}", "FILL_BATCH=1"]
    return {"spank_job_env": environment, **fields}


def host(spec: str = "on", *more: str, **fields: Value) -> dict[str, Value]:
    return {"spank_job_env": [f"FILL_HOST_SPEC={spec}", *more], **fields}


@pytest.mark.parametrize(
    ("spec", "slots"), [("mem=16G", 16), ("mem=1M", 1), ("mem=1025M", 2), ("mem=1024G", 1024)]
)
def test_a_fill_becomes_partition_and_slots(spec: str, slots: int) -> None:
    answer = run(fill(spec))
    assert answer.accepted
    assert answer.job["partition"] == "fill"
    assert answer.job["tres_per_node"] == f"gres/fill:{slots}"
    assert (answer.job["min_nodes"], answer.job["max_nodes"]) == ("1", "1")
    assert answer.job["requeue"] == "1"


def test_a_fill_keeps_what_the_user_chose() -> None:
    answer = run(fill(min_nodes=2, max_nodes=3, requeue=0, tres_per_node="gres:scratch:1"))
    assert answer.accepted
    assert (answer.job["min_nodes"], answer.job["max_nodes"]) == ("2", "3")
    assert answer.job["requeue"] == "0"
    assert answer.job["tres_per_node"] == "gres:scratch:1,gres/fill:16"


@pytest.fixture
def anchored(tmp_path: Path) -> Path:
    """The script beside settings that name an anchor."""
    script = tmp_path / "job_submit.lua"
    script.write_text(SCRIPT.read_text())
    (tmp_path / "sfill_submit.conf").write_text("anchor = f00\n")
    return script


@pytest.mark.parametrize(
    "nodes", ["f00", "f01,f00", "f[00-03]", "f[02,00]", "x1,f[02,00-01]", "f0[0-1]", "f0[0,3],n1"]
)
def test_a_fill_that_asks_for_the_anchor_is_refused(anchored: Path, nodes: str) -> None:
    for answer in (
        run(fill(req_nodes=nodes), script=anchored),
        run({"req_nodes": nodes}, record={"partition": "fill"}, script=anchored),
    ):
        assert not answer.accepted
        assert answer.told == [
            f"-w {nodes}: f00 never runs a job; leave it out of the nodes of a fill job"
        ]
    assert run({"req_nodes": nodes}, script=anchored).accepted  # Slurm says what comes of it
    assert run(fill(req_nodes=nodes)).accepted  # no anchor is known


@pytest.mark.parametrize(
    "nodes", ["f01", "f[01-03]", "f000", "f0", "f[0-3]", "f[000-003]", "f[", ""]
)
def test_a_fill_that_asks_for_other_nodes_is_none_of_the_anchor(anchored: Path, nodes: str) -> None:
    assert run(fill(req_nodes=nodes), script=anchored).accepted


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"tres_per_node": "gres:gpu:1"}, "--gres=gpu"),
        ({"tres_per_node": "gres/gpu:a100=1"}, "--gres=gpu"),
        ({"tres_per_node": "gpu"}, "--gres=gpu"),
        ({"tres_per_node": "gres:scratch:1,gres:GPU:1"}, "--gres=gpu"),
        ({"tres_per_node": "gres:shard:1"}, "--gres=gpu"),
        ({"tres_per_job": "gres:gpu:2"}, "--gpus"),
        ({"tres_per_socket": "gres:gpu:2"}, "--gpus"),
        ({"tres_per_task": "gres:gpu:2"}, "--gpus"),
        ({"cpus_per_tres": "gres:gpu:2"}, "per-gpu"),
        ({"mem_per_tres": "gres:gpu:2"}, "per-gpu"),
        ({"ntasks_per_tres": 2}, "per-gpu"),
        ({"tres_per_node": "gres:fill:1"}, "--gres=fill"),
        ({"tres_per_node": "gres:none:1"}, "gres/none"),
        ({"partition": "train"}, "-p train"),
        ({"partition": "train,fill"}, "-p train,fill"),
        ({"shared": 0}, "--exclusive"),
        ({"shared": 2}, "--exclusive"),
    ],
)
def test_nonsense_in_a_fill_gets_one_sentence(fields: dict[str, Value], names: str) -> None:
    answer = run({**fill(), **fields})
    assert not answer.accepted
    (sentence,) = answer.told
    assert names in sentence


@pytest.mark.parametrize("spec", ["mem=banana", "mem=0G", "16G", "mem=16G,mem=1G", "(null)"])
def test_a_spec_that_no_plugin_wrote_is_refused(spec: str) -> None:
    answer = run(fill(spec))
    assert not answer.accepted
    assert spec in answer.told[0]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"partition": "fill"}, "-p fill"),
        ({"partition": "train,fill"}, "-p train,fill"),
        ({"partition": "fill", "tres_per_node": "gres:fill:1"}, "-p fill"),
        ({"tres_per_node": "gres:fill:1"}, "gres/fill"),
        ({"tres_per_job": "gres:gpu:1,gres:fill:1"}, "gres/fill"),
        ({"tres_per_node": "fill=3"}, "gres/fill"),
        ({"tres_per_node": "gres:none:2"}, "gres/none"),
    ],
)
def test_a_fill_by_hand_is_refused(fields: dict[str, Value], names: str) -> None:
    answer = run(fields)
    assert not answer.accepted
    (sentence,) = answer.told
    assert names in sentence


@pytest.mark.parametrize(
    "field", ["tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task"]
)
def test_a_host_job_needs_a_gpu_in_any_form(field: str) -> None:
    assert run(host(**{field: "gres:gpu:a100:2"})).accepted


@pytest.mark.parametrize("gpus", [None, "gres:gpu:0", "gres/gpu:a100=0", "gres:scratch:1,gpu:0"])
@pytest.mark.parametrize("field", ["tres_per_node", "tres_per_job"])
def test_a_host_job_without_a_gpu_is_refused(field: str, gpus: str | None) -> None:
    answer = run(host(**{field: gpus} if gpus else {}))
    assert not answer.accepted
    assert "--fill-host" in answer.told[0]
    assert "--gres=gpu:N" in answer.told[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"tres_per_node": "gres:gpu:1"},
        {"tres_per_node": "gres:fill:1"},
        {"partition": "train"},
        {"shared": 0},
    ],
)
def test_a_refusal_names_the_variable_that_made_the_job_a_fill(fields: dict[str, Value]) -> None:
    job = fill()
    job["spank_job_env"] = ["FILL_SPEC=mem=16G", "FILL_FROM_ENVIRONMENT=1"]
    answer = run({**job, **fields})
    assert not answer.accepted
    assert answer.told[0].startswith("SFILL_FILL: ")


def test_a_variable_in_a_profile_does_not_refuse_jobs_without_a_gpu() -> None:
    assert run(host("on", "FILL_HOST_FROM_ENVIRONMENT=1")).accepted


@pytest.mark.parametrize(
    "job",
    [
        {},
        {"partition": "train", "tres_per_node": "gres:gpu:8", "shared": 0},
        {"partition": "prefill,filling", "tres_per_node": "gres:filler:1"},
        host(tres_per_node="gres:gpu:8", shared=0),
    ],
)
def test_an_ordinary_job_is_left_as_it_came(job: Job) -> None:
    answer = run(job)
    assert answer.accepted
    assert answer.job["partition"] == str(job.get("partition", "nil"))
    assert answer.job["tres_per_node"] == str(job.get("tres_per_node", "nil"))
    assert answer.job["shared"] == str(job.get("shared", NO_VAL16))
    assert answer.job["min_nodes"] == str(NO_VAL)
    assert answer.told == []


def test_settings_beside_the_script_hold(tmp_path: Path) -> None:
    script = tmp_path / "job_submit.lua"
    script.write_text(SCRIPT.read_text())
    (tmp_path / "sfill_submit.conf").write_text(
        "# site\nmost_gib = 24\npartition = lend\ngres_prefix = gres:\nwrong\n"
    )
    answer = run(fill("mem=25G"), script=script)
    assert not answer.accepted
    assert "the most is mem=24G" in answer.told[0]
    assert answer.logged == ["log:job_submit/sfill: sfill_submit.conf: 'wrong' is no setting"]
    job = run(fill("mem=24G"), script=script).job
    assert job["partition"] == "lend"
    assert job["tres_per_node"] == "gres:fill:24"


FILL_RECORD = {"job_id": 7, "partition": "fill"}
TRAIN_RECORD = {"job_id": 7, "partition": "train"}


@pytest.mark.parametrize(
    ("change", "record"),
    [
        ({"partition": "train"}, FILL_RECORD),
        ({"partition": "fill,train"}, FILL_RECORD),
        ({"tres_per_node": "gres:gpu:1"}, FILL_RECORD),
        ({"tres_per_job": "gres:gpu:1"}, FILL_RECORD),
        ({"tres_per_node": "gres:fill:1"}, FILL_RECORD),
        ({"tres_per_node": ""}, FILL_RECORD),
        ({"cpus_per_tres": "gpu:1"}, FILL_RECORD),
        ({"mem_per_tres": "gpu:1"}, FILL_RECORD),
        ({"shared": 0}, FILL_RECORD),
        ({"partition": "fill"}, TRAIN_RECORD),
        ({"partition": "train,fill"}, TRAIN_RECORD),
        ({"tres_per_node": "gres:gpu:1,gres:fill:1"}, TRAIN_RECORD),
        ({"tres_per_node": "gres:none:1"}, TRAIN_RECORD),
    ],
)
def test_no_job_becomes_or_stops_being_a_fill_later(change: Job, record: Job) -> None:
    answer = run(change, record)
    assert not answer.accepted
    assert len(answer.told) == 1


@pytest.mark.parametrize(
    ("change", "record"),
    [
        ({"time_limit": 10}, FILL_RECORD),
        ({"partition": "fill"}, FILL_RECORD),
        ({"time_limit": 10}, TRAIN_RECORD),
        ({"partition": "big", "tres_per_node": "gres:gpu:4", "shared": 0}, TRAIN_RECORD),
    ],
)
def test_other_changes_pass(change: Job, record: Job) -> None:
    assert run(change, record).accepted


FIELDS = ["spank_job_env", "partition", "tres_per_node", "tres_per_job", "cpus_per_tres", "shared"]


@pytest.mark.parametrize("field", [*FIELDS, "min_nodes", "max_nodes", "requeue"])
def test_a_failure_refuses_a_job_with_a_trace_of_fill(field: str) -> None:
    # Of these jobs, each keeps a trace of fill whichever field fails.
    job = fill(partition="fill") | {"spank_job_env": fill()["spank_job_env"]}
    answer = run(job, fail_at=field)
    assert not answer.accepted
    assert answer.told[0].startswith("--fill: ")
    assert "injected" in answer.logged[0]


@pytest.mark.parametrize("field", FIELDS)
def test_a_failure_leaves_any_other_job_unchanged(field: str) -> None:
    job: dict[str, Value] = {"partition": "train", "tres_per_job": "gres:gpu:8", "shared": 0}
    answer = run(job, fail_at=field)
    assert answer.accepted
    assert answer.told == []
    for name in {"partition", "tres_per_job", "shared"} - {field}:
        assert answer.job[name] == str(job[name])


@pytest.mark.parametrize(("record", "accepted"), [(FILL_RECORD, False), (TRAIN_RECORD, True)])
def test_a_failure_in_a_later_change_is_judged_alike(record: Job, accepted: bool) -> None:
    assert run({"time_limit": 10}, record, fail_at="tres_per_node").accepted is accepted
