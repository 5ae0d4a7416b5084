"""SETTINGS.md says what the code does, and leaves nothing out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from deploy.settings_table import CLASSES, TARGET, VARIABLES, settings_page

ROOT = Path(__file__).parents[2]


def test_page_is_up_to_date() -> None:
    assert TARGET.read_text(encoding="utf-8") == settings_page(), (
        "run python -m deploy.settings_table"
    )


@pytest.mark.parametrize("entry", CLASSES, ids=lambda entry: entry[0])
def test_every_setting_is_described(entry: tuple[str, str, type[BaseSettings]]) -> None:
    for name, info in entry[2].model_fields.items():
        assert info.description, f"[{entry[0]}] {name} has no description"


def test_every_variable_that_the_c_code_reads_is_listed() -> None:
    sources = [*(ROOT / "agent/shim").glob("*.c"), *(ROOT / "slurm_plugin/spank").glob("*.c")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    read = set(re.findall(r'getenv\("(SFILL_\w+)"', text))
    read |= set(re.findall(r'spank_setenv\(spank, "(\w+)"', text))
    assert read - {variable.name for variable in VARIABLES} == set()
    assert {"SFILL_SOCKET", "SFILL_FILL"} <= read
