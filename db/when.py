"""Times as people write them, and as UTC microseconds since the epoch.

Accepted: an age (`90s`, `15m`, `6h`, `3d` ago), `now`, or ISO 8601 (`2026-03-01`,
`2026-03-01 14:30`, `2026-03-01T14:30:00Z`, `...+02:00`). A time without a zone is local time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo

from db.quoted import quoted

ALLOWED = "an age such as 90s, 15m, 6h or 3d, or a time since 1970 such as 2026-03-01T14:30"
_AGE = re.compile(r"(\d{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BEFORE = datetime(1969, 1, 1, tzinfo=UTC)


def parse_when(text: str, *, now_us: int, zone: tzinfo | None = None) -> int:
    """The instant that `text` names; `zone` holds where it names none (None: local time).

    Raises ValueError with one sentence that says what is allowed.
    """
    words = text.strip()
    if words == "now":
        return now_us
    if age := _AGE.fullmatch(words):
        at_us = now_us - int(age[1]) * _SECONDS[age[2]] * 1_000_000
        if at_us < 0:
            raise _no_time(text)
        return at_us
    try:
        at = datetime.fromisoformat(words)
        if at.tzinfo is None:
            at = at.replace(tzinfo=zone) if zone is not None else at.astimezone()
    except (ValueError, OverflowError):
        at = _BEFORE
    if at < _EPOCH:  # about the first year, whether one is read depends on the zone
        raise _no_time(text)
    return (at - _EPOCH) // timedelta(microseconds=1)


def _no_time(text: str) -> ValueError:
    return ValueError(f"{quoted(text)} is no time; allowed is {ALLOWED}")


def iso_utc(at_us: int) -> str:
    """ISO 8601 in UTC with microseconds: for files that machines read."""
    at = _EPOCH + timedelta(microseconds=at_us)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def local(at_us: int) -> datetime:
    """The same instant in local time, with its zone."""
    return (_EPOCH + timedelta(microseconds=at_us)).astimezone()
