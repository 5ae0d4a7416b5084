"""Jobs that the agent knows: host jobs that lend, fill jobs that were admitted."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from db.wire.messages import FillJobRecord, HostJobRecord, HostMode, ShareMode

_TURNED_AWAY_S = 30.0
_TURNED_AWAY_MAX_S = 600.0


@dataclass
class HostJob:
    """A training allocation on this node. `gpus` are UUIDs; lengths in microseconds."""

    job_id: int
    user_id: int
    user: str
    account: str
    mode: HostMode
    mode_reason: str
    gpus: list[str]
    lend_bytes: int | None
    slowdown: float
    started_at_us: int
    restart_count: int = 0  # which run of the job it is, as far as Slurm says so
    intrusion_us: float = 0.0
    bubble_us: float = 0.0
    watched_us: float = 0.0
    filled_us: float = 0.0
    calibrated_us: float = 0.0
    calibrated_slowdown: float | None = None  # of its time; None: not known yet
    ended_at_us: int | None = None
    peak_bytes: dict[str, int] = field(default_factory=dict)  # most memory it wanted, by GPU
    share_mode: ShareMode = ShareMode.TIMESLICE
    share_reason: str = ""

    def ends(self, at_us: int) -> None:
        """It has ended; what fill cost it is a part of its time, as that turned out."""
        self.ended_at_us = max(at_us, self.started_at_us)
        if self.calibrated_slowdown is not None:
            whole_us = max(1, self.ended_at_us - self.started_at_us)
            self.calibrated_slowdown = min(1.0, self.calibrated_us / whole_us)

    def note_peak(self, gpu: str, held_bytes: int) -> None:
        """Its processes hold, or have asked for, so much memory on a GPU."""
        self.peak_bytes[gpu] = max(held_bytes, self.peak_bytes.get(gpu, 0))

    def record(self) -> HostJobRecord:
        """The ledger's row for this job as it stands."""
        return HostJobRecord(
            job_id=self.job_id,
            user=self.user,
            account=self.account,
            mode=self.mode,
            mode_reason=self.mode_reason,
            gpus=self.gpus,
            lend_bytes=self.lend_bytes,
            slowdown_budget=self.slowdown,
            started_at_us=self.started_at_us,
            ended_at_us=self.ended_at_us,
            intrusion_us=round(self.intrusion_us),
            bubble_us=round(self.bubble_us),
            filled_us=round(self.filled_us),
            watched_us=round(self.watched_us),
            calibrated_slowdown=self.calibrated_slowdown,
            share_mode=self.share_mode,
            share_reason=self.share_reason,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class FillJob:
    """An admitted inference job: its GPU, and the memory reserved for it there."""

    job_id: int
    restart_count: int
    user_id: int
    user: str
    account: str
    gpu: str
    host_job_id: int | None
    memory_bytes: int
    admitted_at_us: int
    batch: bool = True
    evicted: str = ""  # why it has to leave; empty: it may stay
    ended_at_us: int | None = None
    end_reason: str = ""

    def record(self) -> FillJobRecord:
        """The ledger's row for this start of the job as it stands."""
        return FillJobRecord(
            job_id=self.job_id,
            restart_count=self.restart_count,
            user=self.user,
            account=self.account,
            gpu=self.gpu,
            host_job_id=self.host_job_id,
            memory_bytes=self.memory_bytes,
            admitted_at_us=self.admitted_at_us,
            ended_at_us=self.ended_at_us,
            end_reason=self.end_reason,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Jobs:
    """All jobs of the node; `refused` keeps why a fill job was turned away, for slurmstepd."""

    hosts: dict[int, HostJob] = field(default_factory=dict)
    fills: dict[int, FillJob] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    turned_away: dict[int, int] = field(default_factory=dict)  # how often, for whose they are

    def host_of(self, gpu: str) -> HostJob | None:
        """The host job that holds a GPU."""
        return next((host for host in self.hosts.values() if gpu in host.gpus), None)

    def fills_of(self, gpu: str) -> list[FillJob]:
        """Fill jobs admitted to a GPU, oldest first."""
        found = [fill for fill in self.fills.values() if fill.gpu == gpu]
        return sorted(found, key=lambda fill: (fill.admitted_at_us, fill.job_id))

    def refuse(self, job_id: int, reason: str) -> None:
        """Remembers a refusal; only the latest thousand are kept."""
        self.refused[job_id] = reason
        while len(self.refused) > 1000:
            del self.refused[next(iter(self.refused))]

    def turn_away(self, job_id: int) -> float:
        """A fill was refused for whose it is, not for want of room: seconds until it may ask here
        again, twice as long each time."""
        times = self.turned_away.pop(job_id, 0)
        self.turned_away[job_id] = times + 1
        while len(self.turned_away) > 1000:
            del self.turned_away[next(iter(self.turned_away))]
        return min(_TURNED_AWAY_MAX_S, _TURNED_AWAY_S * 2.0 ** min(times, 10))
