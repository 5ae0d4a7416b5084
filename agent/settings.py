"""Settings of `sfilld`: section [agent] of the settings file; SFILL_AGENT_* goes before it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from db.host_port import is_http_url
from db.settings_section import SectionSettings, SettingsError, load_section
from db.wire.messages import HostMode

GIB = 1 << 30


class AgentSettings(SectionSettings):
    """Every setting of the agent, with its default and bounds."""

    section: ClassVar[str] = "agent"
    model_config = SettingsConfigDict(env_prefix="SFILL_AGENT_")

    # Who and where
    node: str = Field(description="Slurm name of this training node, as n1")
    twin: str = Field(description="Slurm name of its twin in the partition fill, as f1")
    gpus: list[int] = Field(
        default=[],
        examples=[[0, 1]],
        description="device minors of this node's GPUs in Slurm's order; empty: all",
    )
    socket: str = Field(
        default="/run/sfill/sfilld.sock", description="unix socket; %n stands for the node's name"
    )
    shim_path: str = Field(
        default="/usr/lib/sfill/libspecinf.so", description="the interposer that jobs preload"
    )
    state_dir: Path = Field(
        default=Path("/var/lib/sfill"), description="state that survives a restart of the agent"
    )
    spool_dir: Path = Field(
        default=Path("/var/spool/sfill"), description="records not yet stored by the controller"
    )
    spool_max_bytes: int = Field(
        default=GIB, ge=64 << 10, description="the spool's bound in bytes; when full, fill stops"
    )
    slurm_user_id: int = Field(
        default=0, ge=0, description="user id of SlurmUser, who may switch filling off beside root"
    )
    prolog_user_ids: list[int] = Field(
        default=[0],
        examples=[[0, 64030]],
        description="user ids that may announce jobs (slurmd's prolog and SPANK)",
    )
    # Controller
    controller_url: str = Field(
        default="http://127.0.0.1:8641", description="where sfillctld listens; empty: no controller"
    )
    munge_socket: str = Field(default="", description="munged's socket; empty: munge's default")
    report_interval_s: float = Field(
        default=0.5, ge=0.05, le=60, description="longest time between two reports, in seconds"
    )
    report_timeout_s: float = Field(
        default=5.0, ge=0.1, le=60, description="how long a report waits for its answer, in seconds"
    )
    # Lending
    default_mode: HostMode = Field(
        default=HostMode.OBSERVE, description="mode of host jobs that name none: off, observe or on"
    )
    slot_bytes: int = Field(
        default=GIB, ge=1 << 20, description="memory of one fill slot in bytes, as Slurm counts it"
    )
    default_fill_bytes: int = Field(
        default=8 * GIB, ge=1 << 20, description="memory of a fill job that names none, in bytes"
    )
    reserve_bytes: int = Field(
        default=2 * GIB, ge=0, description="free memory of a GPU that is never lent, in bytes"
    )
    evict_free_bytes: int = Field(
        default=512 << 20,
        ge=0,
        description="with less free memory on a GPU the newest fill is evicted, in bytes",
    )
    warm_up_s: float = Field(
        default=10.0,
        ge=0,
        le=3600,
        description="no fill so long after a training is ready, seconds",
    )
    evict_wait_s: float = Field(
        default=10.0, ge=0.1, le=120, description="longest wait of an epilog for its fills, seconds"
    )
    evict_grace_s: float = Field(
        default=5.0, ge=0, le=120, description="time a fill has to leave before SIGTERM, in seconds"
    )
    evict_kill_s: float = Field(
        default=2.0, ge=0, le=60, description="time between SIGTERM and SIGKILL, in seconds"
    )
    rescue_wait_s: float = Field(
        default=5.0,
        ge=0,
        le=60,
        description="longest wait of a training that is short of memory for its fills to leave, "
        "in seconds; 0: it does not ask",
    )
    rescue_grace_s: float = Field(
        default=0.02,
        ge=0,
        le=1,
        description="time between shutting the gates of such fills and SIGKILL, in seconds",
    )
    growth_margin: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="part of the most memory that a training has used on a GPU, kept free for its "
        "growth where that is more than reserve_bytes",
    )
    endless_s: float = Field(
        default=3.0,
        ge=0.2,
        le=600,
        description="a fill whose work on the GPU has made no progress for so long is evicted, in "
        "seconds; time in which the training was busy counts half",
    )
    forget_after_s: float = Field(
        default=600.0, ge=5, description="a job without a process for so long is given up, seconds"
    )
    forget_batch_after_s: float = Field(
        default=60.0,
        ge=2,
        description="the same for a fill that must have a process: batch, or evicted, seconds",
    )
    # Sharing
    share: Literal["timeslice", "mps"] = Field(
        default="timeslice",
        description="how trainings and fills share a GPU where the host job's owner names no way",
    )
    mps_for: Literal["none", "same-user", "same-account", "any"] = Field(
        default="same-user",
        description="whose fills may run beside a training under MPS, where a fault in a fill can "
        "end the training; none: no job may share by MPS",
    )
    mps_program: str = Field(default="nvidia-cuda-mps-control", description="MPS's control program")
    mps_start_s: float = Field(
        default=4.0,
        ge=0.1,
        le=5,
        description="longest wait of a prolog for MPS; then the job shares by time slicing, "
        "seconds",
    )
    mps_terminate_s: float = Field(
        default=1.0,
        ge=0,
        le=10,
        description="longest wait for MPS to take a fill's work off the GPU before the fill is "
        "killed, in seconds",
    )
    mps_thread_percentage: int = Field(
        default=100,
        ge=1,
        le=100,
        description="part of the GPU's threads that a fill may use under MPS, per cent",
    )
    # Gate
    dwell_us: int = Field(default=50, ge=0, le=100_000, description="idle before release, in us")
    in_flight_us: int = Field(
        default=200,
        ge=10,
        le=100_000,
        description="GPU time of fill in flight, in us; up to 4 times that far from a foretold end",
    )
    in_flight_min_us: int = Field(
        default=40, ge=1, le=100_000, description="in_flight_us is never shrunk below this, in us"
    )
    min_bubble_us: int = Field(
        default=100, ge=0, le=1_000_000, description="shorter bubbles are left alone, in us"
    )
    min_bubble_max_us: int = Field(
        default=20_000, ge=0, le=1_000_000, description="min_bubble_us is never raised above, in us"
    )
    unknown_op_us: int = Field(
        default=1000,
        ge=0,
        le=1_000_000,
        description="what an operation never seen counts as, in us",
    )
    max_op_us: int = Field(
        default=0,
        ge=0,
        le=10_000_000,
        description="longer operations never start, in us; 0: no limit",
    )
    turn_us: int = Field(
        default=20_000, ge=100, le=10_000_000, description="length of a fill's turn, in us"
    )
    graph_part_us: int = Field(
        default=150,
        ge=0,
        le=1_000_000,
        description="CUDA graphs of twice that start in parts of about it, in us; 0: whole",
    )
    # Intrusion budget
    slowdown: float = Field(
        default=0.01, ge=0, le=0.2, description="intrusion that host jobs bear, as a fraction"
    )
    budget_window_s: float = Field(
        default=60.0, ge=5, le=3600, description="sliding window of the intrusion budget, seconds"
    )
    back_off_s: float = Field(
        default=5.0, ge=0.1, le=600, description="first stop of filling when over budget, seconds"
    )
    back_off_max_s: float = Field(
        default=60.0, ge=0.1, le=3600, description="longest stop of filling, in seconds"
    )
    budget_control: bool = Field(
        default=True,
        description="bench only when false: intrusion is measured, never acted upon",
    )
    calibration_fraction: float = Field(
        default=0.05,
        ge=0,
        le=0.5,
        description="part of the time in which fills are held out to measure what they cost the "
        "training; more in the first seconds; 0: never",
    )
    calibration_hold_s: float = Field(
        default=0.5,
        ge=0.1,
        le=10,
        description="length of one hold-out, in seconds; doubled for long iterations",
    )
    # Watching
    heartbeat_ms: int = Field(default=50, ge=10, le=200, description="heartbeat's period, in ms")
    drain_interval_s: float = Field(
        default=0.2, ge=0.02, le=0.5, description="how often the boards are read, in seconds"
    )
    window_s: float = Field(default=10.0, ge=1, le=60, description="length of a window, in seconds")
    guard: bool = Field(
        default=True,
        description="look for processes on the GPUs that no board speaks for; off only where NVML "
        "cannot tell process ids, as in a foreign pid namespace",
    )
    guard_interval_s: float = Field(
        default=0.35, ge=0.05, le=5, description="how often NVML is asked, in seconds"
    )
    restart_grace_s: float = Field(
        default=3.0, ge=0, le=60, description="time for shims to attach again after a restart, s"
    )
    max_connections_per_user: int = Field(
        default=1024, ge=8, description="connections to the socket that one user may hold"
    )
    # Devices
    devices: Literal["auto", "v1", "v2", "none"] = Field(
        default="auto", description="how a fill job's cgroup is given its GPU: cgroup version"
    )
    cgroup_root: Path = Field(
        default=Path("/sys/fs/cgroup"), description="where cgroups are mounted"
    )
    device_path: str = Field(
        default="/dev/nvidia%d", description="a GPU's device node; %d stands for the minor"
    )
    shared_device_paths: list[str] = Field(
        default=["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"],
        examples=[["/dev/nvidiactl", "/dev/nvidia-uvm"]],
        description="device nodes that every user of a GPU needs; missing ones are passed over",
    )
    # Tests and bench
    job_from_environment: bool = Field(
        default=False,
        description="tests only: a process's job is the SLURM_JOB_ID of its environment (beside an "
        "SFILL_SOCKET that names this agent), not its cgroup; anyone may then pose as any job",
    )
    ignore_training: bool = Field(
        default=False,
        description="bench only: gates open without looking at the training (peers' policies)",
    )
    predict_end: bool = Field(
        default=True,
        description="false is for benches only: fill is released up to a bubble's end, and "
        "training waits for what is then in flight",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="what goes to stderr"
    )

    @field_validator("device_path")
    @classmethod
    def _has_minor(cls, value: str) -> str:
        if value.count("%d") != 1 or value.count("%") != 1:
            raise ValueError("must contain %d once, as /dev/nvidia%d")
        return value

    @field_validator("node", "twin")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,63}", value, re.ASCII):
            raise ValueError("must be the name of a node: letters, digits and _ . -, 64 at most")
        return value

    @field_validator("gpus")
    @classmethod
    def _are_minors(cls, value: list[int]) -> list[int]:
        if len(set(value)) != len(value) or any(minor < 0 for minor in value):
            raise ValueError("must be different numbers from 0 on")
        return value

    @field_validator("controller_url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        if value and not is_http_url(value):
            raise ValueError("must be http://HOST:PORT or https://HOST:PORT, or empty")
        return value

    @model_validator(mode="after")
    def _socket_fits(self) -> AgentSettings:
        # It is bound under a longer name first: a dot before it, a dot and a process id behind.
        room = 107 - len(".") - len(".4194304")
        if not Path(self.socket_path).is_absolute() or len(self.socket_path.encode()) > room:
            raise ValueError(f"socket must be an absolute path of at most {room} bytes")
        return self

    @model_validator(mode="after")
    def _ordered(self) -> AgentSettings:
        if self.in_flight_min_us > self.in_flight_us:
            raise ValueError("in_flight_min_us must not be above in_flight_us")
        if self.min_bubble_max_us < self.min_bubble_us:
            raise ValueError("min_bubble_max_us must not be below min_bubble_us")
        if self.back_off_max_s < self.back_off_s:
            raise ValueError("back_off_max_s must not be below back_off_s")
        if self.node == self.twin:
            raise ValueError("twin must be another node than node: its twin in Slurm")
        if self.share == "mps" and self.mps_for == "none":
            raise ValueError("share = mps needs mps_for: same-user, same-account or any")
        return self

    @property
    def socket_path(self) -> str:
        """The socket's path, with the node's name put in."""
        return self.socket.replace("%n", self.node)


def load(file: str | None, **given: Any) -> AgentSettings:
    """Settings from `file` (else SFILL_CONF, else the default file), the environment and `given`.

    Raises SettingsError with one sentence that names the setting.
    """
    wanted = {key: value for key, value in given.items() if value is not None}
    return load_section(AgentSettings, file, wanted)


__all__ = ["AgentSettings", "SettingsError", "load"]
