"""Jobs: the lists of host and fill jobs, and one page for each job."""

from __future__ import annotations

from dataclasses import asdict

from flask import Blueprint, Response, abort, jsonify, render_template

from db import queries
from db.queries import EventFilter, JobFilter
from webui import parameters, present
from webui.reading import reading

pages = Blueprint("jobs", __name__)

MAX_ROWS = 500
MAX_STARTS = 1000  # of one job
MAX_EVENTS = 50
MINUTE_US = 60_000_000


@pages.get("/jobs")
def page() -> str:
    return render_template("jobs.html")


@pages.get("/jobs/host/<int(max=2147483647):job_id>")
def host_page(job_id: int) -> str:
    return render_template("job.html", kind="host", job_id=job_id)


@pages.get("/jobs/fill/<int(max=2147483647):job_id>")
def fill_page(job_id: int) -> str:
    return render_template("job.html", kind="fill", job_id=job_id)


@pages.get("/api/jobs")
def data() -> Response:
    parameters.refuse_unknown()
    now = parameters.now_us()
    with reading() as session:
        hosts = queries.host_jobs(session, JobFilter(), now_us=now, limit=MAX_ROWS)
        fills = queries.fill_jobs(session, JobFilter(), limit=MAX_ROWS)
    return jsonify(
        {
            "now_us": now,
            "limit": MAX_ROWS,
            "full": len(hosts) == MAX_ROWS or len(fills) == MAX_ROWS,
            "hosts": [present.host(job) for job in queries.whole_host_jobs(hosts)],
            "fills": [present.fill(job) for job in queries.whole_fill_jobs(fills, now_us=now)],
        }
    )


@pages.get("/api/jobs/host/<int(max=2147483647):job_id>")
def host_data(job_id: int) -> Response:
    parameters.refuse_unknown()
    now = parameters.now_us()
    with reading() as session:
        rows = queries.host_jobs(session, JobFilter(job_id=job_id), now_us=now, limit=MAX_STARTS)
        if not rows:
            abort(404, f"No host job {job_id} is recorded.")
        job = queries.whole_host_jobs(rows)[0]
        since, until, step = _period(job.started_at_us, job.ended_at_us, now)
        charts = queries.job_timeline(
            session, since_us=since, until_us=until, resolution_us=step, host_job_id=job_id
        )
        lines = queries.events(session, EventFilter(job_id=job_id), limit=MAX_EVENTS).rows
        fills = queries.fill_jobs_beside(session, job_id, now_us=now)
    return jsonify(
        {
            "now_us": now,
            "since_us": since,
            "until_us": until,
            "step_us": step,
            "job": present.host(job),
            "fills": [present.fill(fill) for fill in fills],
            "charts": present.charts(charts),
            "events": [asdict(line) for line in lines],
        }
    )


@pages.get("/api/jobs/fill/<int(max=2147483647):job_id>")
def fill_data(job_id: int) -> Response:
    parameters.refuse_unknown()
    now = parameters.now_us()
    with reading() as session:
        starts = queries.fill_jobs(session, JobFilter(job_id=job_id), limit=MAX_STARTS)
        if not starts:
            abort(404, f"No fill job {job_id} is recorded.")
        job = queries.whole_fill_jobs(starts, now_us=now)[0]
        since, until, step = _period(job.admitted_at_us, job.ended_at_us, now)
        charts = queries.job_timeline(
            session, since_us=since, until_us=until, resolution_us=step, fill_job_id=job_id
        )
        lines = queries.events(session, EventFilter(job_id=job_id), limit=MAX_EVENTS).rows
    return jsonify(
        {
            "now_us": now,
            "since_us": since,
            "until_us": until,
            "step_us": step,
            "job": present.fill(job),
            "starts": [asdict(start) for start in starts],
            "charts": present.charts(charts),
            "events": [asdict(line) for line in lines],
        }
    )


def _period(began_us: int, ended_us: int | None, now: int) -> tuple[int, int, int]:
    """Since, until and step of a job's chart: its whole life, at least a minute."""
    until = now if ended_us is None else ended_us + present.WINDOW_US
    until = max(until, began_us + MINUTE_US)
    step = present.step_us(until - began_us)
    return began_us // step * step, until, step
