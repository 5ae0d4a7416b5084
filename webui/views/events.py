"""Events: the audit log of what agents, controller and operators did."""

from __future__ import annotations

from dataclasses import asdict

from flask import Blueprint, Response, jsonify, render_template

from db import queries
from webui import parameters
from webui.reading import reading

pages = Blueprint("events", __name__)

FILTERS = ("what", "job", "node", "gpu", "user", "since", "until")
PAGE_ROWS = 100


@pages.get("/events")
def page() -> str:
    parameters.refuse_unknown(*FILTERS)
    parameters.event_filter(parameters.now_us())
    return render_template("events.html")


@pages.get("/api/events")
def data() -> Response:
    parameters.refuse_unknown(*FILTERS, "limit", "after")
    now = parameters.now_us()
    wanted = parameters.event_filter(now)
    limit = parameters.whole("limit", PAGE_ROWS, 1, 1000) or PAGE_ROWS
    with reading() as session:
        found = queries.events(session, wanted, limit=limit, after=parameters.page_key())
        kinds = queries.event_kinds(session)
    return jsonify(
        {
            "now_us": now,
            "kinds": kinds,
            "rows": [asdict(row) for row in found.rows],
            "next": parameters.key_text(found.next_key),
        }
    )
