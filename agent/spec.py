"""The text behind `--fill=` and `--fill-host=`: what it may say and what it means.

Fill jobs: `mem=SIZE`. Host jobs: `off`, `observe` or `on`, then `mem=SIZE` (the most that may be
lent on each GPU), `slowdown=PCT` and `share=timeslice|mps`. An error is one sentence that names the
key and what is allowed, fit to be shown to the user as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from db.whole_number import whole_number
from db.wire.messages import HostMode, ShareMode

_UNIT_BYTES = {"": 1 << 20, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+)([KMGT]?)(?:I?B)?", re.IGNORECASE | re.ASCII)
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)%?", re.ASCII)
_MODES = tuple(HostMode)
_MOST_BYTES = (1 << 63) - 1  # of a database's whole numbers
MAX_SLOWDOWN = 0.2


class SpecError(ValueError):
    """A fill request that cannot be understood; its text is one sentence for the user."""


@dataclass(frozen=True)
class FillSpec:
    """What a fill job asks for; `memory_bytes` is None where the site's default holds."""

    memory_bytes: int | None = None


@dataclass(frozen=True)
class HostSpec:
    """What a host job lends; None where the site's default holds."""

    mode: HostMode | None = None
    lend_bytes: int | None = None
    slowdown: float | None = None
    share: ShareMode | None = None


def parse_size(text: str, key: str = "mem") -> int:
    """Bytes of a size such as `16G`, `512M` or, as in Slurm, `512` (MiB). Raises SpecError."""
    found = _SIZE.fullmatch(text.strip())
    unit_bytes = _UNIT_BYTES[found[2].upper()] if found else 1
    count = whole_number(found[1], 1, _MOST_BYTES // unit_bytes) if found else None
    if count is None:
        raise SpecError(
            f"{key}={text} is no size: use a whole number above 0 with K, M, G or T, as {key}=16G"
        )
    return count * unit_bytes


def parse_percent(text: str, key: str = "slowdown") -> float:
    """The fraction that a percentage such as `1%` or `0.5` means. Raises SpecError."""
    found = _PERCENT.fullmatch(text.strip())
    fraction = float(found[1]) / 100 if found else -1.0
    if not 0 <= fraction <= MAX_SLOWDOWN:
        raise SpecError(
            f"{key}={text} is not allowed: use a percentage from 0% to {MAX_SLOWDOWN:.0%}, "
            f"as {key}=1%"
        )
    return fraction


def parse_share(text: str) -> ShareMode:
    """The way to share a GPU that the text names. Raises SpecError."""
    try:
        return ShareMode(text.strip())
    except ValueError:
        raise SpecError(f"share={text} is not allowed: use share=timeslice or share=mps") from None


def parse_fill(text: str) -> FillSpec:
    """The meaning of `--fill=TEXT`; an empty text asks for the site's default. Raises SpecError."""
    memory_bytes: int | None = None
    for key, value in _pairs(text):
        if key != "mem" or value is None:
            shown = key if value is None else f"{key}={value}"
            raise SpecError(f"--fill does not know {shown!r}: allowed is mem=SIZE, as mem=16G")
        if memory_bytes is not None:
            raise SpecError("--fill names mem twice: give it once, as mem=16G")
        memory_bytes = parse_size(value)
    return FillSpec(memory_bytes)


def parse_host(text: str) -> HostSpec:
    """The meaning of `--fill-host=TEXT`. Raises SpecError."""
    mode: HostMode | None = None
    found: dict[str, str] = {}
    for position, (key, value) in enumerate(_pairs(text)):
        if value is None and position == 0 and key in _MODES:
            mode = HostMode(key)
        elif value is not None and key in ("mem", "slowdown", "share"):
            if key in found:
                raise SpecError(f"--fill-host names {key} twice: give it once")
            found[key] = value
        else:
            shown = key if value is None else f"{key}={value}"
            raise SpecError(
                f"--fill-host does not know {shown!r}: allowed are off, observe or on first, "
                "then mem=SIZE, slowdown=PERCENT and share=timeslice or share=mps"
            )
    if found and mode is None:
        mode = HostMode.ON
    return HostSpec(
        mode,
        parse_size(found["mem"]) if "mem" in found else None,
        parse_percent(found["slowdown"]) if "slowdown" in found else None,
        parse_share(found["share"]) if "share" in found else None,
    )


def _pairs(text: str) -> list[tuple[str, str | None]]:
    """Splits `a,b=c` into (a, None), (b, c)."""
    pairs: list[tuple[str, str | None]] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = part.partition("=")
        pairs.append((key.strip().lower(), value.strip() if equals else None))
    return pairs
