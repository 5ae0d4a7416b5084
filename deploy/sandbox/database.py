"""MariaDB for slurmdbd, with data and socket in the sandbox's folder."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from pathlib import Path

from deploy.sandbox import services
from deploy.sandbox.layout import Sandbox, SandboxError

ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root"}


def begin_install(sandbox: Sandbox) -> subprocess.Popen[bytes] | None:
    """Start making the data folder; None when an earlier `up` made it."""
    data = _data(sandbox)
    if (data / "mysql").is_dir():
        return None
    # --force: a host whose own name can't be looked up (no /etc/hosts) is none of its business.
    command = ["mariadb-install-db", "--no-defaults", "--force", "--user=root"]
    command += [f"--datadir={data}", _temporary(sandbox)]
    # Only this host's root gets in as the database's root, and only through the socket.
    command += ["--auth-root-authentication-method=socket", "--skip-test-db"]
    with (sandbox.log / "mariadb-install.out").open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=ENVIRONMENT,
        )


def start(sandbox: Sandbox, install: subprocess.Popen[bytes] | None) -> None:
    """Wait for the data folder, start the server, wait until it accepts connections."""
    if install is not None and install.wait() != 0:
        raise SandboxError(f"mariadb-install-db failed: see {sandbox.log}/mariadb-install.out")
    setup = sandbox.etc / "mariadb-init.sql"
    setup.write_text(_setup_statements(password(sandbox)))
    setup.chmod(0o600)
    command = [
        *("mariadbd", "--no-defaults", "--user=root", f"--datadir={_data(sandbox)}"),
        *(f"--socket={_socket(sandbox)}", f"--pid-file={sandbox.run}/mariadb.pid"),
        _temporary(sandbox),
        *("--bind-address=127.0.0.1", f"--port={sandbox.mysql_port}", "--skip-name-resolve"),
        *("--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900"),
        # A sandbox's records need not survive a power cut.
        *("--innodb-flush-log-at-trx-commit=0", "--skip-innodb-doublewrite"),
        f"--init-file={setup}",
    ]
    services.start(sandbox, "mariadb", command, ENVIRONMENT)
    services.wait_for(sandbox, "mariadb", lambda: _listens(sandbox.mysql_port), 30.0)


def password(sandbox: Sandbox) -> str:
    """Of the database user `slurm`; made anew for each sandbox."""
    file = sandbox.etc / "mysql.password"
    if not file.exists():
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(descriptor, secrets.token_hex(16).encode())
        os.close(descriptor)
    return file.read_text()


def _setup_statements(slurm_password: str) -> str:
    lines = ["create database if not exists slurm_acct_db;"]
    for host in ("127.0.0.1", "localhost"):
        user = f"'slurm'@'{host}'"
        lines.append(f"create user if not exists {user} identified by '{slurm_password}';")
        lines.append(f"grant all on slurm_acct_db.* to {user};")
    return "\n".join(lines) + "\n"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _data(sandbox: Sandbox) -> Path:
    return sandbox.folder / "db/mysql"


def _socket(sandbox: Sandbox) -> Path:
    return sandbox.run / "mariadb.sock"


def _temporary(sandbox: Sandbox) -> str:
    """A server that starts deletes the temporary tables that it finds, another's in /tmp too."""
    return f"--tmpdir={sandbox.folder}/db"
