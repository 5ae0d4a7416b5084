"""The bench's cells: which workload is measured under which policy beside which inference.

The most telling come first, since a GPU is had for minutes at a time. Peers' settings are swept:
each point of a policy's grid is a cell.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

ONE_GPU = ("stall", "dataload", "checkpoint")
DISTRIBUTED = ("pp", "ddp", "fsdp")
WORKLOADS = (*ONE_GPU, *DISTRIBUTED)
INFERENCES = ("transformer", "transformer-graph", "decode", "decode-graph", "convnet")
PEERS = ("timeslice", "mps", "mps-low", "launch-count", "rate-control")
POLICIES = ("alone", "observe", "ours", *PEERS)
NEED_SLURM = ("ours", "observe")

# Policy -> points of its grid. Units: percent of SMs, us, launches, fractions, seconds.
GRID: dict[str, tuple[dict[str, float], ...]] = {
    "alone": ({},),
    "observe": ({},),
    "ours": ({},),
    "timeslice": ({},),
    "mps": ({},),
    "mps-low": tuple({"sm_percent": percent} for percent in (100, 50, 25, 10)),
    "launch-count": (
        {"quiet_us": 200, "in_flight": 4},
        {"quiet_us": 1000, "in_flight": 4},
        {"quiet_us": 100, "in_flight": 4},
        {"quiet_us": 200, "in_flight": 0},
    ),
    "rate-control": (
        {"tolerance": 0.05, "window_s": 1.0},
        {"tolerance": 0.02, "window_s": 1.0},
        {"tolerance": 0.15, "window_s": 1.0},
    ),
}

# Iterations of a block: some hundred milliseconds to a second.
BLOCK = {"stall": 8, "dataload": 12, "checkpoint": 3, "pp": 8, "ddp": 10, "fsdp": 10}

# Seconds of a cell of 10 rounds, until one has been measured.
ESTIMATE_S = {"alone": 45.0, "observe": 75.0, "ours": 90.0, "rate-control": 60.0}
ESTIMATE_PEER_S = 50.0
ESTIMATE_ROUNDS = 10
DISTRIBUTED_EXTRA_S = 25.0
FIXED = 0.35  # of such a cell


@dataclass(frozen=True)
class Cell:
    """One measurement."""

    workload: str
    policy: str
    inference: str = ""  # none for alone and observe
    settings: tuple[tuple[str, float], ...] = ()
    link: str = ""  # nvlink or slow, of distributed workloads
    gpus: int = 1

    @property
    def name(self) -> str:
        """Also the name of its file."""
        values = [f"{key.replace('_', '-')}{value:g}" for key, value in self.settings]
        gpus = f"{self.gpus}gpus" if self.gpus > 1 else ""
        parts = [self.workload, gpus, self.link, self.policy, self.inference, *values]
        return "-".join(part for part in parts if part)

    @property
    def mode(self) -> str:
        """How kernels of two processes share the GPU."""
        return "mps" if self.policy.startswith("mps") else "timeslice"

    def setting(self, name: str) -> float:
        """One of the policy's settings; KeyError when it has none of that name."""
        return dict(self.settings)[name]


@dataclass(frozen=True)
class Machine:
    """Where cells run."""

    gpu: str
    driver: str
    gpus: int
    cuda: str = ""
    slurm: bool = False  # a sandbox is there
    mps: bool = False
    lacks: dict[str, str] = field(default_factory=dict)

    def why_not(self, cell: Cell) -> str:
        """Why the cell can't run here; empty when it can."""
        if cell.gpus > self.gpus:
            return f"needs {cell.gpus} GPU" + ("s" if cell.gpus > 1 else "")
        if cell.policy in NEED_SLURM and not self.slurm:
            return "needs a sandbox (--sandbox)"
        if cell.mode == "mps" and not self.mps:
            return "needs nvidia-cuda-mps-control"
        return ""


def cells_of(workload: str, policy: str, inference: str, gpus: int) -> Iterator[Cell]:
    """All points of one policy's grid, over all links."""
    beside = "" if policy in ("alone", "observe") else inference
    links = ("nvlink", "slow") if workload in DISTRIBUTED else ("",)
    for link in links:
        for settings in GRID[policy]:
            ranks = gpus if workload in DISTRIBUTED else 1
            yield Cell(workload, policy, beside, tuple(settings.items()), link, ranks)


def plan(gpus: int = 2) -> list[Cell]:
    """Every cell, the most telling first. gpus: ranks of the distributed workloads."""
    order: list[tuple[str, str, str]] = []
    order += [("stall", policy, "transformer") for policy in ("ours", *PEERS)]
    order += [(workload, "ours", "transformer") for workload in ONE_GPU[1:]]
    order += [("stall", policy, "") for policy in ("alone", "observe")]
    order += [("stall", "ours", inference) for inference in INFERENCES[1:]]
    for workload in DISTRIBUTED:
        order += [(workload, policy, "transformer") for policy in ("ours", "observe", *PEERS)]
    for workload in ONE_GPU[1:]:
        order += [(workload, policy, "transformer") for policy in (*PEERS, "alone", "observe")]
    for inference in INFERENCES[1:]:
        order += [("stall", policy, inference) for policy in PEERS]
    for workload in (*ONE_GPU[1:], *DISTRIBUTED):
        for inference in INFERENCES:
            order += [(workload, policy, inference) for policy in ("ours", *PEERS, "alone")]
    found: dict[Cell, None] = {}
    for workload, policy, inference in order:
        for cell in cells_of(workload, policy, inference, max(2, gpus)):
            found.setdefault(cell)
    return list(found)


def estimate_s(cell: Cell, known: list[dict[str, Any]], rounds: int, block: int = 0) -> float:
    """How long a cell should take: as the longest like it did, else a guess.

    Scaled from the size that was measured to rounds x block (0: the workload's own block).
    """
    wanted = rounds * (block or BLOCK[cell.workload])
    usual = ESTIMATE_ROUNDS * BLOCK[cell.workload]
    guess = ESTIMATE_S.get(cell.policy, ESTIMATE_PEER_S)
    guess += DISTRIBUTED_EXTRA_S if cell.workload in DISTRIBUTED else 0.0
    like = [
        scaled(float(each["wall_s"]), int(each["pairs"]) * int(each["block"]), wanted)
        for each in known
        if (each["workload"], each["policy"]) == (cell.workload, cell.policy) and each.get("pairs")
    ]
    return max(like) if like else scaled(guess, usual, wanted)


def scaled(seconds: float, iterations: int, wanted: int) -> float:
    """The time of a cell of another size: starts and warm-ups stay, the blocks grow."""
    fixed = FIXED * seconds
    return fixed + (seconds - fixed) * wanted / iterations
