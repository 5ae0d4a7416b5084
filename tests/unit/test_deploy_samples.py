"""Sample settings must be ones that the daemons accept."""

from __future__ import annotations

from pathlib import Path

from agent.settings import load
from slurm_plugin.settings import load_settings as load_controller
from webui.settings import load_settings as load_web

SAMPLES = Path(__file__).resolve().parents[2] / "deploy/samples"


def test_a_restart_of_the_agent_leaves_the_mps_daemons_of_running_trainings() -> None:
    unit = (SAMPLES.parent / "systemd/sfilld.service").read_text().splitlines()
    assert "KillMode=process" in unit


def test_each_daemon_accepts_its_section_of_the_sample() -> None:
    sample = str(SAMPLES / "sfill.toml")
    assert load(sample).twin == "f01"
    assert load_controller(sample).max_slots == 320
    assert load_web(sample).port == 8642
