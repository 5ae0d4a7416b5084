"""How a training shares its GPUs with fills, and with whose: the site's settings and the owner's
wish. Decisions only, no side effects."""

from __future__ import annotations

from agent.jobs import HostJob
from agent.settings import AgentSettings
from agent.spec import HostSpec
from db.wire.messages import HostMode, ShareMode


def decide(spec: HostSpec, mode: HostMode, settings: AgentSettings) -> tuple[ShareMode, str]:
    """The way a host job is to share its GPUs, and why.

    The owner may always refuse MPS, and may ask for it wherever the site allows it at all.
    """
    if mode != HostMode.ON:
        return ShareMode.TIMESLICE, "it lends nothing"
    if spec.share is None:
        return ShareMode(settings.share), "the node's setting"
    if spec.share == ShareMode.MPS and settings.mps_for == "none":
        return ShareMode.TIMESLICE, "asked for MPS, which the site does not allow (mps_for)"
    return spec.share, "asked for"


def closed_to(host: HostJob, user_id: int, account: str, settings: AgentSettings) -> str:
    """Why a fill of this user may not run beside a host job; empty when it may.

    Time slicing keeps a fault of a fill in the fill, so everyone may; under MPS it can reach the
    training, so the site's rule decides. An account that Slurm does not tell equals none.
    """
    if host.share_mode != ShareMode.MPS or settings.mps_for == "any":
        return ""
    if settings.mps_for == "same-user":
        allowed, whose = host.user_id == user_id, "the user of the training"
    elif settings.mps_for == "same-account":
        allowed = bool(account) and host.account == account
        whose = "the account of the training"
    else:
        allowed, whose = False, "no one (the site no longer allows MPS)"
    if allowed:
        return ""
    return f"training job {host.job_id} shares its GPUs by MPS, which is open to fills of {whose}"
