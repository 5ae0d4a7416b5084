"""What a node's agent says of itself over its own socket (agent/PROTOCOL.md)."""

from __future__ import annotations

import json
import socket
from typing import Any

from agent.packet import decode
from tests.cluster.cluster import Cluster


def agent_status(cluster: Cluster, node: str, timeout_s: float = 5.0) -> dict[str, Any]:
    """The agent's `status`: GPUs with the number of boards on each, and admitted fill jobs."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(timeout_s)
        peer.connect(str(cluster.sandbox.agent_socket(node)))
        peer.send(b"status")
        parsed: dict[str, Any] = json.loads(decode(peer.recv(65536)).get("json"))
        return parsed
