"""Addresses that settings name, and the URLs that are made of them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from waitress.server import create_server

from db.engine import Database
from db.host_port import http_url, is_http_url, split_host_port
from slurm_plugin.cli.settings import load_settings
from webui.app import create_app
from webui.main import port_of
from webui.settings import WebSettings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:8641", ("127.0.0.1", 8641)),
        ("[::1]:18777", ("::1", 18777)),
        ("login-1.site:00080", ("login-1.site", 80)),
        *((text, None) for text in ("here", ":80", "h:0", "h:65536", "h:" + "9" * 5000, "h:²")),
        *((text, None) for text in ("::1:80", "[::1:80", "[x]:80", "[1.2.3.4]:80", "a b:1", "")),
    ],
)
def test_host_and_port(text: str, expected: tuple[str, int] | None) -> None:
    assert split_host_port(text) == expected


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1", "localhost"])
def test_a_url_names_the_host_that_it_was_made_of(host: str) -> None:
    url = http_url(host, 8642)
    assert is_http_url(url) and is_http_url(url + "/")
    assert (urlsplit(url).hostname, urlsplit(url).port) == (host, 8642)


@pytest.mark.parametrize(
    "text",
    ["http://", "ftp://h:1", "http://::1:8641", "http://h:99999", "http://h:1/x", "http://[x]:1"],
)
def test_no_url_of_a_server(text: str) -> None:
    assert not is_http_url(text)


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("[::1]:7001", "http://[::1]:7001"),
        ("[::]:7001", "http://[::1]:7001"),
        ("0.0.0.0:7001", "http://127.0.0.1:7001"),
    ],
)
def test_the_switch_finds_a_controller_by_its_address(
    tmp_path: Path, listen: str, url: str
) -> None:
    (tmp_path / "sfill.toml").write_text(f'[controller]\nlisten = "{listen}"\n')
    assert load_settings(str(tmp_path / "sfill.toml")).controller_url == url


@pytest.mark.parametrize("listen", ["[::1]:80", "127.0.0.2:80", "localhost:80"])
def test_the_dashboard_answers_under_the_address_that_it_prints(
    tmp_path: Path, listen: str
) -> None:
    settings = WebSettings(listen=listen, database_url=f"sqlite:///{tmp_path}/none.db")
    app = create_app(settings, Database(settings.database_url, read_only=True))
    host = urlsplit(http_url(settings.host, settings.port)).netloc
    assert app.test_client().get("/lunch", headers={"Host": host}).status_code == 404


def test_several_sockets_of_one_name_have_a_port() -> None:
    for listen in ("127.0.0.1:0", "127.0.0.1:0 127.0.0.1:0"):
        server = create_server(lambda _environ, _start: [], listen=listen, threads=1)
        assert port_of(server) > 0
        server.close()
