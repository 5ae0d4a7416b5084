"""What the agent tells of its node to anyone who asks: `status`."""

from __future__ import annotations

import json

from agent.node import Node
from agent.packet import MAX_BYTES, Packet


def status(node: Node, user_id: int) -> Packet:
    """One line of JSON; ordinary users see the fill jobs that are theirs."""
    sees_all = user_id in (0, node.settings.slurm_user_id)
    gpus = [
        {
            **node.report_of(gpu).model_dump(mode="json", exclude={"name", "simulated"}),
            "boards": len(node.trainings_on(gpu.uuid)),
            "unknown": gpu.unknown,
            "why": node.room_of(gpu).reason,
            **_share_of(node, gpu.uuid),
        }
        for gpu in node.gpus.values()
    ]
    fills = [
        {"job_id": fill.job_id, "gpu": fill.gpu, "memory_bytes": fill.memory_bytes}
        for fill in node.jobs.fills.values()
        if sees_all or fill.user_id == user_id
    ]
    state: dict[str, object] = {"node": node.settings.node, "off": node.off, "cut": False}
    while True:
        text = json.dumps({**state, "gpus": gpus, "fills": fills}, separators=(",", ":"))
        if len(text.encode()) < MAX_BYTES - 64:
            return Packet("status", {"json": text})
        state["cut"] = True
        (fills or gpus).pop()


def _share_of(node: Node, gpu: str) -> dict[str, str]:
    host = node.jobs.host_of(gpu)
    return {"share_mode": host.share_mode, "share_reason": host.share_reason} if host else {}
