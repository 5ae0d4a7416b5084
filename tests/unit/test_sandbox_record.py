"""What a sandbox's folder says of it, whole or damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.sandbox import cgroups, layout, ports, services, shutdown
from deploy.sandbox.layout import DamagedRecordError, Gpu, NotUpError, Sandbox, load, record_path


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "registry.json"
    monkeypatch.setattr(ports, "REGISTRY", path)
    monkeypatch.delenv("SFILL_SLURM_ROOT", raising=False)
    # The host's cgroups may be those of a sandbox that is up.
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup/cgroup.controllers").touch()
    monkeypatch.setattr(cgroups, "ROOT", tmp_path / "cgroup")
    return path


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    folder = tmp_path / "box"
    (folder / "run").mkdir(parents=True)
    (folder / "dev").mkdir()
    (folder / "dev/nvidia0").touch()
    made = Sandbox(
        folder=folder,
        host="h",
        port_base=ports.reserve(folder, None),
        gpus=[[Gpu(0, str(folder / "dev/nvidia0"), 24 << 30)]],
        simulated=True,
        accounting=False,
        python=sys.executable,
        slurm_root=tmp_path,
        own_cgroups=["x"],
    )
    made.save()
    return made


def test_a_record_is_read_as_it_was_written(sandbox: Sandbox) -> None:
    assert load(sandbox.folder) == sandbox
    assert [path.name for path in sandbox.run.iterdir()] == ["sandbox.json"]
    record_path(sandbox.folder).unlink()
    with pytest.raises(NotUpError):
        load(sandbox.folder)


def test_a_record_that_cannot_be_written_leaves_the_old_one(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(path: Path, text: str) -> None:
        with path.open("w") as file:
            file.write(text[:20])
        raise OSError("the disk is full")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="full"):
        sandbox.save()
    assert load(sandbox.folder) == sandbox


DAMAGED = ["", "{}", "[]", "null", "{", '{"folder": 1}', "\udcff"]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_sandbox_whose_record_is_damaged_is_taken_down_by_what_is_found_of_it(
    sandbox: Sandbox,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = record_path(sandbox.folder)
    record.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DamagedRecordError, match="is damaged"):
        load(sandbox.folder)
    left = subprocess.Popen(["sleep", "60"], env={**os.environ, services.TAG: str(sandbox.folder)})
    services.wait_until(lambda: left.pid in services.leftovers(sandbox.folder), 5.0)
    monkeypatch.setattr(sys, "argv", ["down", str(sandbox.folder)])
    assert shutdown.main() == 0
    assert left.wait(5) != 0
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and "is damaged" in said
    assert not record.exists() and not (sandbox.folder / "dev/nvidia0").exists()
    assert ports.base_of(sandbox.folder) is None
    assert shutdown.main() == 0  # nothing is up any more


def test_a_record_with_fields_of_wrong_types_is_damaged(sandbox: Sandbox) -> None:
    whole = json.loads(record_path(sandbox.folder).read_text())
    for key in whole:
        record_path(sandbox.folder).write_text(json.dumps({**whole, key: {"x": [1]}}))
        with pytest.raises(DamagedRecordError):
            load(sandbox.folder)


def test_a_copied_folder_does_not_take_the_first_one_down(sandbox: Sandbox, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    (copy / "run").mkdir(parents=True)
    record_path(copy).write_bytes(record_path(sandbox.folder).read_bytes())
    with pytest.raises(DamagedRecordError, match="another folder"):
        load(copy)
    assert shutdown.stand_in(copy).first_job_id != sandbox.first_job_id


@pytest.mark.parametrize("text", ["", "{", "[]", '{"x": 5}', '{"22000": 5}'])
def test_a_damaged_registry_of_ports_is_begun_anew(
    registry: Path, tmp_path: Path, text: str
) -> None:
    registry.write_text(text)
    (tmp_path / "run").mkdir()
    base = ports.reserve(tmp_path, None)
    assert ports.base_of(tmp_path) == base >= layout.FIRST_PORT
