"""A munged of our own, with its own key and socket."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def munge_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if shutil.which("munged") is None:
        pytest.skip("munged is not installed")
    folder: Path = tmp_path_factory.mktemp("munge")
    key = folder / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    path = folder / "sock"
    daemon = subprocess.Popen(
        [
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={path}",
            f"--pid-file={folder / 'pid'}",
            f"--seed-file={folder / 'seed'}",
            f"--log-file={folder / 'log'}",
        ],
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 10
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    yield str(path)
    daemon.terminate()
    daemon.wait(timeout=10)
