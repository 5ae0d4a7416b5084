"""Settings of `sfill`: section [cli], or SFILL_CLI_* variables.

What is not set there is taken from [controller] of the same file, so that one file serves both on
the controller's host.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from db.host_port import http_url, is_http_url, split_host_port
from db.settings_section import (
    SectionSettings,
    SettingsError,
    read_file,
    section_of,
    settings_from,
)


class CliSettings(SectionSettings):
    """What `sfill` may be told."""

    section: ClassVar[str] = "cli"
    model_config = SettingsConfigDict(env_prefix="SFILL_CLI_")

    database_url: str = Field(
        default="sqlite:////var/lib/sfill/sfill.db",
        description="the database to read, as an SQLAlchemy URL; default: [controller]"
        " database_url. On SQLite its file must be readable by whoever runs sfill",
    )
    controller_url: str = Field(
        default="http://127.0.0.1:8641",
        description="where sfillctld answers, for off and on; default: [controller] listen",
    )
    munge_socket: str = Field(
        default="",
        description="munged's socket; empty: munge's default; if not given, [controller]"
        " munge_socket",
    )
    timeout_s: float = Field(
        default=10.0,
        gt=0,
        le=300,
        description="how long off and on wait for sfillctld, seconds",
    )

    @field_validator("controller_url")
    @classmethod
    def _http(cls, value: str) -> str:
        if not is_http_url(value):
            raise ValueError("must be http://HOST:PORT or https://HOST:PORT")
        return value.rstrip("/")


def load_settings(config: str | None = None) -> CliSettings:
    """Read the file `config` (else SFILL_CONF, else the default, which may be absent)."""
    path, document = read_file(config)
    own = section_of(path, document, CliSettings.section)
    return settings_from(CliSettings, path, {**_of_controller(document.get("controller")), **own})


def _of_controller(section: Any) -> dict[str, str]:
    """What the controller's own section says about the same things."""
    if not isinstance(section, dict):
        return {}
    found = {
        name: section[name]
        for name in ("database_url", "munge_socket")
        if isinstance(section.get(name), str)
    }
    listen = section.get("listen")
    if isinstance(listen, str) and (address := split_host_port(listen)):
        host, port = address
        # A server that listens everywhere is reached on this host by its loopback address.
        found["controller_url"] = http_url(
            {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port
        )
    return found


__all__ = ["CliSettings", "SettingsError", "load_settings"]
