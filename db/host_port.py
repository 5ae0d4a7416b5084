"""HOST:PORT as settings name it, and the URLs made of it: an IPv6 address stands in brackets."""

from __future__ import annotations

import ipaddress
import re

from db.whole_number import whole_number

LAST_PORT = 65535
_HOST_PORT = re.compile(r"(?P<host>[\w.-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>\d+)", re.ASCII)
_URL = re.compile(
    r"https?://(?P<host>[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d+))?/?", re.ASCII | re.IGNORECASE
)


def split_host_port(text: str, *, lowest_port: int = 1) -> tuple[str, int] | None:
    """Host (an IPv6 address without its brackets) and port; None for what is not HOST:PORT."""
    found = _HOST_PORT.fullmatch(text)
    port = whole_number(found["port"], lowest_port, LAST_PORT) if found else None
    if found is None or port is None or not _good_host(found["host"]):
        return None
    return found["host"].strip("[]"), port


def bracketed(host: str) -> str:
    """The host as a URL writes it."""
    return f"[{host}]" if ":" in host else host


def http_url(host: str, port: int) -> str:
    """The address under which a server of ours answers, without a slash at its end."""
    return f"http://{bracketed(host)}:{port}"


def is_http_url(text: str) -> bool:
    """Whether it is http://HOST:PORT or https://HOST:PORT; the port may be left out."""
    found = _URL.fullmatch(text)
    if found is None or not _good_host(found["host"]):
        return False
    return found["port"] is None or whole_number(found["port"], 1, LAST_PORT) is not None


def _good_host(host: str) -> bool:
    if not host.startswith("["):
        return True
    try:
        ipaddress.IPv6Address(host.strip("[]"))
    except ValueError:
        return False
    return True
