"""Options that several commands share, and what they accept."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click
from sqlalchemy import select
from sqlalchemy.orm import Session

from db.models import Gpu, Node
from db.quoted import quoted
from db.when import ALLOWED, parse_when
from db.whole_number import whole_number

Command = TypeVar("Command", bound=Callable[..., Any])
_PLACE = re.compile(r"([\w.-]+):(\d{1,4})")
_NAME = re.compile(r"[\w.@+-]{1,64}")
_LAST_JOB = 2**31 - 1


def now_us() -> int:
    """UTC microseconds since the epoch."""
    return time.time_ns() // 1000


class When(click.ParamType[int]):
    """An instant, as UTC microseconds."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read what db/when.py allows."""
        if isinstance(value, int):
            return value
        try:
            return parse_when(value, now_us=now_us())
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Name(click.ParamType[str]):
    """A name of a user or node."""

    name = "NAME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse what cannot be a name."""
        if not _NAME.fullmatch(value):
            self.fail(
                f"{quoted(value)} is no name; allowed are letters, digits and _ . @ + -", param, ctx
            )
        return str(value)


class Job(click.ParamType[int]):
    """A Slurm job id."""

    name = "JOB"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Refuse what Slurm cannot have given out."""
        found = whole_number(str(value), 1, _LAST_JOB)
        if found is None:
            self.fail(
                f"{quoted(value)} is no Slurm job id; allowed is 1 to {_LAST_JOB}", param, ctx
            )
        return found


JOB = Job()


class Whole(click.IntRange):
    """A whole number from `low` to `high`."""

    def __init__(self, low: int, high: int) -> None:
        super().__init__(low, high)
        self._low, self._high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Say what is allowed of anything else, be it no number or one outside of the range."""
        found = whole_number(str(value), self._low, self._high)
        if found is None:
            self.fail(
                f"{quoted(str(value))} is not allowed; allowed is {self._low} to {self._high}",
                param,
                ctx,
            )
        return found


def time_options(command: Command) -> Command:
    """--since and --until."""
    command = click.option("--until", type=When(), help="Before this time.")(command)
    return click.option("--since", type=When(), help=f"From this time on: {ALLOWED}.")(command)


def json_option(command: Command) -> Command:
    """--json."""
    return click.option("--json", "as_json", is_flag=True, help="A JSON array instead of a table.")(
        command
    )


def check_span(since_us: int | None, until_us: int | None) -> None:
    """Raise a usage error for an empty span."""
    if since_us is not None and until_us is not None and since_us >= until_us:
        raise click.UsageError("--since must be before --until")


def find_gpu(session: Session, text: str | None) -> str | None:
    """UUID of a GPU given as UUID or NODE:MINOR; a usage error when there is none."""
    if text is None:
        return None
    query = select(Gpu.uuid).join(Node, Gpu.node_id == Node.id)
    if place := _PLACE.fullmatch(text):
        query = query.where(Node.name == place[1], Gpu.minor == int(place[2]))
    else:
        query = query.where(Gpu.uuid == text)
    found = session.scalar(query)
    if found is None:
        raise click.UsageError(
            f"--gpu: no GPU {quoted(text)} is known; "
            "allowed is a UUID or NODE:MINOR as in sfill status"
        )
    return found
