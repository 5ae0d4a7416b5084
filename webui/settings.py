"""Settings of the dashboard: section [web] of the configuration, or SFILL_WEB_* variables."""

from __future__ import annotations

import ipaddress
import os
import tomllib
from pathlib import Path

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

DEFAULT_CONFIG = "/etc/sfill/sfill.toml"
SECTION = "web"


class SettingsError(Exception):
    """Settings that cannot be used; the text is one sentence for the operator."""


class WebSettings(BaseSettings):
    """What `sfill-web` may be told."""

    model_config = SettingsConfigDict(env_prefix="SFILL_WEB_", extra="forbid")

    listen: str = Field(
        default="127.0.0.1:8642",
        description="where to listen, as ADDRESS:PORT; loopback only: there is no sign-in yet",
    )
    database_url: str = Field(
        default="sqlite:////var/lib/sfill/sfill.db",
        description="the database that sfillctld fills, as an SQLAlchemy URL; only read",
    )
    refresh_s: int = Field(
        default=5,
        ge=1,
        le=3600,
        description="time between two refreshes of an open page, seconds",
    )
    threads: int = Field(
        default=4,
        ge=1,
        le=64,
        description="requests answered at the same time",
    )

    @field_validator("listen")
    @classmethod
    def _loopback(cls, value: str) -> str:
        host, separator, port = value.rpartition(":")
        if not separator or not port.isdecimal() or int(port) > 65535:
            raise ValueError("must be ADDRESS:PORT with a port of 0 to 65535")
        name = host.strip("[]")
        try:
            loopback = name == "localhost" or ipaddress.ip_address(name).is_loopback
        except ValueError:
            loopback = False
        if not loopback:
            raise ValueError("must be a loopback address such as 127.0.0.1 (there is no sign-in)")
        return value

    @property
    def host(self) -> str:
        """Address without brackets."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """TCP port; 0 lets the system choose."""
        return int(self.listen.rpartition(":")[2])

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


def load_settings(config: str | None = None) -> WebSettings:
    """Read the file `config` (else SFILL_CONF, else the default, which may be absent)."""
    named = config or os.environ.get("SFILL_CONF")
    path = Path(named or DEFAULT_CONFIG)
    section: object = {}
    if named or path.exists():
        try:
            section = tomllib.loads(path.read_text(encoding="utf-8")).get(SECTION, {})
        except OSError as error:
            raise SettingsError(f"{path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"{path}: not TOML ({error})") from None
    if not isinstance(section, dict):
        raise SettingsError(f"{path}: {SECTION} must be a section, [{SECTION}]")
    try:
        return WebSettings(**section)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = ", ".join(WebSettings.model_fields)
            raise SettingsError(
                f"{path}: [{SECTION}] {key} is unknown; allowed are {known}"
            ) from None
        text = first["msg"].removeprefix("Value error, ")
        raise SettingsError(f"{path}: [{SECTION}] {key} {text}") from None
