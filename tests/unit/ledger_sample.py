"""A plausible ledger for tests of the command line and the dashboard.

Two nodes, four GPUs: n1 trains job 101 on both of its GPUs and lends them to fills 201 and 202;
n2 trains job 102 in mode observe on one GPU, job 103 (mode on) ran on the other and has ended,
its fill 203 was evicted and runs again on n1. Windows are the sums of the uses by construction, so
a test may compare either with what a page shows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from db.models import (
    Base,
    BubbleUse,
    Event,
    FillJob,
    Gpu,
    HostJob,
    Node,
    Window,
)

GIB = 1 << 30
WINDOW_US = 10_000_000
CAUSES = ("host", "host", "host", "tail", "wait")


@dataclass
class Lending:
    """One host job on one GPU, and which fill jobs run in its bubbles from when to when."""

    gpu_id: int
    host_job: int
    began_us: int
    ended_us: int
    bubble_share: float
    fill_quality: float  # share of bubble time that fills use while there are fills
    fills: list[tuple[int, int, int]] = field(default_factory=list)  # job, from, to


def uuid_of(minor: int) -> str:
    """UUID of a simulated GPU."""
    return f"GPU-00000000-0000-0000-0000-{minor:012d}"


def sample_engine(path: Path, *, now_us: int, minutes: int = 30, seed: int = 1) -> Engine:
    """Make an SQLite database at `path` that holds the ledger of the last `minutes`."""
    engine = create_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        fill_ledger(session, now_us=now_us, minutes=minutes, seed=seed)
        session.commit()
    return engine


def fill_ledger(session: Session, *, now_us: int, minutes: int, seed: int) -> None:
    """Add nodes, GPUs, jobs, windows, uses and events up to `now_us` (UTC microseconds)."""
    chance = random.Random(seed)
    now_us -= now_us % WINDOW_US
    began = now_us - minutes * 60_000_000
    third = (now_us - began) // 3 // WINDOW_US * WINDOW_US
    _add_nodes(session, now_us)
    lendings = [
        Lending(1, 101, began, now_us, 0.46, 0.93, [(201, began + third // 4, now_us)]),
        Lending(
            2,
            101,
            began,
            now_us,
            0.31,
            0.85,
            [(202, began + third, now_us), (203, began + 2 * third, now_us)],
        ),
        Lending(3, 102, began + third // 2, now_us, 0.22, 0.0),
        Lending(4, 103, began, began + 2 * third, 0.38, 0.9, [(203, began, began + 2 * third)]),
    ]
    sums: dict[int, list[float]] = {}
    for lending in lendings:
        _add_windows(session, chance, lending, sums)
    _add_jobs(session, began, third, sums)
    _add_events(session, began, third, now_us)


def _add_nodes(session: Session, now_us: int) -> None:
    for index in (1, 2):
        session.add(
            Node(
                id=index,
                name=f"n{index}",
                twin=f"f{index}",
                agent_version="0.1.0",
                boot_id=f"boot-{index}",
                last_report_at_us=now_us - 400_000 * index,
            )
        )
        session.flush()
        for minor in (2 * index - 2, 2 * index - 1):
            session.add(
                Gpu(
                    id=minor + 1,
                    node_id=index,
                    uuid=uuid_of(minor),
                    minor=minor,
                    name="Simulated GPU",
                    memory_bytes=24 * GIB,
                    simulated=1,
                )
            )
    session.flush()


def _add_windows(
    session: Session, chance: random.Random, lending: Lending, sums: dict[int, list[float]]
) -> None:
    """Add the 10 s windows of one lending and the uses they sum up."""
    sequence = 1
    for began in range(lending.began_us, lending.ended_us, WINDOW_US):
        active = [job for job, start, end in lending.fills if start <= began < end]
        share = lending.bubble_share * chance.uniform(0.85, 1.15)
        bubbles = chance.randint(10, 16)
        length = WINDOW_US * share / bubbles
        by_fill: dict[int, list[BubbleUse]] = {job: [] for job in active}
        for number in range(bubbles):
            sequence += 2
            if not active:
                continue
            job = active[number % len(active)]
            use = _use(chance, lending, job, sequence, began, number, bubbles, length)
            by_fill[job].append(use)
        uses = [use for rows in by_fill.values() for use in rows]
        session.add_all(uses)
        session.add_all(_window_rows(lending, began, bubbles, length, by_fill))
        for key in (lending.host_job, *active):
            total = sums.setdefault(key, [0.0, 0.0, 0.0])
            mine = uses if key == lending.host_job else by_fill[key]
            total[0] += bubbles * length
            total[1] += sum(use.gpu_time_us for use in mine)
            total[2] += sum(use.intrusion_us for use in mine)


def _use(
    chance: random.Random,
    lending: Lending,
    job: int,
    sequence: int,
    began: int,
    number: int,
    bubbles: int,
    length: float,
) -> BubbleUse:
    start = began + int(number * WINDOW_US / bubbles)
    delay = chance.randint(40, 180)
    used = length * lending.fill_quality * chance.uniform(0.92, 1.05)
    late = chance.random() < 0.15
    return BubbleUse(
        gpu_id=lending.gpu_id,
        host_slurm_job_id=lending.host_job,
        host_step="0",
        fill_slurm_job_id=job,
        bubble_seq=sequence,
        bubble_began_at_us=start,
        bubble_us=round(length, 1),
        cause=chance.choice(CAUSES),
        first_release_at_us=start + delay,
        used_us=round(used, 1),
        kernels=max(1, int(used / 400)),
        copies=chance.randint(0, 3),
        gpu_time_us=round(used * 0.97, 1),
        intrusion_us=round(chance.uniform(50, 2500), 1) if late else 0.0,
    )


def _window_rows(
    lending: Lending, began: int, bubbles: int, length: float, by_fill: dict[int, list[BubbleUse]]
) -> list[Window]:
    """Row 0 is the training's own side, then one row a fill."""
    everything = {0: [use for rows in by_fill.values() for use in rows], **by_fill}
    return [
        Window(
            gpu_id=lending.gpu_id,
            host_slurm_job_id=lending.host_job,
            fill_slurm_job_id=job,
            began_at_us=began,
            window_us=WINDOW_US,
            bubbles=bubbles,
            bubble_us=bubbles * length,
            used_bubbles=len(uses),
            gpu_time_us=sum(use.gpu_time_us for use in uses) if job else 0.0,
            intrusion_us=sum(use.intrusion_us for use in uses) if job else 0.0,
            kernels=sum(use.kernels for use in uses) if job else 0,
        )
        for job, uses in everything.items()
    ]


def _add_jobs(session: Session, began: int, third: int, sums: dict[int, list[float]]) -> None:
    hosts = (
        # job, node, user, mode, reason, GPU minors, start, end
        (101, 1, "sfilluser1", "on", "asked by the job", (0, 1), began, None, 0.0042),
        (102, 2, "sfilluser2", "observe", "site default", (2,), began + third // 2, None, None),
        (103, 2, "sfilluser1", "on", "asked by the job", (3,), began, began + 2 * third, None),
    )
    for job, node, user, mode, reason, minors, start, end, slowdown in hosts:
        bubble, filled, intrusion = sums[job]
        session.add(
            HostJob(
                node_id=node,
                slurm_job_id=job,
                user=user,
                account="research",
                mode=mode,
                mode_reason=reason,
                gpus=",".join(uuid_of(minor) for minor in minors),
                lend_bytes=20 * GIB if mode == "on" else None,
                slowdown_budget=0.01,
                started_at_us=start,
                ended_at_us=end,
                intrusion_us=int(intrusion),
                bubble_us=int(bubble),
                filled_us=int(filled),
                calibrated_slowdown=slowdown,
                share_mode="mps" if job == 101 else "timeslice",
                share_reason="asked for" if job == 101 else "the node's setting",
            )
        )
    evicted = began + 2 * third
    fills = (
        # job, start number, node, gpu, user, host, GiB, admitted, ended, why
        (201, 0, 1, 1, "sfilluser2", 101, 8, began + third // 4, None, ""),
        (202, 0, 1, 2, "sfilluser2", 101, 6, began + third, None, ""),
        (203, 0, 2, 4, "sfilluser1", 103, 10, began, evicted, "host job 103 ended"),
        (203, 1, 1, 2, "sfilluser1", 101, 10, evicted, None, ""),
    )
    for job, restart, node, gpu, user, host, gib, start, end, why in fills:
        session.add(
            FillJob(
                node_id=node,
                gpu_id=gpu,
                slurm_job_id=job,
                restart_count=restart,
                user=user,
                account="inference",
                host_slurm_job_id=host,
                memory_bytes=gib * GIB,
                admitted_at_us=start,
                ended_at_us=end,
                end_reason=why,
            )
        )


def _add_events(session: Session, began: int, third: int, now_us: int) -> None:
    evicted = began + 2 * third
    lines = (
        (began + 1_000_000, 2, 4, "admitted", "fill 203 takes 10 GiB beside job 103", 203),
        (began + third // 4, 1, 1, "admitted", "fill 201 takes 8 GiB beside job 101", 201),
        (began + third, 1, 2, "admitted", "fill 202 takes 6 GiB beside job 101", 202),
        (evicted, 2, 4, "evicted", "host job 103 ended", 203),
        (evicted + 2_000_000, 1, 2, "admitted", "fill 203 takes 10 GiB beside job 101", 203),
        (now_us - 60_000_000, 2, 3, "refused", "job 102 only observes, nothing is lent", 204),
    )
    for at, node, gpu, what, text, job in lines:
        session.add(
            Event(
                at_us=at,
                node_id=node,
                gpu_id=gpu,
                what=what,
                text=text,
                slurm_job_id=job,
                user="sfilluser2" if job in (201, 202, 204) else "sfilluser1",
            )
        )
