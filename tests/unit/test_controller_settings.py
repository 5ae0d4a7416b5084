"""Settings of the controller: the environment wins, and a bad one is one sentence and exit 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_plugin.controller.main import main
from slurm_plugin.settings import ControllerSettings, SettingsError, load_settings


def write(folder: Path, text: str) -> str:
    path = folder / "sfill.toml"
    path.write_text(text)
    return str(path)


def test_the_environment_wins_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write(tmp_path, '[controller]\nlisten = "127.0.0.1:1"\nsilent_s = 3\n[web]\nx = 1\n')
    assert load_settings(config).silent_s == 3
    monkeypatch.setenv("SFILL_CONTROLLER_SILENT_S", "7")
    monkeypatch.setenv("SFILL_CONF", config)
    settings = load_settings()
    assert (settings.silent_s, settings.host, settings.port) == (7, "127.0.0.1", 1)


def test_every_setting_has_a_description_and_the_defaults_are_good() -> None:
    for name, field in ControllerSettings.model_fields.items():
        assert field.description, name
    ControllerSettings()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[controller]\nsilent_s = 0", r"\[controller\] silent_s = 0: input should be greater"),
        ("[controller]\nlisten = 'here'", r"listen = 'here': must be host:port"),
        ("[controller]\nsilnt_s = 3", r"silnt_s is unknown, did you mean silent_s\?"),
        ("[controller]\nlunch = 3", "lunch is unknown; allowed are listen, database_url"),
        ("controller = 3", "must be a section"),
        ("[controller", "not TOML"),
    ],
)
def test_a_bad_setting_is_named_with_what_is_allowed(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says) as caught:
        load_settings(write(tmp_path, text))
    assert "\n" not in str(caught.value) and "sfill.toml" in str(caught.value)


def test_bad_settings_end_the_program_with_2(tmp_path: Path) -> None:
    for text in ("[controller]\nsilent_s = 0", '[controller]\ndatabase_url = "nonsense"'):
        result = CliRunner().invoke(main, ["--config", write(tmp_path, text)])
        assert result.exit_code == 2
        assert result.output.startswith("sfillctld: ") and result.output.count("\n") == 1
    result = CliRunner().invoke(main, ["--config", str(tmp_path / "absent.toml")])
    assert result.exit_code == 2 and "No such file" in result.output


@pytest.mark.parametrize("listen", ["nohost.invalid:8641", "192.0.2.1:8641"])
def test_an_address_of_no_own_ends_the_program_with_1(tmp_path: Path, listen: str) -> None:
    text = f'[controller]\nlisten = "{listen}"\ndatabase_url = "sqlite:///{tmp_path}/one.db"\n'
    result = CliRunner().invoke(main, ["--config", write(tmp_path, text)])
    assert result.exit_code == 1
    assert result.output.startswith(f"sfillctld: cannot listen on {listen}: ")
    assert result.output.count("\n") == 1
