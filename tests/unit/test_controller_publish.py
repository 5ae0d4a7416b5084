"""The supply that stands in Slurm follows the nodes, whatever Slurm or an operator does."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from db.engine import Database
from db.models import Event
from db.schema import upgrade
from db.wire.messages import Report
from slurm_plugin.controller.journal import Journal
from slurm_plugin.controller.nodes import LiveNodes
from slurm_plugin.controller.publisher import Publisher
from slurm_plugin.supply import REASON_NOTHING, REASON_OFF, REASON_SILENT
from tests.unit.fake_slurm import CEILING, FakeSlurm
from tests.unit.ledger_records import gpu, report


class Bench:
    """A publisher on a Slurm in memory."""

    def __init__(self, folder: Path) -> None:
        self.slurm = FakeSlurm.with_twins("f1", "f2")
        self.database = Database(f"sqlite:///{folder / 'one.db'}")
        upgrade(self.database)
        self.journal = Journal(self.database)
        self.wakes = 0
        self.nodes = LiveNodes(silent_s=10, max_slots=0, on_change=self._woken)
        self.off = False
        self.publisher = self.new_publisher()

    def new_publisher(self, *, silent_s: float = 0) -> Publisher:
        return Publisher(
            self.slurm,
            self.nodes,
            self.journal,
            partition="fill",
            raise_after_s=0,
            silent_s=silent_s,
            is_off=lambda: self.off,
        )

    def _woken(self) -> None:
        self.wakes += 1

    def reports(self, node: str = "n1", *, free: int, used: int = 0, age_s: float = 0.0) -> None:
        self.nodes.update(lends(node, free, used), now_s=time.monotonic() - age_s)

    def settle(self) -> None:
        """Rounds until nothing changes; slurmds answer when Slurm asks them to register."""
        for _ in range(10):
            changed = self.publisher.round()
            for node in self.slurm.nodes.values():
                if not node.responding:
                    node.register()
            if not changed:
                return
        raise AssertionError("publishing never settles")

    def events(self) -> list[tuple[str, str]]:
        assert self.journal.store()
        with self.database.reading() as session:
            return [(row.what, row.text) for row in session.scalars(select(Event))]


def lends(node: str, free: int, used: int = 0) -> Report:
    lent = gpu(f"GPU-{node}", host_job_id=1, host_mode="on", lendable_slots=free, used_slots=used)
    return report(node=node, gpus=[lent])


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.database.close()


def test_every_twin_is_drained_before_the_partition_goes_up(bench: Bench) -> None:
    assert bench.publisher.round()
    assert bench.slurm.state == "DOWN"
    assert {node.drain for node in bench.slurm.nodes.values()} == {REASON_SILENT}
    bench.settle()
    assert bench.slurm.state == "UP"
    assert bench.slurm.done("drain", "set_partition") == [
        ("drain", ("f1", "f2"), REASON_SILENT),
        ("set_partition", "UP"),
    ]


def test_supply_follows_the_reports(bench: Bench) -> None:
    bench.settle()
    bench.reports(free=6)
    bench.settle()
    f1 = bench.slurm.nodes["f1"]
    assert f1.drain is None and f1.count == 6
    assert bench.slurm.nodes["f2"].drain == REASON_SILENT
    f1.used = 2
    bench.reports(free=3, used=2)
    bench.settle()
    assert f1.count == 5
    bench.reports(free=0)
    bench.settle()
    assert f1.drain == REASON_NOTHING


def test_only_a_change_of_supply_wakes_the_publisher(bench: Bench) -> None:
    bench.reports(free=6)
    assert bench.wakes == 1
    bench.reports(free=6)
    assert bench.wakes == 1
    bench.reports(free=5)
    assert bench.wakes == 2


def test_nothing_is_written_while_nothing_changes(bench: Bench) -> None:
    bench.reports(free=6)
    bench.settle()
    bench.slurm.calls.clear()
    bench.publisher.round()
    assert {call[0] for call in bench.slurm.calls} == {"partition", "twins"}


def test_a_node_that_falls_silent_lends_nothing(bench: Bench) -> None:
    bench.reports(free=6)
    bench.settle()
    bench.reports(free=6, age_s=11)
    bench.settle()
    assert bench.slurm.nodes["f1"].drain == REASON_SILENT
    bench.reports(free=6)
    bench.settle()
    assert bench.slurm.nodes["f1"].drain is None
    words = [what for what, _ in bench.events()]
    assert words.count("silent") == words.count("reports") == 1


def test_off_drains_everything_and_on_resumes(bench: Bench) -> None:
    bench.reports(free=6)
    bench.settle()
    bench.off = True
    bench.settle()
    assert bench.slurm.nodes["f1"].drain == REASON_OFF
    bench.off = False
    bench.settle()
    assert bench.slurm.nodes["f1"].drain is None


def test_a_restart_of_the_controller_leaves_supply_standing_until_agents_can_report(
    bench: Bench,
) -> None:
    bench.reports(free=6)
    bench.settle()
    bench.nodes = LiveNodes(silent_s=10, max_slots=0, on_change=bench._woken)
    bench.publisher = bench.new_publisher(silent_s=10)
    bench.settle()
    assert bench.slurm.nodes["f1"].drain is None and bench.slurm.nodes["f1"].count == 6
    bench.reports(free=3)
    bench.settle()
    assert bench.slurm.nodes["f1"].count == 3
    # One that is down is put up only when every silent twin has been drained.
    bench.slurm.reconfigure()
    bench.slurm.nodes["f2"].drain = None
    bench.settle()
    assert bench.slurm.nodes["f2"].drain == REASON_SILENT and bench.slurm.state == "UP"


@pytest.mark.parametrize("what", ["reconfigure", "restart"])
def test_supply_is_published_again_after(bench: Bench, what: str) -> None:
    bench.reports(free=6)
    bench.settle()
    getattr(bench.slurm, what)()
    assert bench.slurm.state == "DOWN" and bench.slurm.nodes["f1"].count == CEILING
    bench.settle()
    assert bench.slurm.state == "UP"
    assert bench.slurm.nodes["f1"].count == 6 and bench.slurm.nodes["f1"].drain is None
    assert [what for what, _ in bench.events() if "published" in what] == [
        "published",
        "republished",
    ]


def test_a_reload_while_fills_run_is_mended_once_the_slurmd_registers(bench: Bench) -> None:
    bench.settle()
    bench.reports(free=6)
    bench.settle()
    f1 = bench.slurm.nodes["f1"]
    f1.register()  # Slurm asks for that every half hour or so
    f1.used = 2
    bench.reports(free=4, used=2)
    bench.slurm.reconfigure()
    assert f1.invalid
    bench.settle()
    assert f1.invalid and f1.count == 6 and bench.slurm.state == "UP"
    assert bench.nodes.must_register("n1") and not bench.nodes.must_register("n2")
    f1.register()  # what the agent brings about
    bench.settle()
    assert not f1.invalid and f1.drain is None and f1.count == 6
    assert not bench.nodes.must_register("n1")
    assert [what for what, _ in bench.events()].count("invalid") == 1


def test_an_operators_drain_and_an_operators_down_are_respected(bench: Bench) -> None:
    bench.reports(free=6)
    bench.settle()
    bench.slurm.nodes["f1"].drain = "bad fan"
    bench.slurm.state = "DOWN"
    bench.settle()
    bench.reports(free=9)
    bench.settle()
    assert bench.slurm.nodes["f1"].drain == "bad fan"
    assert bench.slurm.state == "DOWN"
    assert ("partition", "partition fill was taken down by an operator") in bench.events()
    bench.slurm.state = "UP"
    bench.slurm.nodes["f1"].drain = None
    bench.settle()
    assert bench.slurm.nodes["f1"].count == 9


def test_without_slurmctld_it_keeps_trying_and_says_so_once(bench: Bench) -> None:
    bench.slurm.away = True
    for _ in range(3):
        assert not bench.publisher.round()
    assert bench.publisher.trouble == "no slurmctld"
    bench.reports(free=6)
    bench.slurm.away = False
    bench.settle()
    assert bench.slurm.nodes["f1"].count == 6 and bench.publisher.trouble == ""
    assert [what for what, _ in bench.events()].count("slurm_trouble") == 1


def test_what_slurm_refuses_for_one_twin_holds_up_no_other(bench: Bench) -> None:
    bench.settle()
    bench.slurm.nodes["f1"].drain = "sfill: nothing to lend"

    bench.slurm.refuses = "drain"
    bench.slurm.nodes["f2"].drain = None
    bench.reports("n1", free=6)
    for _ in range(3):
        bench.publisher.round()
    assert bench.slurm.nodes["f1"].count == 6
    assert bench.publisher.trouble == "drain is refused"


def test_events_wait_for_a_database_that_is_away(bench: Bench, tmp_path: Path) -> None:
    bench.settle()
    other = sqlite3.connect(tmp_path / "one.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    quick = Journal(Database(f"sqlite:///{tmp_path / 'one.db'}", busy_timeout_s=0.05))
    quick.note("off", "first")
    assert not quick.store() and quick.waiting == 1
    other.execute("ROLLBACK")
    other.close()
    assert quick.store() and quick.waiting == 0
    assert quick.store()
    assert [what for what, _ in bench.events()].count("off") == 1
