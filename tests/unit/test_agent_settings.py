"""Settings from file and environment, and what bad ones say."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.main import main
from agent.nvml import GpuError
from agent.settings import AgentSettings, SettingsError, load
from tests.unit.agent_peers import FakeGpus


def write(folder: Path, text: str) -> str:
    path = folder / "sfill.toml"
    path.write_text(text)
    return str(path)


def test_file_then_environment_then_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[agent]\nnode = "n1"\ntwin = "f1"\nsocket = "/s-%n"\nwarm_up_s = 3\ngpus = [4, 5]\n'
    monkeypatch.setenv("SFILL_AGENT_WARM_UP_S", "0.5")
    settings = load(write(tmp_path, text), node="n7")
    assert settings.socket_path == "/s-n7"
    assert settings.warm_up_s == 0.5
    assert settings.gpus == [4, 5]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("in_flight_us = 0", "in_flight_us"),
        ("dwell_us = 'x'", "dwell_us"),
        ("unheard_of = 1", "unheard_of"),
        ("slowdown = 2", "slowdown"),
        ("in_flight_min_us = 500", "in_flight_min_us"),
        ("device_path = '/dev/nvidia'", "device_path"),
    ],
)
def test_bad_setting_is_one_sentence_and_exit_2(tmp_path: Path, line: str, named: str) -> None:
    path = write(tmp_path, f'[agent]\nnode = "n1"\ntwin = "f1"\n{line}\n')
    with pytest.raises(SettingsError, match=named):
        load(path)
    result = CliRunner().invoke(main, ["--config", path])
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1


def test_missing_file_and_broken_toml_are_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        load(str(tmp_path / "none"))
    with pytest.raises(SettingsError, match="cannot be read"):
        load(write(tmp_path, "[agent"))


def test_without_nvml_or_a_place_for_the_socket_it_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> None:
        raise GpuError("nvmlInit: no library")

    monkeypatch.setattr("agent.main.Nvml", none)
    path = write(tmp_path, '[agent]\nnode = "n1"\ntwin = "f1"\n')
    assert CliRunner().invoke(main, ["--config", path]).exit_code == 1

    monkeypatch.setattr("agent.main.Nvml", FakeGpus)
    (tmp_path / "file").touch()
    for setting in ("state_dir", "spool_dir", "socket"):
        lines = {
            "state_dir": f"{tmp_path}/state",
            "spool_dir": f"{tmp_path}/spool",
            "socket": f"{tmp_path}/socket",
        } | {setting: f"{tmp_path}/file/below"}
        text = "".join(f'{key} = "{value}"\n' for key, value in lines.items())
        path = write(tmp_path, f'[agent]\nnode = "n1"\ntwin = "f1"\ncontroller_url = ""\n{text}')
        assert CliRunner().invoke(main, ["--config", path]).exit_code == 1


def test_every_setting_is_described_and_the_defaults_hold() -> None:
    for name, field in AgentSettings.model_fields.items():
        assert field.description, name
    AgentSettings(node="n1", twin="f1")
