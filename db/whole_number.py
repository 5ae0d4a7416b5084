"""Whole numbers as people and programs write them, checked before Python's own int() is asked.

int() raises for more than 4300 digits and makes a number of any size of fewer, which no database
holds.
"""

from __future__ import annotations


def whole_number(text: str, low: int, high: int) -> int | None:
    """The number that `text` writes in decimal digits, leading zeros or not; None for any other
    text and for a number that is not from `low` to `high` (neither below 0)."""
    if not (text.isascii() and text.isdecimal()):
        return None
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(high)):
        return None
    number = int(digits)
    return number if low <= number <= high else None
