"""Settings of `sfillctld`: section [controller] of the settings file, or SFILL_CONTROLLER_*."""

from __future__ import annotations

import ipaddress
from typing import ClassVar

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from db.host_port import split_host_port
from db.quoted import quoted
from db.settings_section import SectionSettings, SettingsError, load_section


class ControllerSettings(SectionSettings):
    """Every setting of the controller, with its default and bounds."""

    section: ClassVar[str] = "controller"
    model_config = SettingsConfigDict(env_prefix="SFILL_CONTROLLER_")

    # Where and with what
    listen: str = Field(
        default="127.0.0.1:8641", description="address and port of the controller, as host:port"
    )
    database_url: str = Field(
        default="sqlite:////var/lib/sfill/sfill.db",
        description="the database: sqlite:////path, postgresql+psycopg://... or"
        " mariadb+pymysql://...",
    )
    threads: int = Field(
        default=16, ge=2, le=256, description="reports that are dealt with at the same time"
    )
    max_body_bytes: int = Field(
        default=32 << 20, ge=1 << 16, le=1 << 30, description="largest report taken, bytes"
    )
    database_timeout_s: float = Field(
        default=5.0, gt=0, le=60, description="how long a write waits for the database, seconds"
    )
    log_level: str = Field(
        default="info", pattern="^(debug|info|warning|error)$", description="debug ... error"
    )

    # Who may speak
    munge_socket: str = Field(default="", description="munged's socket; empty: munge's default")
    slurm_user_id: int = Field(
        default=0,
        ge=0,
        description="user id of SlurmUser; it and root may report and switch filling off and on",
    )
    node_addresses: dict[str, list[str]] = Field(
        default={},
        examples=[{"n1": ["10.0.0.1"]}],
        description="node name -> IPv4 addresses its reports may come from, beside those that its"
        ' name resolves to; "*" as a name holds for every node',
    )
    check_addresses: bool = Field(
        default=True,
        description="whether a report for a node must come from one of that node's addresses",
    )

    # Slurm
    fill_partition: str = Field(
        default="fill", min_length=1, description="partition of the twins; its nodes are the twins"
    )
    gres: str = Field(
        default="fill", min_length=1, description="GRES that counts the slots of a twin"
    )
    slurm_conf: str = Field(
        default="", description="Slurm's configuration file; empty: what the environment says"
    )
    slurm_bin: str = Field(
        default="", description="folder of Slurm's commands; empty: as found on PATH"
    )
    command_timeout_s: float = Field(
        default=5.0, ge=0.5, le=120, description="how long a command of Slurm may take, seconds"
    )
    max_slots: int = Field(
        default=0,
        ge=0,
        description="most slots ever published for a twin: the count of its Gres in slurm.conf;"
        " 0: no bound of ours",
    )

    # Supply
    silent_s: float = Field(
        default=10.0,
        ge=1,
        le=600,
        description="a node without a report for this long lends nothing, seconds",
    )
    read_back_s: float = Field(
        default=1.0,
        ge=0.1,
        le=60,
        description="how often the supply that stands in Slurm is read and compared, seconds",
    )
    least_gap_s: float = Field(
        default=0.1, ge=0, le=10, description="least time between two rounds of publishing, seconds"
    )
    raise_after_s: float = Field(
        default=2.0,
        ge=0,
        le=600,
        description="a higher count is published once it has stood for this long, seconds (from"
        " nothing to something, and lower counts: at once)",
    )
    requeue_delay_s: int = Field(
        default=2, ge=1, le=3600, description="a requeued fill job starts no earlier, seconds"
    )
    admin_comment: bool = Field(
        default=True, description="write figures of ended jobs into their AdminComment"
    )

    @field_validator("listen")
    @classmethod
    def _address(cls, value: str) -> str:
        if split_host_port(value) is None:
            raise ValueError("must be host:port, as 127.0.0.1:8641 or [::1]:8641")
        return value

    @field_validator("node_addresses")
    @classmethod
    def _are_ipv4(cls, value: dict[str, list[str]]) -> dict[str, list[str]]:
        for node, addresses in value.items():
            for address in addresses:
                try:
                    ipaddress.IPv4Address(address)
                except ValueError:
                    raise ValueError(
                        f"{quoted(address)} of {quoted(node)} is no IPv4 address"
                    ) from None
        return value

    @property
    def host(self) -> str:
        """Address without brackets."""
        return self._listens[0]

    @property
    def port(self) -> int:
        """TCP port."""
        return self._listens[1]

    @property
    def _listens(self) -> tuple[str, int]:
        found = split_host_port(self.listen)
        assert found is not None  # the validator's word
        return found


def load_settings(config: str | None = None) -> ControllerSettings:
    """Read the file `config` (else SFILL_CONF, else the default, which may be absent).

    Raises SettingsError with one sentence that names the file, the key and what is allowed.
    """
    return load_section(ControllerSettings, config, {})


__all__ = ["ControllerSettings", "SettingsError", "load_settings"]
