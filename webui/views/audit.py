"""Audit: which fill used which bubble of whom, when, for how long and at what cost."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields

from flask import Blueprint, Response, jsonify, render_template

from db import queries
from db.engine import Database
from db.queries import AuditFilter, AuditRow, Key
from db.wire.messages import Cause
from webui import parameters
from webui.reading import database, reading

pages = Blueprint("audit", __name__)

FILTERS = ("fill_job", "host_job", "gpu", "node", "user", "cause", "since", "until")
PAGE_ROWS = 100
DOWNLOAD_ROWS = 2000  # rows read at a time; a download has no limit
COLUMNS = tuple(column.name for column in fields(AuditRow))

Lines = Callable[[Iterator[AuditRow]], Iterator[str]]


@pages.get("/audit")
def page() -> str:
    parameters.refuse_unknown(*FILTERS)
    parameters.audit_filter(parameters.now_us())
    return render_template("audit.html", causes=[str(cause) for cause in Cause])


@pages.get("/api/audit")
def data() -> Response:
    parameters.refuse_unknown(*FILTERS, "limit", "after")
    now = parameters.now_us()
    wanted = parameters.audit_filter(now)
    limit = parameters.whole("limit", PAGE_ROWS, 1, 1000) or PAGE_ROWS
    after = parameters.page_key()
    with reading() as session:
        found = queries.audit(session, wanted, limit=limit, after=after)
    return jsonify(
        {
            "now_us": now,
            "rows": [asdict(row) for row in found.rows],
            "next": parameters.key_text(found.next_key),
        }
    )


@pages.get("/api/audit/sums")
def sums() -> Response:
    """Apart from the rows: these read every row of the filter, a page reads a hundred."""
    parameters.refuse_unknown(*FILTERS)
    wanted = parameters.audit_filter(parameters.now_us())
    with reading() as session:
        return jsonify(asdict(queries.audit_sums(session, wanted)))


@pages.get("/audit.csv")
def as_csv() -> Response:
    return _download(_csv_lines, "text/csv", "csv")


@pages.get("/audit.json")
def as_json() -> Response:
    return _download(_json_lines, "application/json", "json")


def _download(lines: Lines, mimetype: str, suffix: str) -> Response:
    """All rows of the filter, streamed as they are read."""
    parameters.refuse_unknown(*FILTERS)
    wanted = parameters.audit_filter(parameters.now_us())
    response = Response(lines(_all_rows(database(), wanted)), mimetype=mimetype)
    response.headers["Content-Disposition"] = f'attachment; filename="sfill-audit.{suffix}"'
    return response


def _all_rows(source: Database, wanted: AuditFilter) -> Iterator[AuditRow]:
    """Every row of the filter, newest first; no session stays open while the client reads."""
    after: Key | None = None
    while True:
        with source.reading() as session:
            found = queries.audit(session, wanted, limit=DOWNLOAD_ROWS, after=after)
        yield from found.rows
        if found.next_key is None:
            return
        after = found.next_key


def _csv_lines(rows: Iterator[AuditRow]) -> Iterator[str]:
    yield ",".join(COLUMNS) + "\r\n"
    for row in rows:
        line = io.StringIO()
        csv.writer(line).writerow([getattr(row, name) for name in COLUMNS])
        yield line.getvalue()


def _json_lines(rows: Iterator[AuditRow]) -> Iterator[str]:
    opening = "["
    for row in rows:
        yield opening + json.dumps(asdict(row))
        opening = ",\n"
    yield "[]\n" if opening == "[" else "]\n"
