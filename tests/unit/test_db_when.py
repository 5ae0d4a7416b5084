"""Times as people write them."""

from __future__ import annotations

from datetime import UTC, timedelta, timezone

import pytest

from db.when import iso_utc, local, parse_when

NOW_US = 1_800_000_000_000_000


@pytest.mark.parametrize(
    ("text", "at_us"),
    [
        ("now", NOW_US),
        ("90s", NOW_US - 90_000_000),
        (" 15m ", NOW_US - 900_000_000),
        ("3d", NOW_US - 259_200_000_000),
        ("2026-03-01", 1_772_323_200_000_000),
        ("2026-03-01 14:30", 1_772_375_400_000_000),
        ("2026-03-01T14:30:00.000001Z", 1_772_375_400_000_001),
        ("2026-03-01T14:30+02:00", 1_772_368_200_000_000),
    ],
)
def test_accepted(text: str, at_us: int) -> None:
    assert parse_when(text, now_us=NOW_US, zone=UTC) == at_us


def test_a_time_without_zone_is_in_the_zone_given() -> None:
    east = timezone(timedelta(hours=3))
    there = parse_when("2026-03-01T14:30", now_us=NOW_US, zone=east)
    assert there == parse_when("2026-03-01T11:30Z", now_us=NOW_US)


@pytest.mark.parametrize(
    "text",
    [
        *("", "banana", "-5m", "5 m", "5y", "2026-13-01", "14:30", "9" * 50),
        *("0001-01-01", "1969-12-31", "999999d", "20834d", "9" * 5000 + "d"),
    ],
)
def test_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no time; allowed is an age such as 90s"):
        parse_when(text, now_us=NOW_US, zone=UTC)
    with pytest.raises(ValueError, match=r"is no time; allowed is an age such as 90s"):
        parse_when(text, now_us=NOW_US)


def test_instants_survive_both_ways() -> None:
    assert iso_utc(1_772_375_400_000_001) == "2026-03-01T14:30:00.000001Z"
    assert local(NOW_US).timestamp() == NOW_US / 1e6
