"""Tables that fit the terminal, and figures as people read them.

`None` is "-": nothing to divide by (no training, no bubble), which is not 0 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from db.when import local

NOTHING = "-"
_GIB = 1 << 30


@dataclass(frozen=True)
class Column:
    """One column; those with the highest `rank` go first when the terminal is narrow."""

    title: str
    rank: int = 0
    right: bool = False
    wrap: bool = False


def print_table(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print what fits, and say which columns were left out."""
    left = list(range(len(columns)))
    out: list[int] = []
    table = _table(console, columns, rows, left)
    while _width(console, table) > console.width and any(columns[at].rank for at in left):
        worst = max(left, key=lambda at: (columns[at].rank, at))
        left.remove(worst)
        out.append(worst)
        table = _table(console, columns, rows, left)
    console.print(table)
    if out:
        names = ", ".join(columns[at].title for at in sorted(out))
        console.print(f"Left out for lack of width: {names}.", style="dim")


def _width(console: Console, table: Table) -> int:
    options = console.options.update(max_width=100_000)
    return Measurement.get(console, options, table).minimum


def _table(
    console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]], shown: list[int]
) -> Table:
    lines = box.SIMPLE_HEAD if console.is_terminal else None
    table = Table(box=lines, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for at in shown:
        column = columns[at]
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.wrap,
            overflow="fold",
            min_width=_least(column, [row[at] for row in rows]),
        )
    for row in rows:
        table.add_row(*(row[at] for at in shown))
    return table


def _least(column: Column, cells: Sequence[str]) -> int:
    """Characters that a column needs: whole cells, or where it may wrap, whole words."""
    texts = [column.title, *cells]
    if column.wrap:
        texts = [word for text in texts for word in text.split()]
    return max(map(len, texts))


def share(value: float | None, digits: int = 1) -> str:
    """A fraction as per cent."""
    return NOTHING if value is None else f"{100 * value:.{digits}f} %"


def cost(value: float | None) -> str:
    """An intrusion fraction: small figures matter."""
    return share(value, 3 if value is not None and value < 0.001 else 2)


def sharing(mode: str | None, reason: str) -> str:
    """How a host job shares its GPUs with fills, and why."""
    if mode is None:
        return NOTHING
    return f"{mode}: {reason}" if reason else mode


def slowdown(value: float | None) -> str:
    """A measured slowdown: it takes a while until one is known."""
    return "not known yet" if value is None else cost(value)


def length(us: float) -> str:
    """A length of time in the unit that suits it."""
    if us < 1000:
        return f"{us:.0f} us"
    if us < 1_000_000:
        return f"{us / 1000:.1f} ms"
    if us < 120_000_000:
        return f"{us / 1e6:.1f} s"
    if us < 7_200_000_000:
        return f"{us / 60e6:.1f} min"
    return f"{us / 3600e6:.2f} h"


def memory(size_bytes: int | None) -> str:
    """Memory in GiB."""
    if size_bytes is None:
        return NOTHING
    gib = size_bytes / _GIB
    return f"{gib:.0f} GiB" if gib == int(gib) else f"{gib:.1f} GiB"


def moment(at_us: int | None, *, fine: bool = False) -> str:
    """Local time with its zone; to the millisecond when `fine`."""
    if at_us is None:
        return NOTHING
    at = local(at_us)
    milli = f".{at.microsecond // 1000:03d}" if fine else ""
    return f"{at:%Y-%m-%d %H:%M:%S}{milli} {at:%Z}"
