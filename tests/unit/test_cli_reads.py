"""`sfill status`, `jobs`, `audit` and `events` say what the database holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from db.models import Base, BubbleUse, Event, Node, Setting
from slurm_plugin.cli.main import main
from tests.unit.ledger_sample import sample_engine, uuid_of


@dataclass
class Said:
    """What a run of sfill gave."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The JSON array on standard output."""
        found: list[dict[str, Any]] = json.loads(self.out)
        return found


Run = Callable[..., Said]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("cli") / "sfill.db"
    sample_engine(path, now_us=time.time_ns() // 1000, minutes=12).dispose()
    return path


@pytest.fixture
def run(database: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("SFILL_CLI_DATABASE_URL", f"sqlite:///{database}")
    monkeypatch.delenv("SFILL_CONF", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)

    def started(*words: str) -> Said:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        text = capsys.readouterr()
        return Said(int(ended.value.code or 0), text.out, text.err)

    return started


def stored(database: Path, *conditions: Any) -> list[BubbleUse]:
    with Session(create_engine(f"sqlite:///{database}")) as session:
        query = select(BubbleUse).where(*conditions)
        order = (BubbleUse.first_release_at_us.desc(), BubbleUse.id.desc())
        return list(session.scalars(query.order_by(*order)))


def test_audit_json_is_every_row_of_the_table(run: Run, database: Path) -> None:
    found = run("audit", "--fill-job", "203", "--json").rows
    rows = stored(database, BubbleUse.fill_slurm_job_id == 203)
    assert len(rows) > 100
    columns = [column.key for column in BubbleUse.__table__.columns]
    assert [{name: row[name] for name in columns} for row in found] == [
        {name: getattr(row, name) for name in columns} for row in rows
    ]


def test_audit_filters_meet(run: Run, database: Path) -> None:
    said = run("audit", "--gpu", "n1:1", "--user", "sfilluser2", "--cause", "wait", "--json")
    rows = stored(database, BubbleUse.gpu_id == 2, BubbleUse.cause == "wait")
    assert [row["id"] for row in said.rows] == [
        row.id for row in rows if row.fill_slurm_job_id == 202
    ]
    by_uuid = run("audit", "--gpu", uuid_of(1), "--user", "sfilluser2", "--cause", "wait", "--json")
    assert by_uuid.rows == said.rows


def test_audit_table_says_how_much_is_left_out(run: Run, database: Path) -> None:
    said = run("audit", "--limit", "3")
    everything = len(stored(database))
    assert f"3 of {everything:,} uses shown" in said.out
    assert said.out.count("sfilluser1") >= 3
    assert "\x1b[" not in said.out


def test_since_and_until_bound_the_audit(run: Run) -> None:
    recent = run("audit", "--since", "3m", "--until", "2m", "--json").rows
    now_us = time.time_ns() // 1000
    assert recent
    for row in recent:
        assert 115e6 < now_us - row["first_release_at_us"] < 185e6


def test_status_tells_zero_from_nothing(run: Run) -> None:
    lines = {line.split()[1]: line for line in run("status").out.splitlines() if line[:1] == "n"}
    assert "observe" in lines["2"]
    assert "0.0 %" in lines["2"]
    assert "none" in lines["3"]
    assert "16 GiB of 20 GiB" in lines["1"]
    assert "202 203" in lines["1"]
    short = run("status", "--minutes", "1", "--json").rows
    assert [row["bubble_share"] is None for row in short] == [False, False, False, True]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("words", [("status",), ("audit", "--limit", "4")], ids=["status", "audit"])
def test_narrow_output_drops_columns_and_cuts_no_figure(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], width: int
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    wide = {word for line in run(*words).out.splitlines()[:6] for word in line.split()}
    monkeypatch.setenv("COLUMNS", str(width))
    said = run(*words)
    lines = said.out.splitlines()
    assert max(map(len, lines)) <= width
    for line in lines[:5]:
        # Figures of the last seconds may have moved on; whole words they must be.
        assert {word for word in line.split() if "." not in word} <= wide
    assert width == 120 or "Left out for lack of width:" in said.out


def test_jobs_lists_each_job_once(run: Run) -> None:
    rows = run("jobs", "--json").rows
    assert [(row["kind"], row["job_id"]) for row in rows] == [
        ("host", 102),
        ("host", 103),
        ("host", 101),
        ("fill", 203),
        ("fill", 202),
        ("fill", 201),
    ]
    assert [row["job_id"] for row in run("jobs", "--kind", "host", "--running", "--json").rows] == [
        102,
        101,
    ]
    assert run("jobs", "--user", "nobody").out == "No job matches.\n"


def test_jobs_and_status_say_what_fill_costs_or_that_it_is_not_known_yet(run: Run) -> None:
    assert "0.42 %" in run("status").out
    lines = {line.split()[0]: line for line in run("jobs").out.splitlines() if line}
    assert "0.42 %" in lines["101"]
    assert "not known yet" in lines["103"]
    assert "not known yet" not in lines["102"]  # it only observes
    rows = {row["job_id"]: row for row in run("jobs", "--kind", "host", "--json").rows}
    assert rows[101]["calibrated_slowdown"] == 0.0042
    assert rows[103]["calibrated_slowdown"] is None


def test_jobs_and_status_say_how_gpus_are_shared_and_why(run: Run) -> None:
    assert "mps: asked for" in run("status", "--node", "n1").out
    lines = {line.split()[0]: line for line in run("jobs").out.splitlines() if line}
    assert "mps: asked for" in lines["101"]
    rows = {row["job_id"]: row for row in run("jobs", "--kind", "host", "--json").rows}
    assert (rows[101]["share_mode"], rows[103]["share_mode"]) == ("mps", "timeslice")
    assert rows[103]["share_reason"] == "the node's setting"


def test_events_filter_and_empty(run: Run) -> None:
    rows = run("events", "--what", "evicted", "--json").rows
    assert [(row["slurm_job_id"], row["node"]) for row in rows] == [(203, "n2")]
    assert run("events", "--what", "lunch").out == (
        "No event matches (kinds so far: admitted, evicted, refused).\n"
    )
    assert "The newest 2 are shown" in run("events", "--limit", "2").out


def test_what_a_process_said_is_shown_as_it_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "said.db"
    text = "[/bold] [red]a loss of 0.1[/red] :smile: [link=x]"
    engine = sample_engine(path, now_us=time.time_ns() // 1000, minutes=1)
    with Session(engine) as session:
        session.add(Event(at_us=time.time_ns() // 1000, what="log", text=text))
        session.commit()
    engine.dispose()
    monkeypatch.setenv("SFILL_CLI_DATABASE_URL", f"sqlite:///{path}")
    shown = run("events", "--what", "log")
    assert (shown.code, shown.err) == (0, "")
    assert text in shown.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("audit", "--since", "banana"), "'banana' is no time; allowed is an age such as"),
        (("audit", "--fill-job", "x"), "'x' is no Slurm job id; allowed is 1 to 2147483647"),
        (("audit", "--fill-job", "0"), "'0' is no Slurm job id"),
        (("audit", "--fill-job", "0" * 10 + "1" + "9" * 23), "99' is no Slurm job id"),
        (("events", "--job", "0" * 10 + "1" + "9" * 9000), "is no Slurm job id; allowed is 1"),
        (("audit", "--since", "999999d"), "'999999d' is no time; allowed is an age such as"),
        (("events", "--until", "999999d"), "'999999d' is no time; allowed is an age such as"),
        (("audit", "--gpu", "n9:1"), "--gpu: no GPU 'n9:1' is known; allowed is a UUID"),
        (("audit", "--cause", "boredom"), "'boredom' is not one of"),
        (("audit", "--since", "1m", "--until", "1h"), "--since must be before --until"),
        (("audit", "--user", "a b"), "'a b' is no name"),
        (("jobs", "--limit", "0"), "'0' is not allowed; allowed is 1 to 100000"),
        (("events", "--limit", "many"), "'many' is not allowed; allowed is 1 to 100000"),
        (("status", "--minutes", "x"), "'x' is not allowed; allowed is 1 to 1440"),
        (("status", "--minutes", "9" * 5000), "is not allowed; allowed is 1 to 1440"),
        (("audit", "--limit", "-1"), "'-1' is not allowed; allowed is 0 to 2147483647"),
        (("status", "--lunch"), "No such option '--lunch'"),
        (("lunch",), "No such command 'lunch'"),
        (("--config", "/nonexistent.toml", "status"), "/nonexistent.toml: No such file"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(
    run: Run, words: tuple[str, ...], sentence: str
) -> None:
    said = run(*words)
    assert said.code == 2
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_unreadable_database_is_one_sentence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SFILL_CLI_DATABASE_URL", "sqlite:////nonexistent/sfill.db")
    said = run("status")
    assert said.code == 1
    assert said.err == (
        "sfill: cannot read the database sqlite:////nonexistent/sfill.db"
        " (no such file or directory)\n"
    )


def test_a_database_of_another_version_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SFILL_CLI_DATABASE_URL", f"sqlite:///{tmp_path}/old.db")
    (tmp_path / "old.db").touch()
    for command in ("status", "jobs", "audit", "events"):
        said = run(command)
        assert said.code == 1
        assert said.err.startswith("sfill: cannot read the database sqlite:///")
        assert "the database is at revision none, this version needs" in said.err
        assert said.err.endswith("start sfillctld, which upgrades it)\n")


def shell(database: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which `sfill` is the program."""
    program = f"{sys.executable} -m slurm_plugin.cli.main"
    environment = {**os.environ, "SFILL_CLI_DATABASE_URL": f"sqlite:///{database}"}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line.replace("sfill", program)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.parametrize("command", ["sfill audit --json", "sfill audit --limit 0", "sfill status"])
def test_a_reader_that_has_enough_is_no_failure(database: Path, command: str) -> None:
    done = shell(database, f"{command} | true")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["sfill status", "sfill audit --json", "sfill --help"])
def test_an_answer_that_finds_no_room_is_one_sentence(database: Path, command: str) -> None:
    done = shell(database, f"{command} > /dev/full")
    assert done.returncode == 1
    assert done.stderr == "sfill: the answer can't be written (No space left on device)\n"


def test_closed_standard_streams_upset_nothing(database: Path) -> None:
    assert shell(database, "sfill status >&-").returncode == 0
    assert shell(database, "sfill lunch 2>&-").returncode == 2


def test_empty_ledger_is_said_in_words(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/empty.db")
    Base.metadata.create_all(engine)
    monkeypatch.setenv("SFILL_CLI_DATABASE_URL", f"sqlite:///{tmp_path}/empty.db")
    assert run("status").out == "Filling is on.\nNo agent has reported yet.\n"
    assert run("audit").out == "No bubble was used that matches.\n"
    assert run("audit", "--json").rows == []
    with Session(engine) as session:
        session.add(Setting(name="off", value="1"))
        session.add(Node(name="n1", twin="f1"))
        session.commit()
    assert run("status").out.startswith("Filling is switched off on the whole cluster")


def test_without_words_it_explains_itself(run: Run) -> None:
    said = run()
    assert said.code == 0
    for name in ("status", "jobs", "audit", "events", "off", "on"):
        assert f"\n  {name} " in said.out
