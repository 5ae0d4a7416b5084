"""The bench's TGS-style rate control: it converges, backs off, and is not fooled by iterations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.page import Page, Word
from tests.bench.rate_control import Constants, Loop, RateControl, Windows

ALONE = 5000.0  # training launches a second
FREE = 32000.0  # fill launches a second


def test_the_rate_grows_by_a_step_while_training_keeps_its_own_rate() -> None:
    control = RateControl(Constants(increase=1 / 16), FREE)
    rates = [control.window(ALONE * 0.97, ALONE) for _ in range(3)]
    assert rates == pytest.approx([FREE * 2 / 16, FREE * 3 / 16, FREE * 4 / 16])


def test_the_rate_is_halved_when_training_falls_behind() -> None:
    control = RateControl(Constants(), FREE)
    before = control.rate
    assert control.window(ALONE * 0.94, ALONE) == pytest.approx(before / 2)


def test_the_rate_stays_between_the_floor_and_what_the_fill_can_do() -> None:
    control = RateControl(Constants(), FREE)
    for _ in range(50):
        control.window(ALONE, ALONE)
    assert control.rate == FREE
    for _ in range(50):
        control.window(0.0, ALONE)
    assert control.rate == pytest.approx(FREE / 256)


def test_it_settles_around_the_rate_at_which_training_begins_to_suffer() -> None:
    """A training that loses 1 % for each 2000 launches a second of the fill; tolerated are 5 %."""
    control = RateControl(Constants(), FREE)
    rates = []
    for _ in range(200):
        slowdown = 0.01 * control.rate / 2000
        rates.append(control.window(ALONE * (1 - slowdown), ALONE))
    settled = rates[100:]
    assert max(settled) <= 10000 + FREE / 16
    assert min(settled) >= 10000 / 2
    assert 6000 < sum(settled) / len(settled) < 10000


def bursts(at_ms: int, compute_ms: int = 44, period_ms: int = 104, launches: int = 500) -> int:
    """Launches so far of a training that launches in the first part of each iteration."""
    whole, within = divmod(at_ms, period_ms)
    return whole * launches + min(launches, launches * within // compute_ms)


def test_windows_are_cut_between_iterations() -> None:
    """Cut anywhere, a window of a second would be off by up to a tenth of its launches."""
    windows = Windows(1.0)
    rates = []
    for at_ms in range(0, 20000, 4):
        rate = windows.sample(at_ms / 1000, bursts(at_ms))
        if rate is not None:
            rates.append(rate)
    assert len(rates) >= 15
    for rate in rates[1:]:
        assert rate == pytest.approx(500 / 0.104, rel=0.015)


def test_a_window_closes_late_when_launches_never_rest() -> None:
    windows = Windows(1.0)
    closed = [ms for ms in range(0, 3000, 4) if windows.sample(ms / 1000, 5 * ms) is not None]
    assert closed[0] == pytest.approx(1250, abs=8)


def test_an_interruption_adds_neither_time_nor_launches() -> None:
    windows = Windows(1.0)
    for ms in range(0, 604, 4):
        windows.sample(ms / 1000, 5 * ms)
    windows.interrupt()
    rate = None
    for ms in range(10000, 12000, 4):  # 9.4 s later, after launches that belong to no window
        rate = rate or windows.sample(ms / 1000, 900000 + 5 * ms)
    assert rate == pytest.approx(5000, rel=0.001)


@pytest.fixture
def page(tmp_path: Path) -> Page:
    made = Page.create(tmp_path / "page.0")
    made[Word.FREE_RATE] = int(FREE)
    made[Word.STEADY] = 1
    return made


class Training:
    """Launches at a rate on a clock of its own, and lets the loop look."""

    def __init__(self, page: Page, loop: Loop) -> None:
        self.page, self.loop = page, loop
        self.now_s = 100.0
        self.launches = 0.0

    def go(self, seconds: float, rate: float) -> None:
        end = self.now_s + seconds
        while self.now_s < end:
            self.now_s += 0.004
            self.launches += 0.004 * rate
            self.page[Word.TRAINING_LAUNCHES] = int(self.launches)
            self.loop.step(self.now_s)

    def order(self, run: bool) -> None:
        self.page.order(run)
        self.page.obey(self.page[Word.COMMAND])


def test_the_loop_learns_the_rate_alone_while_fill_pauses_and_controls_while_it_runs(
    page: Page,
) -> None:
    loop = Loop(page, Constants())
    training = Training(page, loop)
    training.go(3, ALONE)
    assert page[Word.RATE] == 0  # nothing is decided before the fill runs
    training.order(True)
    training.go(3, ALONE)
    assert page[Word.RATE] == pytest.approx(FREE * 3 / 16, rel=0.01)
    training.go(2.6, 0.8 * ALONE)
    assert page[Word.RATE] <= FREE * 3 / 16 / 2
    assert [round(rate) for _, rate, _ in loop.history] == pytest.approx(
        [ALONE, ALONE, 0.8 * ALONE, 0.8 * ALONE], rel=0.2
    )


def test_the_loop_ignores_times_that_are_not_measured(page: Page) -> None:
    loop = Loop(page, Constants())
    training = Training(page, loop)
    training.go(2, ALONE)
    training.order(True)
    training.go(1.5, ALONE)
    rate = page[Word.RATE]
    page[Word.STEADY] = 0
    training.go(5, 0.0)  # switching, settling: training stands
    page[Word.STEADY] = 1
    assert page[Word.RATE] == rate
    training.go(1.5, ALONE)
    assert page[Word.RATE] > rate
