"""One program's section of the settings file, and the variables that go before it.

Whatever is wrong with either is one sentence that says where the value stands (the file and its
key, or the variable) and what is allowed.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from db.quoted import quoted

DEFAULT_FILE = "/etc/sfill/sfill.toml"


class SettingsError(Exception):
    """Settings that cannot be used; the text is one sentence."""


class _Variables(EnvSettingsSource):
    """The environment, where lists and tables stand as JSON."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """The list or table. Raises SettingsError."""
        try:
            return super().decode_complex_value(field_name, field, value)
        except (ValueError, RecursionError):
            variable = _variable(self.settings_cls, field_name) or field_name
            raise SettingsError(
                f"environment: {variable} = {quoted(value)}: must be JSON{_form(field)}"
            ) from None


class SectionSettings(BaseSettings):
    """Settings of one program. A field that holds a list or table has an example of its form."""

    section: ClassVar[str]
    model_config = SettingsConfigDict(extra="forbid", allow_inf_nan=False)

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
        return (_Variables(settings_cls), init_settings)


Settings = TypeVar("Settings", bound=SectionSettings)


def read_file(config: str | None) -> tuple[Path, dict[str, Any]]:
    """The file `config` (else SFILL_CONF, else the default, which may be absent) and what it says.

    Raises SettingsError.
    """
    named = config or os.environ.get("SFILL_CONF")
    path = Path(named or DEFAULT_FILE)
    try:
        return path, tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if named is None:
            return path, {}
        raise SettingsError(f"{path}: {error.strerror}") from None
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # also a number of more digits than int() reads
        raise SettingsError(f"{path}: not TOML ({error})") from None
    except RecursionError:
        raise SettingsError(f"{path}: not TOML that can be read (nested too deep)") from None


def section_of(path: Path, document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The section, empty where the file has none. Raises SettingsError."""
    section = document.get(name, {})
    if not isinstance(section, dict):
        raise SettingsError(f"{path}: {name} must be a section, [{name}]")
    return section


def load_section(kind: type[Settings], config: str | None, given: Mapping[str, Any]) -> Settings:
    """Settings of one program from the file, `given` (before the file) and the environment (before
    both). Raises SettingsError."""
    path, document = read_file(config)
    return settings_from(kind, path, section_of(path, document, kind.section) | dict(given))


def settings_from(kind: type[Settings], path: Path, values: Mapping[str, Any]) -> Settings:
    """Settings from what the file at `path` says, and the environment. Raises SettingsError."""
    for key in values:
        if key not in kind.model_fields:
            raise SettingsError(f"{path}: [{kind.section}] {_unknown(key, kind.model_fields)}")
    try:
        return kind(**values)
    except ValidationError as error:
        raise SettingsError(_sentence(kind, path, error.errors()[0])) from None


def _sentence(kind: type[SectionSettings], path: Path, fault: ErrorDetails) -> str:
    text = fault["msg"].removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    if not fault["loc"]:  # between several settings, which the text names
        named = [name for name in kind.model_fields if re.search(rf"\b{name}\b", text)]
        found = filter(None, (_variable(kind, name) for name in named))
        where = " and ".join([str(path), *(f"{each} in the environment" for each in found)])
        return f"{where}: [{kind.section}] {text}"
    name, *inner = (_shown(part) for part in fault["loc"])
    variable = _variable(kind, name)
    where = f"environment: {variable}" if variable else f"{path}: [{kind.section}] {name}"
    where = ".".join([where, *inner])
    if fault["type"] == "missing":
        return f"{where}: {text}"
    form = _form(kind.model_fields[name]) if name in kind.model_fields else ""
    return f"{where} = {quoted(fault['input'])}: {text}{form}"


def _variable(kind: type[BaseSettings], name: str) -> str | None:
    """The variable that sets it, as the environment spells it; None where none does."""
    wanted = f"{kind.model_config.get('env_prefix', '')}{name}".lower()
    return next((each for each in os.environ if each.lower() == wanted), None)


def _form(field: FieldInfo) -> str:
    return f", as {json.dumps(field.examples[0])}" if field.examples else ""


def _unknown(key: str, known: Iterable[str]) -> str:
    close = get_close_matches(key, known, n=3)
    rest = f", did you mean {' or '.join(close)}?" if close else f"; allowed are {', '.join(known)}"
    return f"{_shown(key)} is unknown{rest}"


def _shown(part: str | int) -> str:
    """A key on one line."""
    return str(part) if re.fullmatch(r"[\w.*-]{1,64}", str(part)) else quoted(part)
