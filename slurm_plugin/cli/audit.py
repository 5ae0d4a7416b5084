"""`sfill audit`: every use of every bubble, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import click
from sqlalchemy.orm import Session

from db import queries
from db.queries import AuditFilter, AuditRow, AuditSums, Key
from db.wire.messages import Cause
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
from slurm_plugin.cli.tables import Column, length, moment, print_table

TABLE_ROWS = 50
PAGE_ROWS = 2000

COLUMNS = (
    Column("FIRST RELEASE"),
    Column("NODE", rank=7),
    Column("GPU", rank=10),
    Column("HOST JOB", right=True),
    Column("HOST USER", rank=8),
    Column("FILL JOB", right=True),
    Column("FILL USER", rank=9),
    Column("CAUSE", rank=5),
    Column("BUBBLE", rank=3, right=True),
    Column("USED", rank=4, right=True),
    Column("KERNELS", rank=6, right=True),
    Column("GPU TIME", rank=1, right=True),
    Column("INTRUSION", rank=2, right=True),
)


@click.command()
@click.option("--fill-job", type=JOB, help="Bubbles used by this fill job.")
@click.option("--host-job", type=JOB, help="Bubbles of this training job.")
@click.option("--gpu", metavar="GPU", help="One GPU: its UUID, or NODE:MINOR.")
@click.option("--node", type=Name(), help="GPUs of this node.")
@click.option("--user", type=Name(), help="Owner of the fill job or of the training job.")
@click.option("--cause", type=click.Choice([str(cause) for cause in Cause]), help="What began it.")
@time_options
@click.option(
    "--limit",
    type=Whole(0, 2**31 - 1),
    help=f"Newest rows shown; 0 is all (default: {TABLE_ROWS}, and all with --json).",
)
@json_option
@click.pass_obj
def audit(
    settings: CliSettings,
    fill_job: int | None,
    host_job: int | None,
    gpu: str | None,
    node: str | None,
    user: str | None,
    cause: str | None,
    since: int | None,
    until: int | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Who used whose bubble, when, for how long, and what it cost: newest first.

    --json gives the rows of the table bubble_uses under their own names (times are UTC
    microseconds since the epoch), and node, GPU and users by name.
    """
    check_span(since, until)
    with ledger(settings) as session:
        wanted = AuditFilter(
            fill_job_id=fill_job,
            host_job_id=host_job,
            gpu=find_gpu(session, gpu),
            node=node,
            user=user,
            cause=cause,
            since_us=since,
            until_us=until,
        )
        if as_json:
            print_json(asdict(row) for row in _rows(session, wanted, limit or None))
            return
        most = TABLE_ROWS if limit is None else limit or None
        rows = list(_rows(session, wanted, most))
        sums = queries.audit_sums(session, wanted)
    _print(rows, sums)


def _rows(session: Session, wanted: AuditFilter, most: int | None) -> Iterator[AuditRow]:
    """Rows page by page, at most `most` of them (None: all)."""
    after: Key | None = None
    left = most
    while left is None or left > 0:
        size = PAGE_ROWS if left is None else min(PAGE_ROWS, left)
        page = queries.audit(session, wanted, limit=size, after=after)
        yield from page.rows
        if page.next_key is None:
            return
        after = page.next_key
        left = None if left is None else left - len(page.rows)


def _print(rows: list[AuditRow], sums: AuditSums) -> None:
    console = make_console()
    if not rows:
        console.print("No bubble was used that matches.")
        return
    print_table(console, COLUMNS, [_row(row) for row in rows])
    shown = f"{len(rows):,} of {sums.rows:,} uses shown" if len(rows) < sums.rows else "All uses"
    console.print(
        f"{shown}; in all {sums.rows:,} uses, {sums.kernels:,} kernels,"
        f" {length(sums.gpu_time_us)} of GPU time, {length(sums.intrusion_us)} of intrusion.",
        style="dim",
    )


def _row(row: AuditRow) -> tuple[str, ...]:
    return (
        moment(row.first_release_at_us, fine=True),
        row.node,
        row.gpu_uuid,
        str(row.host_slurm_job_id) + (f".{row.host_step}" if row.host_step else ""),
        row.host_user or "-",
        str(row.fill_slurm_job_id),
        row.fill_user or "-",
        row.cause,
        length(row.bubble_us),
        length(row.used_us),
        f"{row.kernels:,}",
        length(row.gpu_time_us),
        length(row.intrusion_us),
    )
