"""Settings of `sfill`: section [cli], or SFILL_CLI_* variables.

What is not set there is taken from [controller] of the same file, so that one file serves both on
the controller's host.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

DEFAULT_CONFIG = "/etc/sfill/sfill.toml"
SECTION = "cli"


class SettingsError(Exception):
    """Settings that cannot be used; the text is one sentence."""


class CliSettings(BaseSettings):
    """What `sfill` may be told."""

    model_config = SettingsConfigDict(env_prefix="SFILL_CLI_", extra="forbid")

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
        if not value.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return value.rstrip("/")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over the file, whose values come in as arguments."""
        return (env_settings, init_settings)


def load_settings(config: str | None = None) -> CliSettings:
    """Read the file `config` (else SFILL_CONF, else the default, which may be absent)."""
    named = config or os.environ.get("SFILL_CONF")
    path = Path(named or DEFAULT_CONFIG)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8")) if named or path.exists() else {}
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not TOML ({error})") from None
    own = document.get(SECTION, {})
    if not isinstance(own, dict):
        raise SettingsError(f"{path}: {SECTION} must be a section, [{SECTION}]")
    try:
        return CliSettings(**{**_of_controller(document.get("controller")), **own})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        text = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            text = f"is unknown; allowed are {', '.join(CliSettings.model_fields)}"
        raise SettingsError(f"{path}: [{SECTION}] {key} {text}") from None


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
    if isinstance(listen, str) and ":" in listen:
        host, _, port = listen.rpartition(":")
        # A server that listens everywhere is reached on this host by its loopback address.
        host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
        found["controller_url"] = f"http://{host}:{port}"
    return found
