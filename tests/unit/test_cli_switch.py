"""`sfill off` and `on`: what reaches the controller, and what is said when it does not."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from db.wire import munge
from slurm_plugin.cli.main import main
from slurm_plugin.cli.settings import load_settings


class Controller(HTTPServer):
    """Stands where sfillctld would; notes requests and answers as told."""

    answer = (200, b'{"off": true}')

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[tuple[str, bytes]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Controller

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, body))
        status, text = self.server.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Iterator[Controller]:
    server = Controller()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("SFILL_CLI_CONTROLLER_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("SFILL_CLI_DATABASE_URL", "sqlite:////nonexistent")
    monkeypatch.delenv("SFILL_CONF", raising=False)
    # A site's proxy setting must not stand between operator and controller.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    def encode(payload: bytes, socket: str | None = None) -> str:
        return "CRED:" + payload.decode()

    monkeypatch.setattr(munge, "encode", encode)
    yield server
    server.shutdown()
    server.server_close()


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


@pytest.mark.parametrize(("word", "wanted"), [("off", True), ("on", False)])
def test_request_travels_in_the_credential(
    controller: Controller, capsys: pytest.CaptureFixture[str], word: str, wanted: bool
) -> None:
    assert run(word, "--reason", "maintenance") == 0
    ((path, body),) = controller.seen
    assert path == "/v1/switch"
    request = json.loads(body.removeprefix(b"CRED:"))
    assert request["off"] is wanted
    assert request["reason"] == "maintenance"
    assert f"Filling is {word}" in capsys.readouterr().out


def test_refusal_says_who_may(controller: Controller, capsys: pytest.CaptureFixture[str]) -> None:
    controller.answer = (403, b'{"error": "uid 1001 is neither root nor SlurmUser"}')
    assert run("off") == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "sfill: not allowed (uid 1001 is neither root nor SlurmUser);"
        " only root and SlurmUser may switch filling off and on\n"
    )


def test_other_answers_are_passed_on(
    controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    controller.answer = (503, b'{"error": "the database is away"}')
    assert run("on") == 1
    assert "answered 503 (the database is away)" in capsys.readouterr().err


def test_absent_controller_is_one_sentence(
    controller: Controller, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("SFILL_CLI_CONTROLLER_URL", f"http://127.0.0.1:{port}")
    assert run("off") == 1
    said = capsys.readouterr().err
    assert f"sfillctld does not answer at http://127.0.0.1:{port}/v1/switch" in said
    assert said.count("\n") == 1


def test_settings_come_from_the_controllers_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sfill.toml"
    file.write_text(
        '[controller]\nlisten = "0.0.0.0:7001"\nmunge_socket = "/run/m"\n'
        'database_url = "sqlite:////a.db"\n[cli]\ndatabase_url = "sqlite:////b.db"\n'
    )
    monkeypatch.setenv("SFILL_CONF", str(file))
    found = load_settings()
    assert found.controller_url == "http://127.0.0.1:7001"
    assert found.munge_socket == "/run/m"
    assert found.database_url == "sqlite:////b.db"


def test_the_switch_does_not_wait_for_what_only_reading_needs() -> None:
    """Importing SQLAlchemy and our tables takes longer than all the rest of `sfill off`."""
    program = (
        "import sys\n"
        "from slurm_plugin.cli.main import main\n"
        "try:\n    main(['off', '--help'])\n"
        "except SystemExit as end:\n    assert end.code in (0, None)\n"
        "print('sqlalchemy' in sys.modules, 'rich' in sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "Stop filling" in done.stdout
    assert done.stderr.strip() == "False False"
