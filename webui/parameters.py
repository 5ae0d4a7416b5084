"""Query parameters of the dashboard's addresses: read, bounded, or refused in one sentence."""

from __future__ import annotations

import re
import time
from datetime import UTC

from flask import request

from db.queries import AuditFilter, EventFilter, Key
from db.quoted import quoted
from db.when import parse_when
from db.whole_number import whole_number
from db.wire.messages import Cause

MAX_JOB = 2**31 - 1
PERIODS_MINUTES = (15, 60, 360, 1440, 10080)
_NAME = re.compile(r"[\w.@+-]{1,64}")


class BadParameterError(ValueError):
    """A parameter that cannot be used; the text says which and what is allowed."""


def now_us() -> int:
    """UTC microseconds since the epoch."""
    return time.time_ns() // 1000


def refuse_unknown(*known: str) -> None:
    """Raise BadParameterError for a parameter that this address does not know."""
    for name in request.args:
        if name not in known:
            allowed = ", ".join(known) or "none"
            raise BadParameterError(f"{name} is no parameter of this page; allowed: {allowed}")


def whole(name: str, default: int | None, low: int, high: int) -> int | None:
    """A whole number from `low` to `high`; `default` when it is absent or empty."""
    text = request.args.get(name, "").strip()
    if not text:
        return default
    found = whole_number(text, low, high)
    if found is None:
        raise BadParameterError(
            f"{name} must be a whole number from {low} to {high}, not {quoted(text)}"
        )
    return found


def name_of(name: str) -> str | None:
    """A name of a user, node or GPU; None when it is absent or empty."""
    text = request.args.get(name, "").strip()
    if not text:
        return None
    if not _NAME.fullmatch(text):
        raise BadParameterError(
            f"{name} must be a name of at most 64 letters, digits and _ . @ + -"
        )
    return text


def when(name: str, now: int) -> int | None:
    """An instant; a time without zone is UTC (the pages always send one)."""
    text = request.args.get(name, "").strip()
    if not text:
        return None
    try:
        return parse_when(text, now_us=now, zone=UTC)
    except ValueError as error:
        raise BadParameterError(f"{name}: {error}") from None


def span(now: int) -> tuple[int | None, int | None]:
    """`since` and `until`."""
    since, until = when("since", now), when("until", now)
    if since is not None and until is not None and since >= until:
        raise BadParameterError("since must be before until")
    return since, until


def minutes() -> int:
    """Length of the period shown."""
    return whole("minutes", 60, 1, 527_040) or 60


def page_key() -> Key | None:
    """`after`: time and id of the last row seen, as TIME-ID."""
    text = request.args.get("after", "").strip()
    if not text:
        return None
    found = re.fullmatch(r"(\d{1,18})-(\d{1,18})", text)
    if not found:
        raise BadParameterError("after must be the next key that an earlier page gave, TIME-ID")
    return int(found[1]), int(found[2])


def key_text(key: Key | None) -> str | None:
    """What `page_key` reads."""
    return None if key is None else f"{key[0]}-{key[1]}"


def audit_filter(now: int) -> AuditFilter:
    """The filter that the audit page, its data and its downloads share."""
    cause = name_of("cause")
    causes = [str(item) for item in Cause]
    if cause is not None and cause not in causes:
        raise BadParameterError(f"cause must be one of {', '.join(causes)}, not {quoted(cause)}")
    since, until = span(now)
    return AuditFilter(
        fill_job_id=whole("fill_job", None, 1, MAX_JOB),
        host_job_id=whole("host_job", None, 1, MAX_JOB),
        gpu=name_of("gpu"),
        node=name_of("node"),
        user=name_of("user"),
        cause=cause,
        since_us=since,
        until_us=until,
    )


def event_filter(now: int) -> EventFilter:
    """The filter of the events page."""
    since, until = span(now)
    return EventFilter(
        what=name_of("what"),
        job_id=whole("job", None, 1, MAX_JOB),
        node=name_of("node"),
        gpu=name_of("gpu"),
        user=name_of("user"),
        since_us=since,
        until_us=until,
    )
