"""The operator's switch stops fill work, not training; audit, dashboard and database agree."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import Any, cast

from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from db.models import BubbleUse
from tests.cluster.cluster import USERS, Cluster
from tests.cluster.driver import kernels_launched, kernels_of
from tests.cluster.workloads import (
    UNDER_WAY,
    submit_fill,
    submit_training,
    wait_kernels,
    wait_lends,
)

SECOND_NS = 1_000_000_000


def filling(cluster: Cluster) -> tuple[int, int]:
    """A training and a fill job in its bubbles, of two users."""
    host = submit_training(cluster, "-w", "n1", user=USERS[0])
    wait_lends(cluster, "f1")
    fill = submit_fill(cluster, "-w", "f1", user=USERS[1])
    wait_kernels(cluster, fill, 200)
    return host, fill


def latest_start_ns(cluster: Cluster, job: int) -> int:
    return kernels_of(cluster, job)[-1].start_ns


def stored(cluster: Cluster, fill: int) -> list[dict[str, Any]]:
    """Rows of the table, newest first."""
    engine = create_engine(f"sqlite:///{cluster.sandbox.folder}/db/sfill.db")
    columns = [column.key for column in BubbleUse.__table__.columns]
    with Session(engine) as session:
        query = select(BubbleUse).where(BubbleUse.fill_slurm_job_id == fill)
        order = (BubbleUse.first_release_at_us.desc(), BubbleUse.id.desc())
        return [
            {name: getattr(row, name) for name in columns}
            for row in session.scalars(query.order_by(*order))
        ]


def dashboard(cluster: Cluster, path: str) -> Any:
    address = f"http://127.0.0.1:{cluster.sandbox.web_port}{path}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(address, timeout=10) as answer:
        return json.load(answer)


def test_off_stops_fill_work_within_a_second_and_on_resumes(cluster: Cluster) -> None:
    host, fill = filling(cluster)
    try:
        cluster.check("sfill", "off", "--reason", "a test")
        off_ns = time.monotonic_ns()
        time.sleep(3)
        assert latest_start_ns(cluster, fill) < off_ns + SECOND_NS
        assert latest_start_ns(cluster, host) > off_ns + 2 * SECOND_NS
        assert cluster.state(fill) == "RUNNING"
        assert "switched off on the whole cluster" in cluster.check("sfill", "status")
        assert cluster.supply("f1") == 0
    finally:
        cluster.check("sfill", "on")
    on_ns = time.monotonic_ns()
    cluster.wait(lambda: latest_start_ns(cluster, fill) > on_ns, 5.0, "fill work to resume")
    events = cast(list[dict[str, Any]], cluster.sfill_json("events", "--user", "root"))
    assert [row["what"] for row in events[:2]] == ["on", "off"]
    assert "a test" in events[1]["text"]


def test_ordinary_users_cannot_switch(cluster: Cluster) -> None:
    answer = cluster.run("sfill", "off", user=USERS[0])
    assert answer.returncode == 1
    assert "only root and SlurmUser may switch filling off and on" in answer.stderr
    assert cluster.check("sfill", "status", user=USERS[0]).startswith("Filling is on")


def test_audit_and_dashboard_give_the_rows_of_the_database(cluster: Cluster) -> None:
    host, fill = filling(cluster)
    cluster.wait(lambda: len(stored(cluster, fill)) > 30, 20.0, "30 uses of bubbles on record")
    cluster.run("scancel", str(fill))
    cluster.wait_end(fill)
    time.sleep(2)  # the last batch of the agent
    rows = stored(cluster, fill)
    columns = rows[0].keys()
    told = cast(list[dict[str, Any]], cluster.sfill_json("audit", "--fill-job", str(fill)))
    assert [{name: row[name] for name in columns} for row in told] == rows
    assert dashboard(cluster, f"/audit.json?fill_job={fill}") == told
    page = dashboard(cluster, f"/api/audit?fill_job={fill}&limit=20")
    assert page["rows"] == told[:20]
    assert {row["host_slurm_job_id"] for row in rows} == {host}
    assert {(row["host_user"], row["fill_user"]) for row in told} == {USERS}
    sums = dashboard(cluster, f"/api/audit/sums?fill_job={fill}")
    launched = kernels_launched(cluster, fill)
    assert launched <= sums["kernels"] <= launched + UNDER_WAY
