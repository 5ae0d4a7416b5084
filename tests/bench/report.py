"""The bench's results as a table and as a page: slowdown against harvest for each policy."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.cells import POLICIES, WORKLOADS

Result = dict[str, Any]

COLOURS = {
    "alone": "#8a8f98",
    "observe": "#4c78a8",
    "ours": "#1a9850",
    "timeslice": "#d73027",
    "mps": "#f46d43",
    "mps-low": "#fdae61",
    "launch-count": "#7b3294",
    "rate-control": "#2b83ba",
}


def measured(results: Sequence[Result]) -> list[Result]:
    """Those that hold figures, by workload, link, inference and policy."""

    def place(result: Result) -> tuple[int, str, str, int, str]:
        return (
            WORKLOADS.index(result["workload"]),
            result.get("link") or "",
            result.get("inference") or "",
            POLICIES.index(result["policy"]),
            str(result.get("settings") or ""),
        )

    return sorted((each for each in results if "slowdown_median" in each), key=place)


def percent(value: float | None, digits: int = 2) -> str:
    """A fraction in per cent; a dash for none."""
    return "-" if value is None else f"{100 * value:.{digits}f}"


def settings_text(result: Result) -> str:
    """The point of the policy's grid."""
    return ", ".join(f"{k}={v:g}" for k, v in (result.get("settings") or {}).items())


def where_text(result: Result) -> str:
    """Workload with its link and GPUs."""
    link, gpus = result.get("link"), result.get("gpus", 1)
    return f"{result['workload']} x{gpus} {link}" if link else str(result["workload"])


def write_table(results: Sequence[Result]) -> None:
    """Prints the table; rows of dry runs say so."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Slowdown of the training and harvest of the fill, per cent")
    for name in ("workload", "inference", "policy", "settings"):
        table.add_column(name)
    for name in ("slowdown", "95 % interval", "p95", "control", "bubble", "harvest", "rate ratio"):
        table.add_column(name, justify="right")
    for each in measured(results):
        interval = f"{percent(each['slowdown_lower95'])} .. {percent(each['slowdown_upper95'])}"
        policy = each["policy"] + (" (dry run)" if each.get("dry_run") else "")
        table.add_row(
            where_text(each),
            each.get("inference") or "",
            policy,
            settings_text(each),
            percent(each["slowdown_median"]),
            interval,
            percent(each["slowdown_p95"], 1),
            percent(each["control_median"]),
            percent(each.get("bubble_share"), 1),
            percent(each.get("harvest_efficiency"), 1),
            percent(each.get("rate_ratio"), 1),
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=180)
    console.print(table)
    for line in comparisons(results):
        console.print(line)
    for each in results:
        if "error" in each:
            console.print(f"failed: {each['cell']}: {each['error'].splitlines()[0][:150]}")


def comparisons(results: Sequence[Result]) -> list[str]:
    """One sentence a picture: what ours yields, and the best peer that costs no more."""
    lines = []
    for title, own in groups(results).items():
        ours = [each for each in own if each["policy"] == "ours"]
        peers = [each for each in own if each["policy"] != "ours"]
        if not ours or not peers:
            continue
        best = max(ours, key=lambda each: float(each["harvest_efficiency"]))
        cost, yields = best["slowdown_median"], best["harvest_efficiency"]
        line = f"{title}: ours {percent(yields, 1)} % of bubbles at {percent(cost)} %"
        rivals = [each for each in peers if each["slowdown_median"] <= cost]
        if rivals:
            rival = max(rivals, key=lambda each: float(each["harvest_efficiency"]))
            name = f"{rival['policy']} {settings_text(rival)}".strip()
            line += f"; best peer that costs no more: {name}, "
            line += f"{percent(rival['harvest_efficiency'], 1)} %"
        else:
            rival = min(peers, key=lambda each: float(each["slowdown_median"]))
            name = f"{rival['policy']} {settings_text(rival)}".strip()
            line += f"; no peer costs as little; the least: {name}, "
            line += f"{percent(rival['harvest_efficiency'], 1)} % "
            line += f"at {percent(rival['slowdown_median'])} %"
        lines.append(line)
    return lines


def groups(results: Sequence[Result]) -> dict[str, list[Result]]:
    """What belongs into one picture: a workload, its link and an inference."""
    found: dict[str, list[Result]] = {}
    for each in measured(results):
        if each.get("harvest_efficiency") is not None:
            title = f"{where_text(each)}, beside {each['inference']}"
            found.setdefault(title, []).append(each)
    return found


def hover_text(result: Result) -> str:
    """What the pointer shows at a point."""
    lines = [
        f"<b>{result['policy']}</b> {settings_text(result)}",
        f"slowdown {percent(result['slowdown_median'])} % "
        f"({percent(result['slowdown_lower95'])} .. {percent(result['slowdown_upper95'])})",
        f"p95 {percent(result['slowdown_p95'])} %, control {percent(result['control_median'])} %",
        f"harvest {percent(result['harvest_efficiency'], 1)} %, "
        f"rate ratio {percent(result.get('rate_ratio'), 1)} %",
        f"{result.get('gpu')}, driver {result.get('driver')}, torch {result.get('torch')}, "
        f"commit {result.get('commit')}",
    ]
    return "<br>".join(lines)


def picture(title: str, results: Sequence[Result]) -> Any:
    """Slowdown against harvest: right and low is better."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for policy in POLICIES:
        own = sorted(
            (each for each in results if each["policy"] == policy),
            key=lambda each: float(each["harvest_efficiency"]),
        )
        if not own:
            continue
        middle = [100 * each["slowdown_median"] for each in own]
        figure.add_trace(
            go.Scatter(
                x=[100 * each["harvest_efficiency"] for each in own],
                y=middle,
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "array": [
                        100 * each["slowdown_upper95"] - y
                        for each, y in zip(own, middle, strict=True)
                    ],
                    "arrayminus": [
                        y - 100 * each["slowdown_lower95"]
                        for each, y in zip(own, middle, strict=True)
                    ],
                },
                mode="lines+markers" if len(own) > 1 else "markers",
                marker={"size": 13 if policy == "ours" else 9},
                line={"color": COLOURS[policy], "dash": "dot"},
                name=policy,
                text=[hover_text(each) for each in own],
                hovertemplate="%{text}<extra></extra>",
            )
        )
    figure.add_hline(y=1.0, line_dash="dash", line_color="#999", annotation_text="goal: 1 %")
    figure.update_layout(
        title=title,
        template="plotly_white",
        height=460,
        xaxis_title="harvest efficiency: fill's GPU time / bubble time, %",
        yaxis_title="slowdown of the training, % (bars: 95 %)",
        xaxis_rangemode="tozero",
    )
    return figure


def write_page(results: Sequence[Result], path: Path) -> Path:
    """One self-contained HTML file with a picture for each workload and inference."""
    parts: list[str] = []
    for title, own in groups(results).items():
        first = not parts
        parts.append(picture(title, own).to_html(full_html=False, include_plotlyjs=first))
    sentences = "".join(f"<li>{html.escape(line)}</li>" for line in comparisons(results))
    parts = [f"<ul>{sentences}</ul>", *parts] if sentences else parts
    body = "\n".join(parts) or "<p>No cell with fill has been measured yet.</p>"
    dry = any(each.get("dry_run") for each in results)
    note = "<p><b>Dry run on a CPU: none of this is a figure.</b></p>" if dry else ""
    path.write_text(
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<title>Slowdown against harvest</title>"
        "<style>body{font:15px system-ui,sans-serif;max-width:1100px;margin:2em auto}</style>"
        "</head><body><h1>Slowdown against harvest</h1>"
        "<p>Each point is a cell of the bench: what a policy cost the training, and what part of "
        "its bubbles the fill used. Right and low is better. A harvest above 100 % took GPU time "
        f"from the training.</p>{note}{body}</body></html>\n",
        encoding="utf-8",
    )
    return path
