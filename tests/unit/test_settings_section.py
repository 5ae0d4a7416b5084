"""What is wrong with settings is one sentence, whoever reads them and wherever it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agent.main import main as sfilld
from agent.settings import AgentSettings
from db.quoted import quoted
from db.settings_section import SectionSettings, SettingsError, load_section
from slurm_plugin.cli.settings import CliSettings
from slurm_plugin.settings import ControllerSettings
from webui.settings import WebSettings

KINDS: tuple[type[SectionSettings], ...] = (
    AgentSettings,
    ControllerSettings,
    WebSettings,
    CliSettings,
)
NAMES = {"node": "n1", "twin": "f1"}


def sentence_of(kind: type[SectionSettings], file: Path, text: str = "") -> str:
    """What is said about a section of this text; the agent's has its nodes' names too."""
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_section(kind, str(file), NAMES if kind is AgentSettings else {})
    sentence = str(caught.value)
    assert "\n" not in sentence and len(sentence) < 1500
    return sentence


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sfill.toml"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("value", "says"),
    [("[" * 20_000, "nested too deep"), ("9" * 5000, "not TOML"), ("'\xff", "not TOML")],
)
def test_a_file_that_no_reader_takes_is_named(
    file: Path, kind: type[SectionSettings], value: str, says: str
) -> None:
    sentence = sentence_of(kind, file, f"[{kind.section}]\nx = {value}")
    assert sentence.startswith(f"{file}: not TOML") and says in sentence


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", ['"a\\nb"', "_env_file", "lunch", '"' + "x" * 3000 + '"'])
def test_an_unknown_key_is_named_on_one_line(
    file: Path, kind: type[SectionSettings], key: str
) -> None:
    sentence = sentence_of(kind, file, f"[{kind.section}]\n{key} = 1")
    assert sentence.startswith(f"{file}: [{kind.section}] ") and "is unknown" in sentence


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (AgentSettings, "WARM_UP_S", "nan"),
        (ControllerSettings, "SILENT_S", "0"),
        (WebSettings, "LISTEN", "0.0.0.0:80"),
        (CliSettings, "TIMEOUT_S", "inf"),
        (CliSettings, "CONTROLLER_URL", "http://::1:8641"),
        (AgentSettings, "CONTROLLER_URL", "http://::1:8641"),
    ],
)
def test_a_value_of_the_environment_is_not_laid_to_the_file(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[SectionSettings],
    name: str,
    value: str,
) -> None:
    variable = f"SFILL_{kind.section.upper()}_{name}"
    monkeypatch.setenv(variable, value)
    sentence = sentence_of(kind, file, f"[{kind.section}]")
    assert sentence.startswith(f"environment: {variable} = {value!r}: ")
    assert str(file) not in sentence
    monkeypatch.delenv(variable)
    sentence = sentence_of(kind, file, f"[{kind.section}]\n{name.lower()} = {value!r}")
    assert sentence.startswith(f"{file}: [{kind.section}] {name.lower()} = {value!r}: ")
    assert "environment" not in sentence


def test_of_two_that_do_not_fit_the_one_in_the_environment_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[agent]\nin_flight_us = 100"
    monkeypatch.setenv("SFILL_AGENT_IN_FLIGHT_MIN_US", "500")
    assert sentence_of(AgentSettings, file, text) == (
        f"{file} and SFILL_AGENT_IN_FLIGHT_MIN_US in the environment: "
        "[agent] in_flight_min_us must not be above in_flight_us"
    )


@pytest.mark.parametrize("value", ["abc", "", "[" * 20_000, "[" + "9" * 5000 + "]", "5"])
@pytest.mark.parametrize(
    ("kind", "name", "form"),
    [
        (AgentSettings, "GPUS", "[0, 1]"),
        (AgentSettings, "PROLOG_USER_IDS", "[0, 64030]"),
        (AgentSettings, "SHARED_DEVICE_PATHS", '["/dev/nvidiactl", "/dev/nvidia-uvm"]'),
        (ControllerSettings, "NODE_ADDRESSES", '{"n1": ["10.0.0.1"]}'),
    ],
)
def test_a_list_in_the_environment_says_its_form(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[SectionSettings],
    name: str,
    form: str,
    value: str,
) -> None:
    variable = f"SFILL_{kind.section.upper()}_{name}"
    monkeypatch.setenv(variable, value)
    sentence = sentence_of(kind, file)
    assert sentence.startswith(f"environment: {variable} = ") and sentence.endswith(f", as {form}")


def test_every_list_and_table_has_an_example_that_holds() -> None:
    for kind in KINDS:
        given: dict[str, Any] = dict(NAMES) if kind is AgentSettings else {}
        for name, field in kind.model_fields.items():
            if isinstance(field.get_default(), (list, dict)):
                assert field.examples, name
                assert (
                    getattr(kind(**given, **{name: field.examples[0]}), name) == field.examples[0]
                )


@pytest.mark.parametrize(
    "addresses", ['{"*": ["x"]}', '{"n1": ["10.0.0.1", "::1"]}', '{"n1": ["10.0.0.0/8"]}']
)
def test_addresses_of_nodes_are_ipv4(
    file: Path, monkeypatch: pytest.MonkeyPatch, addresses: str
) -> None:
    monkeypatch.setenv("SFILL_CONTROLLER_NODE_ADDRESSES", addresses)
    sentence = sentence_of(ControllerSettings, file)
    assert sentence.startswith("environment: SFILL_CONTROLLER_NODE_ADDRESSES = ")
    assert "is no IPv4 address" in sentence


def test_the_programs_end_with_2_and_one_line(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("[agent]\nnode = 'n1'\ntwin = 'f1'\n[web]\nx = " + "[" * 20_000)
    ended = CliRunner().invoke(sfilld, ["--config", str(file)])
    assert ended.exit_code == 2 and ended.output.count("\n") == 1
    for module in ("slurm_plugin.cli.main", "slurm_plugin.controller.main", "webui.main"):
        command = [sys.executable, "-m", module, "--config", str(file)]
        if module.endswith("cli.main"):
            command.append("status")
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (said.returncode, said.stderr.count("\n")) == (2, 1), said.stderr
    file.write_text("[agent]\nnode = 'n1'\ntwin = 'f1'\n")
    monkeypatch.setenv("SFILL_AGENT_GPUS", "abc")
    ended = CliRunner().invoke(sfilld, ["--config", str(file)])
    assert ended.exit_code == 2 and ended.output.count("\n") == 1


def test_what_is_nested_too_deep_is_not_shown() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert quoted(deep) == "a list nested too deep to be shown"
