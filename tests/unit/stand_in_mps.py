"""A stand-in for `nvidia-cuda-mps-control`: the commands that the agent uses, no GPU.

Its folder of state says how it behaves and what was done: files `fail` (exit code of -d), `mute`
(no server ever comes up), `slow` (seconds that -d takes), `clients` (process ids, as if they were
clients); `calls` has each command that changes something, with `alive` or `dead` for the client
that terminate_client names.
"""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAM = """#!{python} -SE
import os, signal, socket, subprocess, sys, time
from pathlib import Path
state = Path({state!r})
pipe = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
servers = []

def alive(pid):
    try:
        return Path(f"/proc/{{pid}}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

def note(text):
    with (state / "calls").open("a") as calls:
        calls.write(text + "\\n")

def clients():
    file = state / "clients"
    return file.read_text().split() if file.exists() else []

def answer(words):
    if words[0] == "start_server" and not servers and not (state / "mute").exists():
        servers.append(subprocess.Popen(["sleep", "1000"]).pid)
    elif words[0] == "get_server_list":
        return "\\n".join(map(str, servers))
    elif words[0] == "get_server_status":
        return "Active"
    elif words[0] == "get_client_list":
        return "\\n".join(client for client in clients() if alive(client))
    elif words[0] == "terminate_client":
        words.append("alive" if alive(words[2]) else "dead")
        (state / "clients").write_text(" ".join(set(clients()) - {{words[2]}}))
    note(" ".join(words))
    return ""

def serve():
    listener = socket.socket(socket.AF_UNIX)
    os.chdir(pipe)
    listener.bind("control")
    listener.listen(8)
    (pipe / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    note("begins " + os.environ["CUDA_VISIBLE_DEVICES"] + " " + " ".join(sys.argv[1:]))
    while True:
        connection, _ = listener.accept()
        words = connection.recv(1000).decode().split()
        connection.sendall(answer(words).encode())
        connection.close()
        if words[0] == "quit":
            for server in servers:
                os.kill(server, signal.SIGKILL)
            return

if sys.argv[1:2] == ["-d"]:
    if (state / "fail").exists():
        print("told to fail")
        sys.exit(int((state / "fail").read_text()))
    time.sleep(float((state / "slow").read_text()) if (state / "slow").exists() else 0)
    if os.fork() == 0:
        os.setsid()
        serve()
else:
    peer = socket.socket(socket.AF_UNIX)
    os.chdir(pipe)
    try:
        peer.connect("control")
    except OSError:
        print("Cannot find MPS control daemon process")
        sys.exit(1)
    peer.sendall(sys.stdin.readline().encode())
    print(peer.makefile().read())
"""


class StandInMps:
    """The program and its folder of state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "mps-state"
        self.folder.mkdir()
        self.program = folder / "nvidia-cuda-mps-control"
        self.program.write_text(PROGRAM.format(python=sys.executable, state=str(self.folder)))
        self.program.chmod(0o755)

    def behave(self, name: str, text: str = "") -> None:
        (self.folder / name).write_text(text)

    def calls(self, verb: str = "") -> list[str]:
        """Commands that change something, as they came."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line.startswith(verb)]


def process_of(pipe: Path) -> int:
    """The daemon's process id."""
    return int((pipe / "nvidia-cuda-mps-control.pid").read_text())


_ENDING = 0x4  # PF_EXITING: its memory is gone, and soon its entry


def is_there(process_id: int) -> bool:
    """Whether a process is alive: neither dead nor in the middle of its end."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state[0] != "Z" and not int(state[6]) & _ENDING
