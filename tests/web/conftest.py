"""A live dashboard on a sample ledger, and a real Chromium that looks at it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright
from waitress.server import create_server

from db.engine import Database
from tests.unit.ledger_sample import sample_engine
from webui.app import create_app
from webui.settings import WebSettings

CHROMIUM = Path("/usr/bin/chromium")
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
]


@dataclass
class Dashboard:
    """A served dashboard and the file of its database."""

    address: str
    database: Path


@dataclass
class Watched:
    """A page, and what it complained about or asked for."""

    page: Page
    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def open(self, address: str) -> Page:
        """Load a page and wait until its data has come."""
        self.page.goto(address)
        expect(self.page.locator("#fresh")).to_contain_text("Updated")
        return self.page


@contextmanager
def served(path: Path, minutes: int) -> Iterator[Dashboard]:
    """The product's own server on a free port, over a ledger of the last minutes."""
    sample_engine(path, now_us=time.time_ns() // 1000, minutes=minutes).dispose()
    settings = WebSettings(listen="127.0.0.1:0", database_url=f"sqlite:///{path}")
    app = create_app(settings, Database(settings.database_url, read_only=True))
    server: Any = create_server(app, host="127.0.0.1", port=0, threads=4)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield Dashboard(f"http://127.0.0.1:{server.effective_port}", path)
    server.close()


@pytest.fixture(scope="session")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """A cluster that has worked for 90 minutes."""
    with served(tmp_path_factory.mktemp("web") / "sfill.db", 90) as found:
        yield found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, headless."""
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def watched(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Watched]:
    """A page whose errors and requests are noted; `look` parametrises scheme and width."""
    scheme: Literal["light", "dark"]
    scheme, width = getattr(request, "param", ("light", 1400))
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": 900}, timezone_id="Europe/Berlin"
    )
    page = context.new_page()
    found = Watched(page)

    def asked(what: Request) -> None:
        if not what.url.startswith(("data:", "blob:")):
            found.hosts.add(what.url.split("/")[2])

    def said(line: ConsoleMessage) -> None:
        if line.type in ("error", "warning"):
            found.errors.append(line.text)

    page.on("console", said)
    page.on("pageerror", lambda error: found.errors.append(str(error)))
    page.on("request", asked)
    yield found
    context.close()
