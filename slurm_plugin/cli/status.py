"""`sfill status`: each GPU now: training, mode, what is lent, fills, filled share."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click
from rich.console import Console

from db.queries import GpuNow, filling_is_off, gpus_now
from slurm_plugin.cli.console import make_console, print_json
from slurm_plugin.cli.filters import Name, Whole, json_option, now_us
from slurm_plugin.cli.ledger import ledger
from slurm_plugin.cli.settings import CliSettings
from slurm_plugin.cli.tables import (
    NOTHING,
    Column,
    cost,
    length,
    memory,
    print_table,
    share,
    sharing,
    slowdown,
)

SILENT_US = 60_000_000  # an agent's report is written about every ten seconds

COLUMNS = (
    Column("NODE"),
    Column("GPU", right=True),
    Column("TRAINING"),
    Column("USER", rank=5),
    Column("MODE"),
    Column("SHARES BY", rank=4, wrap=True),
    Column("LENT", rank=3, right=True),
    Column("FILLS", wrap=True),
    Column("BUBBLES", rank=1, right=True),
    Column("FILLED", right=True),
    Column("INTRUSION", rank=4, right=True),
    Column("SLOWDOWN", rank=4, right=True),
    Column("NOTE", rank=2, wrap=True),
)


@click.command()
@click.option("--node", type=Name(), help="Only this node.")
@click.option("--minutes", type=Whole(1, 1440), default=5, show_default=True, help="Shares over.")
@json_option
@click.pass_obj
def status(settings: CliSettings, node: str | None, minutes: int, as_json: bool) -> None:
    """Each GPU now: who trains, what is lent, which fills run, how much of its bubbles they use.

    BUBBLES is the share of time without training compute, FILLED the part of it that fills used,
    INTRUSION how long ready training work waited for fill, all over the last minutes. SLOWDOWN is
    what fill has cost the training in all, measured against hold-outs, since the training began.
    """
    now = now_us()
    with ledger(settings) as session:
        off = filling_is_off(session)
        gpus = gpus_now(session, now_us=now, recent_us=minutes * 60_000_000)
    shown = [gpu for gpu in gpus if node is None or gpu.node == node]
    if as_json:
        print_json(_record(gpu, off) for gpu in shown)
        return
    console = make_console()
    console.print(_switch(off, gpus), style="bold yellow" if off else None)
    if not shown:
        console.print(f"No GPU of node {node} is known." if node else "No agent has reported yet.")
        return
    _print(console, shown, now, minutes)


def _switch(off: bool, gpus: list[GpuNow]) -> str:
    if off:
        return "Filling is switched off on the whole cluster (sfill on resumes it)."
    nodes = sorted({gpu.node for gpu in gpus if gpu.node_off})
    return f"Filling is on, but off on {', '.join(nodes)}." if nodes else "Filling is on."


def _print(console: Console, gpus: list[GpuNow], now: int, minutes: int) -> None:
    print_table(console, COLUMNS, [_row(gpu, now) for gpu in gpus])
    training = sum(gpu.host_job_id is not None for gpu in gpus)
    console.print(
        f"{len(gpus)} GPUs, {training} with training; shares over the last {minutes} min;"
        f" {NOTHING} where there was no training.",
        style="dim",
    )


def _row(gpu: GpuNow, now: int) -> tuple[str, ...]:
    lent = sum(fill.memory_bytes for fill in gpu.fills)
    most = f" of {memory(gpu.host_lend_bytes)}" if gpu.host_lend_bytes is not None else ""
    return (
        gpu.node,
        str(gpu.minor),
        "none" if gpu.host_job_id is None else str(gpu.host_job_id),
        gpu.host_user or NOTHING,
        gpu.host_mode or NOTHING,
        sharing(gpu.host_share_mode, gpu.host_share_reason),
        (memory(lent) + most) if gpu.host_mode == "on" or lent else NOTHING,
        " ".join(str(fill.job_id) for fill in gpu.fills) or NOTHING,
        share(gpu.recent.bubble_share),
        share(gpu.recent.filled_share),
        cost(gpu.recent.intrusion_fraction),
        slowdown(gpu.host_slowdown) if gpu.host_mode == "on" else NOTHING,
        _note(gpu, now),
    )


def _note(gpu: GpuNow, now: int) -> str:
    notes = []
    if gpu.node_off:
        notes.append("off")
    if now - gpu.last_report_at_us > SILENT_US:
        notes.append(f"agent silent for {length(now - gpu.last_report_at_us)}")
    if gpu.simulated:
        notes.append("simulated")
    return ", ".join(notes)


def _record(gpu: GpuNow, off: bool) -> dict[str, Any]:
    recent = gpu.recent
    return {
        **asdict(gpu),
        "off": off or gpu.node_off,
        "lent_bytes": sum(fill.memory_bytes for fill in gpu.fills),
        "bubble_share": recent.bubble_share,
        "filled_share": recent.filled_share,
        "intrusion_fraction": recent.intrusion_fraction,
    }
