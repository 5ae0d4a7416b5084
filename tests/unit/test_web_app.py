"""The dashboard's addresses without a browser: refusals, headers, figures, empty ledgers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import Session
from werkzeug.test import TestResponse

from db.engine import Database
from db.models import Base, BubbleUse
from tests.unit.ledger_sample import sample_engine, uuid_of
from webui.app import create_app
from webui.present import MAX_STEPS, WINDOW_US, step_us
from webui.settings import SettingsError, WebSettings, load_settings


def client_of(path: Path) -> FlaskClient:
    settings = WebSettings(database_url=f"sqlite:///{path}")
    return create_app(settings, Database(settings.database_url, read_only=True)).test_client()


def data_of(answer: TestResponse) -> Any:
    """The JSON of an answer that must have some."""
    assert answer.is_json
    return answer.json


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("web") / "sfill.db"
    sample_engine(path, now_us=time.time_ns() // 1000, minutes=12).dispose()
    return path


@pytest.fixture(scope="module")
def client(database: Path) -> FlaskClient:
    return client_of(database)


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("/api/overview?minutes=0", "Minutes must be a whole number from 1 to 527040, not '0'."),
        ("/api/overview?minutes=1e3", "Minutes must be a whole number"),
        ("/api/overview?minutes=" + "9" * 400, "Minutes must be a whole number"),
        ("/api/overview?lunch=1", "Lunch is no parameter of this page; allowed: minutes, node."),
        ("/api/audit?fill_job=x", "Fill_job must be a whole number from 1 to 2147483647, not 'x'."),
        ("/api/audit?fill_job=²", "Fill_job must be a whole number"),
        ("/api/audit?fill_job=" + "0" * 19 + "1" + "9" * 21, "Fill_job must be a whole number"),
        ("/api/audit?limit=" + "0" * 19 + "1" + "9" * 9000, "Limit must be a whole number"),
        ("/api/events?job=" + "0" * 10 + "1" + "9" * 21, "Job must be a whole number"),
        ("/api/audit?since=999999d", "Since: '999999d' is no time; allowed is an age"),
        ("/api/audit?cause=boredom", "Cause must be one of host, tail, wait, communication"),
        ("/api/audit?since=banana", "Since: 'banana' is no time; allowed is an age"),
        ("/api/audit?since=1m&until=1h", "Since must be before until."),
        ("/api/audit?after=7", "After must be the next key that an earlier page gave"),
        ("/api/audit?limit=100000", "Limit must be a whole number from 1 to 1000"),
        ("/api/audit?user=a%20b", "User must be a name"),
        ("/api/events?job=-1", "Job must be a whole number"),
        ("/audit.csv?since=banana", "Since: &#39;banana&#39; is no time"),
        ("/audit?since=banana", "Since: &#39;banana&#39; is no time"),
    ],
)
def test_bad_parameters_are_400_in_a_sentence(
    client: FlaskClient, address: str, sentence: str
) -> None:
    answer = client.get(address)
    assert answer.status_code == 400
    text = data_of(answer)["error"] if address.startswith("/api/") else answer.text
    assert sentence in text


def test_missing_jobs_and_pages_are_404(client: FlaskClient) -> None:
    assert data_of(client.get("/api/jobs/host/999")) == {"error": "No host job 999 is recorded."}
    assert client.get("/api/jobs/fill/101").status_code == 404
    assert "There is no such page." in client.get("/lunch").text
    # More than any database holds as a job id.
    for address in ("/api/jobs/host", "/api/jobs/fill", "/jobs/host", "/jobs/fill"):
        assert client.get(f"{address}/{10**20}").status_code == 404


@pytest.mark.parametrize("address", ["/", "/api/gpus", "/lunch", "/static/style.css"])
def test_every_answer_carries_the_policy(client: FlaskClient, address: str) -> None:
    headers = client.get(address).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_foreign_names_are_refused(client: FlaskClient) -> None:
    answer = client.get("/api/overview", headers={"Host": "attacker.example:8642"})
    assert answer.status_code == 421
    assert client.get("/api/gpus", headers={"Host": "localhost:9000"}).status_code == 200


def test_pages_hold_no_inline_script_or_style(client: FlaskClient) -> None:
    for address in ("/", "/jobs", "/jobs/host/101", "/audit", "/events"):
        text = client.get(address).text
        assert "<style" not in text
        assert " style=" not in text
        assert " onclick" not in text
        for tag in text.split("<script")[1:]:
            assert " src=" in tag.split(">")[0]


def test_overview_adds_up(client: FlaskClient, database: Path) -> None:
    data = data_of(client.get("/api/overview?minutes=60"))
    with Session(create_engine(f"sqlite:///{database}")) as session:
        gained = session.scalar(select(func.sum(BubbleUse.gpu_time_us)))
    assert data["totals"]["shares"]["gpu_time_us"] == pytest.approx(gained)
    assert sum(data["cluster"]["filled_us"]) == pytest.approx(gained)
    assert sum(sum(chart["filled_us"]) for chart in data["charts"].values()) == pytest.approx(
        gained
    )
    assert data["now"] == {
        "gpus": 4,
        "gpus_training": 3,
        "gpus_lending": 2,
        "host_jobs": 2,
        "fill_jobs": 3,
    }
    assert data["slowdown_budget"] == 0.01


def test_measured_slowdown_is_there_or_not_known_yet(client: FlaskClient) -> None:
    hosts = {job["job_id"]: job for job in data_of(client.get("/api/jobs"))["hosts"]}
    assert hosts[101]["calibrated_slowdown"] == 0.0042
    assert hosts[103]["calibrated_slowdown"] is None
    assert data_of(client.get("/api/jobs/host/101"))["job"]["calibrated_slowdown"] == 0.0042
    shared = (hosts[101]["share_mode"], hosts[101]["share_reason"])
    assert shared == ("mps", "asked for")


def test_overview_begins_with_the_ledger(client: FlaskClient) -> None:
    day = data_of(client.get("/api/overview?minutes=1440"))
    assert 700e6 < day["now_us"] - day["since_us"] < 760e6
    assert day["since_us"] <= day["cluster"]["began_at_us"][0]
    short = data_of(client.get("/api/overview?minutes=1"))
    assert 60e6 <= short["now_us"] - short["since_us"] < 75e6


def test_overview_of_one_node(client: FlaskClient) -> None:
    data = data_of(client.get("/api/overview?node=n2"))
    assert [gpu["uuid"] for gpu in data["gpus"]] == [uuid_of(2), uuid_of(3)]
    assert list(data["charts"]) == [uuid_of(2), uuid_of(3)]
    assert data["nodes"] == ["n1", "n2"]


def test_audit_pages_meet_without_gap(client: FlaskClient) -> None:
    seen: list[int] = []
    after = ""
    while True:
        data = data_of(client.get(f"/api/audit?fill_job=203&limit=300{after}"))
        seen += [row["id"] for row in data["rows"]]
        if data["next"] is None:
            break
        after = f"&after={data['next']}"
    download = data_of(client.get("/audit.json?fill_job=203"))
    assert seen == [row["id"] for row in download]
    assert data_of(client.get("/api/audit/sums?fill_job=203"))["rows"] == len(seen)
    assert len(seen) == len(set(seen)) > 300


def test_empty_ledger_has_shares_of_nothing(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/empty.db")
    Base.metadata.create_all(engine)
    client = client_of(tmp_path / "empty.db")
    data = data_of(client.get("/api/overview"))
    assert data["totals"]["shares"]["filled_share"] is None
    assert data["slowdown_budget"] is None
    assert data_of(client.get("/audit.json")) == []


def test_lost_database_is_503_in_a_sentence(tmp_path: Path) -> None:
    answer = client_of(tmp_path / "none" / "sfill.db").get("/api/jobs")
    assert answer.status_code == 503
    assert data_of(answer)["error"].startswith(
        "The database cannot be read just now (no such file or directory)"
    )


@pytest.mark.parametrize("minutes", [1, 15, 60, 360, 1440, 10080, 527_040])
def test_steps_are_whole_windows_and_few(minutes: int) -> None:
    period = minutes * 60_000_000
    step = step_us(period)
    assert step % WINDOW_US == 0
    assert period / step <= MAX_STEPS


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('listen = "0.0.0.0:80"', "listen = '0.0.0.0:80': must be a loopback address"),
        ('listen = "127.0.0.1"', "listen = '127.0.0.1': must be ADDRESS:PORT"),
        ('listen = "127.0.0.1:99999"', "must be ADDRESS:PORT"),
        ('listen = "::1:8642"', "must be ADDRESS:PORT"),
        (f'listen = "[::1]:{"9" * 5000}"', "must be ADDRESS:PORT"),
        ("refresh_s = 0", "refresh_s = 0: input should be greater than or equal to 1"),
        ("lunch = 1", "lunch is unknown; allowed are listen, database_url"),
        ("listen = ", "not TOML"),
    ],
)
def test_bad_settings_name_the_key(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "sfill.toml"
    file.write_text(f"[web]\n{text}\n")
    with pytest.raises(SettingsError) as error:
        load_settings(str(file))
    assert sentence in str(error.value)
    assert str(file) in str(error.value)


def test_environment_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "sfill.toml"
    file.write_text('[web]\nrefresh_s = 7\nlisten = "[::1]:8000"\n')
    monkeypatch.setenv("SFILL_WEB_REFRESH_S", "9")
    found = load_settings(str(file))
    assert (found.refresh_s, found.host, found.port) == (9, "::1", 8000)
