"""Messages between an agent and the controller, as JSON over HTTP.

Times are UTC microseconds since the epoch (`_at_us`); lengths are microseconds (`_us`).
An agent sends one `Report` every `report_interval`; records that must not be lost travel in
`Batch`es, numbered from 1 within one life of the agent's spool (`boot_id`; it survives restarts of
the agent), sent again until acknowledged.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Cause(StrEnum):
    """What began a bubble; the numbers of board.h in order 1..4."""

    HOST = "host"
    TAIL = "tail"
    WAIT = "wait"
    COMMUNICATION = "communication"


class HostMode(StrEnum):
    OFF = "off"
    OBSERVE = "observe"
    ON = "on"


class ShareMode(StrEnum):
    """How a training and its fills share a GPU."""

    TIMESLICE = "timeslice"
    MPS = "mps"


class Gpu(Message):
    """One GPU of the node, as it stands now."""

    uuid: str
    minor: int
    name: str
    memory_bytes: int
    host_job_id: int | None = None  # Slurm job that lends it now
    host_mode: HostMode | None = None
    lendable_slots: int = 0  # slots free for one more fill
    used_slots: int = 0  # slots that admitted fills hold
    simulated: bool = False


class HostJobRecord(Message):
    kind: Literal["host_job"] = "host_job"
    job_id: int
    user: str
    account: str = ""
    mode: HostMode
    mode_reason: str = ""
    gpus: list[str]
    lend_bytes: int | None = None
    slowdown_budget: float  # fraction
    started_at_us: int
    ended_at_us: int | None = None
    intrusion_us: int = 0  # so far
    bubble_us: int = 0  # so far, all bubbles of >= 100 us, over its GPUs
    filled_us: int = 0  # GPU time of fill in them, so far
    # Time in which its processes were watched, over its GPUs; None: from an agent that did not say.
    watched_us: int | None = None
    # What fill cost it by comparison with stretches without fill, of wall time; None: not known.
    calibrated_slowdown: float | None = None
    share_mode: ShareMode | None = None  # None: from an agent that did not know of it
    share_reason: str = ""


class FillJobRecord(Message):
    kind: Literal["fill_job"] = "fill_job"
    job_id: int
    restart_count: int = 0
    user: str
    account: str = ""
    gpu: str
    host_job_id: int | None = None
    memory_bytes: int
    admitted_at_us: int
    ended_at_us: int | None = None
    end_reason: str = ""


class BubbleUseRecord(Message):
    """One use of one bubble by one fill job."""

    kind: Literal["bubble_use"] = "bubble_use"
    gpu: str
    host_job_id: int
    host_step: str = ""
    fill_job_id: int
    bubble_seq: int
    bubble_began_at_us: int
    bubble_us: float  # length; up to the last use seen when it is still open
    cause: Cause
    first_release_at_us: int
    used_us: float  # first release to last operation done
    kernels: int
    copies: int = 0
    gpu_time_us: float
    intrusion_us: float


class WindowRecord(Message):
    """Ten seconds of one (GPU, host job); fill_job_id None is the training's own side.

    Rows add up: bubbles and bubble_us stand only in the training's own row, used_bubbles,
    gpu_time_us, intrusion_us and kernels only in the rows of the fills. A window ends early when
    its job does.
    """

    kind: Literal["window"] = "window"
    gpu: str
    host_job_id: int
    fill_job_id: int | None = None
    began_at_us: int
    window_us: int
    bubbles: int
    bubble_us: float
    used_bubbles: int = 0
    gpu_time_us: float = 0.0
    intrusion_us: float = 0.0
    kernels: int = 0


class EventRecord(Message):
    """A line of the audit log."""

    kind: Literal["event"] = "event"
    at_us: int
    what: str  # short word: attached, admitted, refused, evicted, escaped, shut, off, on, ...
    text: str
    job_id: int | None = None
    gpu: str | None = None
    user: str | None = None


class AnewRecord(Message):
    """The agent begins without the state of an earlier life: it knows none of the jobs that batches
    before this one left open."""

    kind: Literal["anew"] = "anew"
    at_us: int


Record = Annotated[
    HostJobRecord | FillJobRecord | BubbleUseRecord | WindowRecord | EventRecord | AnewRecord,
    Field(discriminator="kind"),
]


class Batch(Message):
    boot_id: str
    sequence: int
    records: list[Record]


class Report(Message):
    node: str
    twin: str
    boot_id: str
    version: str
    slot_bytes: int
    gpus: list[Gpu]
    fill_jobs: list[int]  # Slurm jobs admitted here now
    off: bool  # filling is off on this node
    requeue: list[int] = []  # fill jobs evicted, for the controller to requeue or cancel
    batch: Batch | None = None


class ReportAnswer(Message):
    accepted_sequence: int  # batches up to here are stored for good (of the batch's boot_id)
    off: bool  # what the operator wants
    requeued: list[int] = []  # of `requeue`, those dealt with
    # Slurm holds the twin for invalid: its slurmd must register again (SIGHUP to the twin's slurmd
    # does that; sent at most every few seconds while this stands).
    register_twin: bool = False


class SwitchRequest(Message):
    """`sfill off` / `sfill on`."""

    off: bool
    by: str
    reason: str = ""
