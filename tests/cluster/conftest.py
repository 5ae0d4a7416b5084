"""Boots one sandbox for all cluster tests: two nodes with two simulated GPUs each."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from deploy.sandbox.layout import load
from tests.cluster.cluster import USERS, Cluster

REPOSITORY = Path(__file__).resolve().parents[2]
SHOWN_LINES = 12


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)


def up(folder: Path | str, *options: str) -> subprocess.CompletedProcess[str]:
    """Boot a sandbox the way anybody does; the caller takes it down."""
    command = [str(REPOSITORY / "deploy/sandbox/up"), str(folder), *options]
    return _call(command)


def down(folder: Path) -> subprocess.CompletedProcess[str]:
    """Take the sandbox in `folder` down."""
    return _call([str(REPOSITORY / "deploy/sandbox/down"), str(folder)])


def _call(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SFILL_PYTHON": sys.executable}
    return subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.fixture(scope="session")
def users() -> tuple[str, str]:
    """Two ordinary users; made when missing, never removed."""
    if os.geteuid() != 0:
        pytest.fail("the cluster tests need root: they boot slurmd")
    for user in USERS:
        try:
            pwd.getpwnam(user)
        except KeyError:
            subprocess.run(["useradd", "--create-home", user], check=True)
    return USERS


@pytest.fixture(scope="session")
def _session_cluster(users: tuple[str, str], request: pytest.FixtureRequest) -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="sfill-test-", dir="/tmp"))
    folder.chmod(0o755)  # jobs of ordinary users read in it
    answer = up(folder, "--nodes", "2", "--gpus", "sim:2")
    if answer.returncode != 0:
        pytest.fail(f"deploy/sandbox/up: {answer.stdout}{answer.stderr}", pytrace=False)
    files = folder / "files"
    files.mkdir()
    files.chmod(0o1777)
    yield Cluster(load(folder), files)
    answer = down(folder)
    assert answer.returncode == 0, answer.stderr
    if request.session.testsfailed:
        print(f"logs of the sandbox are kept in {folder}/log")
    else:
        shutil.rmtree(folder)


@pytest.fixture
def cluster(_session_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, free of jobs before and after each test."""
    yield _session_cluster
    _session_cluster.cancel_all()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows the last lines of each daemon's log."""
    report = yield
    cluster = getattr(item, "funcargs", {}).get("cluster")
    if report.when == "call" and report.failed and isinstance(cluster, Cluster):
        for file in sorted(cluster.sandbox.log.glob("*.out")):
            lines = file.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
            report.sections.append((file.name, "\n".join(lines)))
    return report
