"""What somebody wrote, as a sentence about it shows it."""

from __future__ import annotations

_MOST_CHARACTERS = 80


def quoted(value: object) -> str:
    """As Python writes it, so on one line; of a long one the beginning and its length."""
    try:
        text = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} nested too deep to be shown"
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[:_MOST_CHARACTERS]}... ({len(text)} characters)"
