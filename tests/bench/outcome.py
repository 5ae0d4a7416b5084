"""A cell's result: the fields that every cell has, whatever its policy; and where they are kept."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.cells import Cell, Machine
from tests.bench.harvest import Harvest, Progress, harvest, rate
from tests.bench.statistics import slowdown

MERGED = "bench.json"
# Fields that every result has; null where a policy has no such figure.
MAY_BE_UNKNOWN = ("bubble_share", "harvest_efficiency", "rate_ratio", "intrusion_fraction")
Result = dict[str, Any]


def cost(filled: Sequence[Sequence[float]], shut: Sequence[Sequence[float]]) -> Result:
    """The fields that say what it cost the training."""
    found = slowdown(filled, shut)
    return {
        "pairs": found.rounds,
        "slowdown_median": found.median,
        "slowdown_lower95": found.lower95,
        "slowdown_upper95": found.upper95,
        "slowdown_p95": found.p95,
    }


def control(again: Sequence[Sequence[float]], shut: Sequence[Sequence[float]]) -> Result:
    """The A/A control: what the same comparison says of blocks that do not differ."""
    found = slowdown(again, shut)
    return {
        "control_median": found.median,
        "control_lower95": found.lower95,
        "control_upper95": found.upper95,
        "control_p95": found.p95,
    }


def describe(cell: Cell, machine: Machine, commit: str, tiny: bool) -> Result:
    """The fields that say what was measured, and where."""
    return {
        "workload": cell.workload,
        "policy": cell.policy,
        "inference": cell.inference or None,
        "settings": dict(cell.settings),
        "mode": cell.mode,
        "link": cell.link or None,
        "gpus": cell.gpus,
        "gpu": machine.gpu,
        "driver": machine.driver,
        "cuda": machine.cuda,
        "commit": commit,
        "cell": cell.name,
        **dict.fromkeys(MAY_BE_UNKNOWN),
        **({"dry_run": True} if tiny else {}),
    }


def share_field(mode: str) -> str:
    """Under MPS communication is bubble, under time slicing it is busy."""
    return "bubble_share_compute" if mode == "mps" else "bubble_share"


def of_training(report: dict[str, Any], mode: str) -> Result:
    """The fields that a training's own report gives."""
    blocks = report["blocks"]
    share = share_field(mode)
    return {
        "torch": report["torch"],
        **cost(blocks["filled"], blocks["shut"]),
        **control(blocks["control"], blocks["shut"]),
        "bubble_share": report.get(share),
        "bubble_share_communication_busy": report.get("bubble_share"),
        "bubbles_per_iteration": report.get("bubbles_per_iteration"),
        "iteration_alone_ms": statistics.median(report["alone_ms"]),
        "iteration_shut_ms": statistics.median([x for b in blocks["shut"] for x in b]),
        "iteration_filled_ms": statistics.median([x for b in blocks["filled"] for x in b]),
        "block": len(blocks["shut"][0]),
    }


def mean(values: Sequence[float | None]) -> float | None:
    """None when any is unknown."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def of_harvest(by_gpu: Sequence[Harvest], alone: Mapping[str, Any]) -> Result:
    """The fields that say what the fills got done: means over GPUs, and each GPU's own."""
    return {
        "harvest_efficiency": mean([each.efficiency for each in by_gpu]),
        "rate_ratio": mean([each.rate_ratio for each in by_gpu]),
        "fill_rate": statistics.fmean(each.rate for each in by_gpu),
        "fill_rate_alone": alone["batches_per_s"],
        "fill_busy_us_per_batch": alone["busy_us_per_batch"],
        # Below 1 the program itself leaves the GPU idle: then rate_ratio is the figure to look at.
        "fill_busy_share_alone": alone["batches_per_s"] * alone["busy_us_per_batch"] / 1e6,
        "fill_rate_by_gpu": [each.rate for each in by_gpu],
        "harvest_by_gpu": [each.efficiency for each in by_gpu],
    }


def harvested(
    mode: str, reports: Sequence[dict[str, Any]], fills: Sequence[Path], alone: Mapping[str, Any]
) -> Result:
    """The harvest's fields from the reports of ranks and of the fills beside them."""
    share = share_field(mode)
    works = [Progress(fill) for fill in fills]
    by_gpu = []
    for rank, report in enumerate(reports):
        beside = fills_beside(report.get("gpu_uuid"), rank, works)
        batches_per_s = sum(rate(work, report["filled_ns"]) for work in beside)
        by_gpu.append(harvest(batches_per_s, alone, report.get(share)))
    return of_harvest(by_gpu, alone)


def fills_beside(uuid: str | None, rank: int, works: Sequence[Progress]) -> list[Progress]:
    """The fills on a rank's GPU: by UUID (Slurm places ours), else the one of the same number."""
    if uuid and all(work.gpu for work in works):
        return [work for work in works if work.gpu == uuid]
    return [works[rank]]


def with_share(
    result: Result, share: float, source: str, alone: Mapping[str, Any] | None
) -> Result:
    """What changes once another cell has told the bubble share."""
    told: Result = {"bubble_share": share, "bubble_share_from": source}
    if alone is None:
        return told
    rates = result["fill_rate_by_gpu"]
    return told | of_harvest([harvest(each, alone, share) for each in rates], alone)


class Store:
    """One JSON a cell, and one that merges them all (in `collect`: the same folder if None)."""

    def __init__(self, folder: Path, collect: Path | None = None) -> None:
        self.folder = folder
        self.collect = collect or folder
        for each in (self.folder, self.collect):
            each.mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        """Where a cell of this name is kept."""
        return self.folder / f"cell-{name}.json"

    def read(self, name: str) -> Result | None:
        """A cell's result; None when there is none that can be read."""
        try:
            found: Result = json.loads(self.path(name).read_text())
        except (OSError, ValueError):
            return None
        return found

    def write(self, name: str, result: Result) -> None:
        """Keeps a result, and merges."""
        partial = self.path(name).with_suffix(".part")
        partial.write_text(json.dumps(result, indent=1) + "\n")
        partial.replace(self.path(name))
        self.merge()

    def all(self) -> list[Result]:
        """Every cell's result that can be read."""
        names = sorted(file.stem.removeprefix("cell-") for file in self.folder.glob("cell-*.json"))
        found = [self.read(name) for name in names]
        return [each for each in found if each is not None]

    def merge(self) -> None:
        """Writes the file that holds them all."""
        partial = self.collect / f"{MERGED}.part"
        partial.write_text(json.dumps(self.all(), indent=1) + "\n")
        partial.replace(self.collect / MERGED)

    def take_in(self, merged: Iterable[Result]) -> int:
        """Takes results of earlier sessions that are not here; how many."""
        taken = 0
        for each in merged:
            name = str(each["cell"])
            if self.read(name) is None:
                self.path(name).write_text(json.dumps(each, indent=1) + "\n")
                taken += 1
        if taken:
            self.merge()
        return taken

    def is_done(self, name: str, commit: str | None) -> bool:
        """Whether the cell was measured, at this commit (None: at any)."""
        found = self.read(name)
        if found is None or "error" in found:
            return False
        return commit is None or found.get("commit") == commit
