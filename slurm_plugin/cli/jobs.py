"""`sfill jobs`: host jobs and fill jobs with their figures."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click
from rich.console import Console

from db import queries
from db.queries import FillJobWhole, HostJobWhole, JobFilter
from slurm_plugin.cli.console import make_console, print_json
from slurm_plugin.cli.filters import JOB, Name, Whole, check_span, json_option, now_us, time_options
from slurm_plugin.cli.ledger import ledger
from slurm_plugin.cli.settings import CliSettings
from slurm_plugin.cli.tables import (
    NOTHING,
    Column,
    cost,
    length,
    memory,
    moment,
    print_table,
    share,
    sharing,
    slowdown,
)

HOST_COLUMNS = (
    Column("HOST JOB", right=True),
    Column("USER", rank=3),
    Column("MODE"),
    Column("SHARES BY", rank=4, wrap=True),
    Column("NODES", rank=6, wrap=True),
    Column("GPUS", rank=5, right=True),
    Column("STARTED", rank=7),
    Column("STATE", rank=2),
    Column("GPU TIME", rank=8, right=True),
    Column("BUBBLES", rank=2, right=True),
    Column("FILLED", right=True),
    Column("INTRUSION", rank=1, right=True),
    Column("SLOWDOWN", rank=2, right=True),
    Column("BUDGET", rank=4, right=True),
)
FILL_COLUMNS = (
    Column("FILL JOB", right=True),
    Column("USER", rank=1),
    Column("MEMORY", rank=5, right=True),
    Column("BESIDE", rank=2),
    Column("NODES", rank=6, wrap=True),
    Column("STARTED", rank=7),
    Column("STATE", rank=3, wrap=True),
    Column("STARTS", rank=8, right=True),
    Column("BUBBLES USED", rank=2, right=True),
    Column("GPU TIME", right=True),
    Column("OF ITS TIME", rank=4, right=True),
    Column("INTRUSION", rank=1, right=True),
)


@click.command()
@click.option("--kind", type=click.Choice(["host", "fill", "all"]), default="all")
@click.option("--job", type=JOB, help="Only this Slurm job.")
@click.option("--user", type=Name(), help="Only jobs of this user.")
@click.option("--running", is_flag=True, help="Only jobs that run now.")
@time_options
@click.option("--limit", type=Whole(1, 100_000), default=100, show_default=True)
@json_option
@click.pass_obj
def jobs(
    settings: CliSettings,
    kind: str,
    job: int | None,
    user: str | None,
    running: bool,
    since: int | None,
    until: int | None,
    limit: int,
    as_json: bool,
) -> None:
    """Host jobs (training that lends) and fill jobs (inference in bubbles), newest first.

    Of jobs that run, BUBBLES, FILLED, OF ITS TIME and the INTRUSION of a host job are shares of the
    time up to the last closed window (10 s); of those that ended, of all their time. INTRUSION is
    how long ready training work waited for fill: a share for a host job, in all for a fill job.
    SLOWDOWN is what fill costs the training in all, clock and caches included: measured by
    comparing its stretches with fill and, in random hold-outs, without. SHARES BY is how its GPUs
    are shared with fills, and why.
    """
    check_span(since, until)
    which = JobFilter(
        job_id=job, user=user, running=running or None, since_us=since, until_us=until
    )
    now = now_us()
    hosts: list[HostJobWhole] = []
    fills: list[FillJobWhole] = []
    with ledger(settings) as session:
        if kind != "fill":
            rows = queries.host_jobs(session, which, now_us=now, limit=limit)
            hosts = queries.whole_host_jobs(rows)
        if kind != "host":
            starts = queries.fill_jobs(session, which, limit=limit)
            fills = queries.whole_fill_jobs(starts, now_us=now)
    if as_json:
        print_json([*map(_host_record, hosts), *map(_fill_record, fills)])
        return
    console = make_console()
    if not hosts and not fills:
        console.print("No job matches.")
        return
    _print(console, hosts, fills)


def _print(console: Console, hosts: list[HostJobWhole], fills: list[FillJobWhole]) -> None:
    if hosts:
        print_table(console, HOST_COLUMNS, [_host_row(job) for job in hosts])
    if hosts and fills:
        console.print()
    if fills:
        print_table(console, FILL_COLUMNS, [_fill_row(job) for job in fills])


def _host_row(job: HostJobWhole) -> tuple[str, ...]:
    return (
        str(job.job_id),
        job.user,
        job.mode,
        sharing(job.share_mode, job.share_reason),
        ",".join(job.nodes),
        str(len(job.gpus)),
        moment(job.started_at_us),
        "running" if job.ended_at_us is None else "ended",
        length(job.gpu_wall_us),
        share(job.bubble_share),
        share(job.filled_share),
        cost(job.intrusion_fraction),
        slowdown(job.calibrated_slowdown) if job.mode == "on" else NOTHING,
        share(job.slowdown_budget),
    )


def _fill_row(job: FillJobWhole) -> tuple[str, ...]:
    return (
        str(job.job_id),
        job.user,
        memory(job.memory_bytes),
        ",".join(str(host) for host in job.host_job_ids) or "none",
        ",".join(job.nodes),
        moment(job.admitted_at_us),
        "running" if job.ended_at_us is None else (job.end_reason or "ended"),
        str(job.starts),
        f"{job.bubbles_used:,}",
        length(job.gpu_time_us),
        share(job.gpu_share),
        length(job.intrusion_us),
    )


def _host_record(job: HostJobWhole) -> dict[str, Any]:
    return {
        "kind": "host",
        **asdict(job),
        "bubble_share": job.bubble_share,
        "filled_share": job.filled_share,
        "intrusion_fraction": job.intrusion_fraction,
    }


def _fill_record(job: FillJobWhole) -> dict[str, Any]:
    return {"kind": "fill", **asdict(job), "gpu_share": job.gpu_share}
