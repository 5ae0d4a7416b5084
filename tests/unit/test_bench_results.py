"""The bench's harvest, idle gaps, results and pictures: the arithmetic behind published figures."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from tests.bench import outcome
from tests.bench.harvest import Progress, harvest, rate
from tests.bench.page import Page, Word
from tests.bench.report import comparisons, groups, write_page, write_table
from tests.bench.slurm_cell import take_turns
from tests.bench.stopwatch import BLOCK_KINDS, gaps, run_blocks

SECOND = 1_000_000_000


def progress(tmp_path: Path, lines: list[tuple[int, int]], tail: str = "") -> Progress:
    report = tmp_path / "fill.txt"
    report.write_text("".join(f"{at} {count}\n" for at, count in lines) + tail)
    return Progress(report)


def test_batches_count_only_inside_the_stretches(tmp_path: Path) -> None:
    done = progress(tmp_path, [(n * SECOND, n * 10) for n in range(1, 11)])
    assert done.batches([(2 * SECOND, 4 * SECOND)]) == pytest.approx(20)
    assert done.batches([(int(2.5 * SECOND), 3 * SECOND)]) == pytest.approx(5)
    assert done.batches([(SECOND, 2 * SECOND), (8 * SECOND, 10 * SECOND)]) == pytest.approx(30)
    assert done.batches([(20 * SECOND, 30 * SECOND)]) == 0


def test_a_torn_last_line_is_passed_over(tmp_path: Path) -> None:
    done = progress(tmp_path, [(SECOND, 1), (2 * SECOND, 2)], tail="30000")
    assert done.batches_at(5 * SECOND) == 2


ALONE = {"batches_per_s": 100.0, "busy_us_per_batch": 9000.0}


def test_harvest_compares_with_bubbles_of_the_training_alone(tmp_path: Path) -> None:
    """A fill of 100 batches/s alone, 9 ms busy each, did 40 a second; bubbles are half the time."""
    done = progress(tmp_path, [(n * SECOND, n * 40) for n in range(1, 12)])
    assert rate(done, [(SECOND, 11 * SECOND)]) == pytest.approx(40)
    found = harvest(40, ALONE, 0.5)
    assert found.rate_ratio == pytest.approx(0.8)
    assert found.efficiency == pytest.approx(40 * 0.009 / 0.5)


def test_no_bubble_means_no_harvest_and_no_division_by_zero(tmp_path: Path) -> None:
    progress(tmp_path, [(SECOND, 10)])
    report = {"bubble_share": 0.0, "filled_ns": [(0, SECOND)]}
    found = outcome.harvested("timeslice", [report], [tmp_path / "fill.txt"], ALONE)
    assert (found["harvest_efficiency"], found["rate_ratio"]) == (None, None)
    assert found["fill_rate"] == pytest.approx(10)


def test_a_share_that_the_profiler_could_not_tell_is_taken_from_another_cell(
    tmp_path: Path,
) -> None:
    progress(tmp_path, [(SECOND, 40)])
    report = {"filled_ns": [(0, SECOND)]}
    blind = outcome.harvested("mps", [report], [tmp_path / "fill.txt"], ALONE)
    assert blind["harvest_efficiency"] is None
    told = outcome.with_share(blind, 0.5, "stall-alone", ALONE)
    assert told["harvest_efficiency"] == pytest.approx(0.72)
    assert told["rate_ratio"] == pytest.approx(0.8)
    assert told["bubble_share_from"] == "stall-alone"


def test_each_rank_is_credited_with_the_fills_on_its_own_gpu(tmp_path: Path) -> None:
    """Slurm placed the first fill on the second GPU, and a third one beside it."""
    fills = []
    for number, (uuid, batches) in enumerate([("b", 40), ("a", 10), ("b", 20)]):
        fills.append(tmp_path / f"fill.{number}.txt")
        fills[-1].write_text(f"gpu {uuid}\n{SECOND} {batches}\n")
    reports = [{"bubble_share": 0.5, "filled_ns": [(0, SECOND)], "gpu_uuid": uuid} for uuid in "ab"]
    found = outcome.harvested("timeslice", reports, fills, ALONE)
    assert found["fill_rate_by_gpu"] == pytest.approx([10, 60])


def test_under_mps_communication_counts_as_bubble(tmp_path: Path) -> None:
    progress(tmp_path, [(SECOND, 40)])
    report = {"bubble_share": 0.2, "bubble_share_compute": 0.4, "filled_ns": [(0, SECOND)]}
    ratios = [
        outcome.harvested(mode, [report], [tmp_path / "fill.txt"], ALONE)["rate_ratio"]
        for mode in ("timeslice", "mps")
    ]
    assert ratios == [pytest.approx(2.0), pytest.approx(1.0)]


def test_gaps_are_what_no_span_covers() -> None:
    spans = [(10.0, 30.0), (20.0, 25.0), (40.0, 60.0), (-5.0, 2.0)]
    assert gaps(spans, 0.0, 100.0) == [8.0, 10.0, 40.0]
    assert gaps([], 0.0, 7.0) == [7.0]
    assert gaps([(0.0, 100.0)], 5.0, 50.0) == []
    assert sum(gaps(spans, 0.0, 50.0)) == 18.0


class Counting:
    """A training that is slower while fill runs, and says which kinds of block it was in."""

    def __init__(self) -> None:
        self.on = False
        self.restarts = 0
        self.switched: list[bool] = []
        self.is_steady = False
        self.steps = {True: 0, False: 0}

    def set(self, on: bool) -> None:
        assert not self.is_steady
        self.on = on
        self.switched.append(on)

    def steady(self, on: bool) -> None:
        self.is_steady = on

    def step(self) -> None:
        self.steps[self.is_steady] += 1
        time.sleep(0.004 if self.on else 0.001)

    def restart(self) -> None:
        self.restarts += 1


def test_blocks_alternate_and_only_filled_ones_are_harvested() -> None:
    both = Counting()
    blocks = run_blocks(both, both, rounds=6, block=3)
    assert {kind: len(found) for kind, found in blocks.times_ms.items()} == dict.fromkeys(
        BLOCK_KINDS, 6
    )
    assert len(blocks.filled_ns) == sum(both.switched) == 6
    assert both.steps == {True: 6 * 3 * 3, False: 6 * 3}
    assert both.restarts == 18  # every block begins alike
    shut = [x for kind in ("shut", "control") for block in blocks.times_ms[kind] for x in block]
    filled = [x for block in blocks.times_ms["filled"] for x in block]
    assert sorted(shut)[len(shut) // 2] < 3 < min(filled)


def test_trainings_take_turns_one_at_a_time(tmp_path: Path) -> None:
    pages = {who: [Page.create(tmp_path / who)] for who in ("observed", "plain", "control")}
    at_once: list[str] = []
    turns: list[str] = []
    stop = threading.Event()

    def train(who: str, page: Page) -> None:
        seen = 0
        while not stop.wait(0.0005):
            command = page[Word.COMMAND]
            if command == seen:
                continue
            if command % 2:
                at_once.append(who)
                assert at_once == [who]
                turns.append(who)
                time.sleep(0.002)
                at_once.remove(who)
            page.obey(command)
            seen = command

    threads = [threading.Thread(target=train, args=(who, page[0])) for who, page in pages.items()]
    for thread in threads:
        thread.start()
    take_turns(pages, rounds=4)
    stop.set()
    for thread in threads:
        thread.join()
    assert [sorted(turns[n : n + 3]) for n in range(0, 12, 3)] == [sorted(pages)] * 4
    assert len({tuple(turns[n : n + 3]) for n in range(0, 12, 3)}) > 1


def result(
    policy: str, slowdown: float, efficiency: float | None, **more: object
) -> outcome.Result:
    source = random.Random(f"{policy}{slowdown}")
    shut = [[100 + source.gauss(0, 0.3) for _ in range(8)] for _ in range(10)]
    filled = [[100 * (1 + slowdown) + source.gauss(0, 0.3) for _ in range(8)] for _ in range(10)]
    return {
        "workload": "stall",
        "policy": policy,
        "inference": "transformer",
        "settings": {},
        "cell": f"stall-{policy}-{slowdown}",
        **outcome.cost(filled, shut),
        **outcome.control(shut, shut),
        "harvest_efficiency": efficiency,
        **more,
    }


RESULTS = [
    result("ours", 0.005, 0.9),
    result("mps-low", 0.11, 1.1, settings={"sm_percent": 25.0}),
    result("mps-low", 0.05, 0.6, settings={"sm_percent": 10.0}),
    result("timeslice", 0.37, 1.2, link="slow", gpus=2, workload="pp"),
    result("observe", 0.001, None, inference=None),
    {"workload": "stall", "policy": "mps", "cell": "stall-mps", "error": "no daemon\nlog"},
]


def test_the_page_holds_every_point_and_nothing_from_elsewhere(tmp_path: Path) -> None:
    page = write_page(RESULTS, tmp_path / "bench.html").read_text()
    assert "<script src=" not in page
    for text in ("stall, beside transformer", "pp x2 slow, beside transformer", "sm_percent=25"):
        assert text in page
    assert "Dry run" not in page
    assert {title: len(own) for title, own in groups(RESULTS).items()} == {
        "stall, beside transformer": 3,
        "pp x2 slow, beside transformer": 1,
    }


def test_a_dry_run_says_that_it_is_none(tmp_path: Path) -> None:
    dry = [result("ours", 0.005, 0.9, dry_run=True)]
    assert "none of this is a figure" in write_page(dry, tmp_path / "bench.html").read_text()


def test_the_table_shows_figures_and_failures(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(RESULTS)
    shown = capsys.readouterr().out
    for text in ("sm_percent=10", "90.0", "pp x2 slow", "failed: stall-mps: no daemon"):
        assert text in shown


def test_ours_is_compared_with_the_best_peer_that_costs_no_more() -> None:
    ours, cheap = result("ours", 0.05, 0.9), result("launch-count", 0.02, 0.3)
    dear = result("mps", 0.2, 1.5)
    (line,) = comparisons([ours, cheap, result("mps-low", 0.01, 0.1), dear])
    assert "ours 90.0 % of bubbles" in line
    assert "best peer that costs no more: launch-count, 30.0 %" in line
    (line,) = comparisons([ours, dear])
    assert "no peer costs as little; the least: mps, 150.0 % at" in line
    assert comparisons([ours]) == []
