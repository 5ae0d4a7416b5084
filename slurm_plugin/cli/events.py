"""`sfill events`: the audit log of what agents, controller and operators did."""

from __future__ import annotations

from dataclasses import asdict

import click

from db import queries
from db.queries import EventFilter
from slurm_plugin.cli.console import make_console, print_json
from slurm_plugin.cli.filters import (
    JOB,
    Name,
    Whole,
    check_span,
    find_gpu,
    json_option,
    time_options,
)
from slurm_plugin.cli.ledger import ledger
from slurm_plugin.cli.settings import CliSettings
from slurm_plugin.cli.tables import NOTHING, Column, moment, print_table

COLUMNS = (
    Column("TIME"),
    Column("WHAT"),
    Column("NODE", rank=1),
    Column("JOB", right=True),
    Column("USER", rank=2),
    Column("TEXT", wrap=True),
)


@click.command()
@click.option("--what", type=Name(), help="Only events of this kind (admitted, evicted, ...).")
@click.option("--job", type=JOB, help="Only events of this Slurm job.")
@click.option("--node", type=Name(), help="Only events of this node.")
@click.option("--gpu", metavar="GPU", help="Only events of one GPU: its UUID, or NODE:MINOR.")
@click.option("--user", type=Name(), help="Only events about this user.")
@time_options
@click.option("--limit", type=Whole(1, 100_000), default=50, show_default=True)
@json_option
@click.pass_obj
def events(
    settings: CliSettings,
    what: str | None,
    job: int | None,
    node: str | None,
    gpu: str | None,
    user: str | None,
    since: int | None,
    until: int | None,
    limit: int,
    as_json: bool,
) -> None:
    """The audit log: admissions, evictions, refusals, escapes, switches; newest first."""
    check_span(since, until)
    with ledger(settings) as session:
        which = EventFilter(
            what=what,
            job_id=job,
            node=node,
            gpu=find_gpu(session, gpu),
            user=user,
            since_us=since,
            until_us=until,
        )
        page = queries.events(session, which, limit=limit)
        kinds = queries.event_kinds(session) if what and not page.rows else []
    if as_json:
        print_json(asdict(row) for row in page.rows)
        return
    console = make_console()
    if not page.rows:
        hint = f" (kinds so far: {', '.join(kinds)})" if kinds else ""
        console.print(f"No event matches{hint}.")
        return
    rows = [
        (
            moment(row.at_us, fine=True),
            row.what,
            row.node or NOTHING,
            NOTHING if row.slurm_job_id is None else str(row.slurm_job_id),
            row.user or NOTHING,
            row.text,
        )
        for row in page.rows
    ]
    print_table(console, COLUMNS, rows)
    if page.next_key is not None:
        console.print(f"The newest {limit} are shown; --limit shows more.", style="dim")
