"""Settings of the dashboard: section [web] of the configuration, or SFILL_WEB_* variables."""

from __future__ import annotations

import ipaddress
from typing import ClassVar

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from db.host_port import split_host_port
from db.settings_section import SectionSettings, SettingsError, load_section


class WebSettings(SectionSettings):
    """What `sfill-web` may be told."""

    section: ClassVar[str] = "web"
    model_config = SettingsConfigDict(env_prefix="SFILL_WEB_")

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
        found = split_host_port(value, lowest_port=0)
        if found is None:
            raise ValueError(
                "must be ADDRESS:PORT with a port of 0 to 65535, as 127.0.0.1:8642 or [::1]:8642"
            )
        name, _ = found
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
        return self._listens[0]

    @property
    def port(self) -> int:
        """TCP port; 0 lets the system choose."""
        return self._listens[1]

    @property
    def _listens(self) -> tuple[str, int]:
        found = split_host_port(self.listen, lowest_port=0)
        assert found is not None  # the validator's word
        return found


def load_settings(config: str | None = None) -> WebSettings:
    """Read the file `config` (else SFILL_CONF, else the default, which may be absent)."""
    return load_section(WebSettings, config, {})


__all__ = ["SettingsError", "WebSettings", "load_settings"]
