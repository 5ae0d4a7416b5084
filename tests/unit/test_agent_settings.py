"""Settings from file and environment, and what bad ones say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent import single
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
        ("warmup_s = 1", "did you mean warm_up_s"),
        ("gpus = [0, 0]", "gpus"),
        ("gpus = [-1]", "gpus"),
        ("controller_url = 'ftp://x'", "controller_url"),
        ("controller_url = 'x y'", "controller_url"),
        ("socket = ''", "socket must be an absolute path"),
        ("socket = 'here.sock'", "socket must be an absolute path"),
        (f"socket = '/{'x' * 100}'", "socket must be an absolute path of at most 98 bytes"),
    ],
)
def test_bad_setting_is_one_sentence_and_exit_2(tmp_path: Path, line: str, named: str) -> None:
    path = write(tmp_path, f'[agent]\nnode = "n1"\ntwin = "f1"\n{line}\n')
    with pytest.raises(SettingsError, match=named):
        load(path)
    result = CliRunner().invoke(main, ["--config", path])
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.parametrize(("node", "twin"), [("", "f1"), ("a/b", "f1"), ("n1", ""), ("n1", "n1")])
def test_nodes_are_named_as_slurm_names_them(tmp_path: Path, node: str, twin: str) -> None:
    with pytest.raises(SettingsError, match="node"):
        load(write(tmp_path, f'[agent]\nnode = "{node}"\ntwin = "{twin}"\n'))


def test_a_second_agent_of_a_node_does_not_start(tmp_path: Path) -> None:
    def settings(spool: str, socket: str) -> AgentSettings:
        folder = {"spool_dir": tmp_path / spool, "socket": str(tmp_path / socket)}
        return AgentSettings.model_validate({"node": "n1", "twin": "f1", **folder})

    held = single.hold(settings("one", "one.sock"))
    for other in (settings("one", "two.sock"), settings("two", "one.sock")):
        with pytest.raises(single.AnotherAgentError, match="another sfilld uses the s"):
            single.hold(other, wait_s=0.1)
    for descriptor in held:
        os.close(descriptor)
    single.hold(settings("one", "one.sock"), wait_s=0)


def test_missing_file_and_broken_toml_are_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        load(str(tmp_path / "none"))
    with pytest.raises(SettingsError, match="not TOML"):
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
