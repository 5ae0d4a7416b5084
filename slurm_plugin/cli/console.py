"""Output: colours and lines on a terminal, plain columns in a pipe, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console

PIPE_WIDTH = 1000  # a pipe has no width: nothing is cut


def make_console() -> Console:
    """A console on standard output; COLUMNS is respected in a pipe as well.

    What users' processes said is shown as it is: brackets and colons in it are no markup.
    """
    if sys.stdout.isatty():
        return Console(highlight=False, markup=False, emoji=False)
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) > 0 else PIPE_WIDTH
    return Console(
        highlight=False,
        markup=False,
        emoji=False,
        width=width,
        force_terminal=False,
        no_color=True,
        color_system=None,
    )


def print_json(rows: Iterable[dict[str, Any]]) -> None:
    """A JSON array, one row a line, written as the rows come."""
    opening = "["
    for row in rows:
        sys.stdout.write(opening + json.dumps(row))
        opening = ",\n "
    sys.stdout.write("[]\n" if opening == "[" else "]\n")
