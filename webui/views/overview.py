"""Overview: headline figures, and for each GPU what it did over time and stands at now."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify, render_template
from sqlalchemy import select
from sqlalchemy.orm import Session

from db.models import Gpu, Node
from db.queries import (
    JobFilter,
    filling_is_off,
    gpus_now,
    host_jobs,
    ledger_begins_at_us,
    timeline,
    totals,
)
from webui import parameters, present
from webui.reading import reading

pages = Blueprint("overview", __name__)

MAX_CHARTS = 16  # GPUs drawn at once; the node filter brings up the others
RECENT_US = 300_000_000
LEAST_US = 120_000_000  # shortest span that is drawn


@pages.get("/")
def page() -> str:
    parameters.refuse_unknown("minutes", "node")
    parameters.minutes()
    return render_template("overview.html", periods=parameters.PERIODS_MINUTES)


@pages.get("/api/overview")
def data() -> Response:
    parameters.refuse_unknown("minutes", "node")
    period_us = parameters.minutes() * 60_000_000
    node = parameters.name_of("node")
    now = parameters.now_us()
    with reading() as session:
        since, step = _span(session, now, period_us)
        gpus = gpus_now(session, now_us=now, recent_us=RECENT_US)
        sums = totals(session, since_us=since, until_us=now)
        buckets = timeline(session, since_us=since, until_us=now, resolution_us=step)
        hosts = host_jobs(session, JobFilter(since_us=since), now_us=now, limit=1000)
        off = filling_is_off(session)
    lending = [job.slowdown_budget for job in hosts if job.mode == "on"]
    shown = [gpu for gpu in gpus if node is None or gpu.node == node]
    drawn = {gpu.uuid: buckets.get(gpu.uuid, []) for gpu in shown[:MAX_CHARTS]}
    return jsonify(
        {
            "now_us": now,
            "since_us": since,
            "step_us": step,
            "recent_us": RECENT_US,
            "off": off,
            "nodes": list(dict.fromkeys(gpu.node for gpu in gpus)),
            "now": present.now(gpus),
            "totals": present.totals(sums),
            "slowdown_budget": min(lending, default=None),
            "cluster": present.series(bucket for found in buckets.values() for bucket in found),
            "gpus": [present.gpu(gpu) for gpu in shown],
            "charts": present.charts(drawn),
        }
    )


def _span(session: Session, now: int, period_us: int) -> tuple[int, int]:
    """Since and step: the period, or the ledger's whole life where that is shorter."""
    begins = ledger_begins_at_us(session)
    if begins is not None:
        period_us = min(period_us, max(now - begins, LEAST_US))
    step = present.step_us(period_us)
    return (now - period_us) // step * step, step


@pages.get("/api/gpus")
def names() -> Response:
    """Names of all GPUs, for filters and for rows that give a UUID."""
    parameters.refuse_unknown()
    with reading() as session:
        query = select(Gpu.uuid, Node.name, Gpu.minor).join(Node, Gpu.node_id == Node.id)
        rows = session.execute(query.order_by(Node.name, Gpu.minor)).all()
    return jsonify({"gpus": [{"uuid": row[0], "node": row[1], "minor": row[2]} for row in rows]})
