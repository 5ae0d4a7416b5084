"""The dashboard in a real browser: it draws, agrees with the database, and asks nobody else."""

from __future__ import annotations

import csv
import io
import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import Session

from db.models import BubbleUse
from tests.web.conftest import SCREENSHOTS, Dashboard, Watched, served

pytestmark = pytest.mark.web

PAGES = {
    "overview": "/?minutes=60",
    "jobs": "/jobs",
    "host-job": "/jobs/host/101",
    "fill-job": "/jobs/fill/203",
    "audit": "/audit",
    "events": "/events",
}
LOOKS = {
    "light-desktop": ("light", 1400),
    "dark-desktop": ("dark", 1400),
    "light-phone": ("light", 400),
    "dark-phone": ("dark", 400),
}
# The overview in every look, the other pages in two that cover both schemes and both widths.
SEEN = [
    pytest.param(name, LOOKS[look], id=f"{name}-{look}")
    for name in PAGES
    for look in (LOOKS if name == "overview" else ("light-desktop", "dark-phone"))
]


def get(dashboard: Dashboard, path: str) -> str:
    with urllib.request.urlopen(dashboard.address + path) as answer:
        return str(answer.read().decode())


def stored(dashboard: Dashboard, *conditions: Any) -> list[BubbleUse]:
    """Rows of the table, newest first."""
    with Session(create_engine(f"sqlite:///{dashboard.database}")) as session:
        query = select(BubbleUse).where(*conditions)
        order = (BubbleUse.first_release_at_us.desc(), BubbleUse.id.desc())
        return list(session.scalars(query.order_by(*order)))


@pytest.mark.parametrize(("name", "watched"), SEEN, indirect=["watched"])
def test_page_is_clean_and_local(
    dashboard: Dashboard, watched: Watched, name: str, request: pytest.FixtureRequest
) -> None:
    page = watched.open(dashboard.address + PAGES[name])
    page.wait_for_timeout(300)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{request.node.callspec.id}.png", full_page=True)
    assert watched.errors == []
    assert watched.hosts == {dashboard.address.removeprefix("http://")}
    assert not page.locator("#banner").is_visible()
    wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
    assert not wide, "the page scrolls sideways"
    if request.node.callspec.id.endswith("desktop"):
        tables = "[...document.querySelectorAll('.scroll')]"
        cut = page.evaluate(f"{tables}.some(table => table.scrollWidth > table.clientWidth)")
        assert not cut, "a table does not fit a desktop"


def test_times_under_small_charts_stand_level(tmp_path: Path, watched: Watched) -> None:
    with served(tmp_path / "sfill.db", 2) as begun:
        watched.open(begun.address + "/?minutes=60")
        turned = watched.page.evaluate(
            "[...document.querySelectorAll('#gpus .chart .xtick text')]"
            ".map(label => /rotate\\(([^,)]*)/.exec(label.getAttribute('transform')))"
            ".map(found => found ? Number(found[1]) : 0)"
        )
    assert len(turned) >= 6
    assert set(turned) == {0}


def test_charts_are_drawn_for_gpus_with_training(dashboard: Dashboard, watched: Watched) -> None:
    page = watched.open(dashboard.address + "/?minutes=60")
    assert page.locator("#cluster .bars .point").count() > 300
    assert page.locator("#gpus article").count() == 4
    assert page.locator("#gpus .chart .trace.bars").count() == 3 * 4
    colours = page.evaluate(
        "[...document.querySelectorAll('#cluster .trace.bars')]"
        ".map(trace => trace.querySelector('.point path').style.fill)"
    )
    assert len(set(colours)) == 3
    page.get_by_role("button", name="15 min").click()
    expect(page.locator("#gpus .chart-empty")).to_contain_text("No training in this period")


def test_headline_equals_the_database(dashboard: Dashboard, watched: Watched) -> None:
    page = watched.open(dashboard.address + "/?minutes=1440")
    with Session(create_engine(f"sqlite:///{dashboard.database}")) as session:
        gained = session.scalar(select(func.sum(BubbleUse.gpu_time_us)))
    assert page.locator("#gained").inner_text().split()[0] == f"{(gained or 0) / 3600e6:.2f}"


def test_zero_and_nothing_look_different(dashboard: Dashboard, watched: Watched) -> None:
    page = watched.open(dashboard.address + "/")
    rows = page.locator("#state tbody tr")
    observed = rows.filter(has_text="n2 · GPU 2").inner_text()
    idle = rows.filter(has_text="n2 · GPU 3").inner_text()
    assert "0.0 %" in observed
    assert "%" not in idle
    assert "no training" in idle


def test_audit_rows_equal_the_database(dashboard: Dashboard, watched: Watched) -> None:
    page = watched.open(dashboard.address + "/audit?fill_job=203")
    rows = stored(dashboard, BubbleUse.fill_slurm_job_id == 203)
    expect(page.locator("#sums")).to_contain_text(f"{len(rows):,} uses")
    page.get_by_role("button", name="Older rows").click()
    expect(page.locator("#rows tbody tr")).to_have_count(200)
    kernels = page.locator("#rows td:nth-child(8)").all_inner_texts()
    assert [int(text.replace(",", "")) for text in kernels] == [row.kernels for row in rows[:200]]


@pytest.mark.parametrize("suffix", ["json", "csv"])
def test_download_equals_the_database(dashboard: Dashboard, suffix: str) -> None:
    text = get(dashboard, f"/audit.{suffix}?host_job=103")
    rows = stored(dashboard, BubbleUse.host_slurm_job_id == 103)
    found: list[dict[str, Any]] = (
        json.loads(text) if suffix == "json" else list(csv.DictReader(io.StringIO(text)))
    )
    assert len(found) == len(rows) > 2000
    for line, row in zip(found, rows, strict=True):
        for column in BubbleUse.__table__.columns:
            value = getattr(row, column.key)
            assert type(value)(line[column.key]) == value


def test_filter_form_narrows_the_audit(dashboard: Dashboard, watched: Watched) -> None:
    page = watched.open(dashboard.address + "/audit")
    page.get_by_label("Fill job").fill("202")
    page.get_by_label("Cause").select_option("tail")
    page.get_by_role("button", name="Filter").click()
    rows = stored(dashboard, BubbleUse.fill_slurm_job_id == 202, BubbleUse.cause == "tail")
    expect(page.locator("#sums")).to_contain_text(f"{len(rows):,} uses")
    assert set(page.locator("#rows td:nth-child(5)").all_inner_texts()) == {"tail"}
    assert "fill_job=202" in page.url
    assert "fill_job=202" in (page.locator("#csv").get_attribute("href") or "")


def test_bad_filter_is_said_in_the_page(dashboard: Dashboard, watched: Watched) -> None:
    page = watched.open(dashboard.address + "/audit")
    page.get_by_label("From").fill("yesterday-ish")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#problem")).to_contain_text("'yesterday-ish' is no time")


def test_search_and_sort_jobs(dashboard: Dashboard, watched: Watched) -> None:
    page = watched.open(dashboard.address + "/jobs")
    page.get_by_label("Search").fill("sfilluser2")
    assert page.locator("#fills tbody tr").count() == 2
    page.locator("#fills").get_by_role("button", name="GPU time").click()
    jobs = page.locator("#fills tbody tr td:first-child").all_inner_texts()
    assert jobs == ["201", "202"]
    page.get_by_label("Search").fill("no such job")
    assert "No host job matches." in page.locator("#hosts").inner_text()


def test_keyboard_reaches_the_content(dashboard: Dashboard, watched: Watched) -> None:
    page = watched.open(dashboard.address + "/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert re.search(r"#main$", page.url)


def test_refresh_keeps_the_focus(dashboard: Dashboard, watched: Watched) -> None:
    page = watched.open(dashboard.address + "/jobs")
    page.locator("#fills a").first.focus()
    before = page.locator("#fresh").inner_text()
    expect(page.locator("#fresh")).not_to_have_text(before, timeout=10_000)
    assert page.evaluate("document.activeElement.getAttribute('href')") == "/jobs/fill/203"


def test_failure_keeps_what_is_shown(dashboard: Dashboard, watched: Watched) -> None:
    page = watched.open(dashboard.address + "/events")
    page.route("**/api/events*", lambda route: route.abort())
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#banner")).to_contain_text("does not answer")
    assert page.locator("#rows tbody tr").count() == 6
