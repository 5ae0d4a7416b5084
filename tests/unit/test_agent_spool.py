"""Records reach the controller exactly once, whatever fails in between."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent import ledger as ledger_module
from agent import spool as spool_module
from agent.clock import UtcClock
from agent.ledger import Ledger
from agent.reporter import Spooler
from agent.spool import Spool, SpoolFullError, write_atomically
from db.wire.messages import Batch, EventRecord

MANY = 1 << 30


def numbers(spool: Spool) -> list[int]:
    """The numbers of the records that wait, oldest batch only."""
    batch = spool.oldest()
    return [] if batch is None else [int(each["n"]) for each in json.loads(batch.text)["records"]]


def record(n: int) -> str:
    return json.dumps({"n": n})


def test_batches_are_numbered_from_one_and_resent_until_acknowledged(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MANY)
    assert [spool.append([record(n)]) for n in range(3)] == [1, 2, 3]
    assert numbers(spool) == [0]
    assert numbers(spool) == [0]
    spool.acknowledge(2)
    assert numbers(spool) == [2]
    spool.acknowledge(1)
    spool.acknowledge(99)
    assert spool.oldest() is None
    assert spool.append([record(9)]) == 4


def test_restart_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MANY)
    for n in range(5):
        spool.append([record(n)])
    spool.acknowledge(2)
    spool.close()
    again = Spool(tmp_path, MANY)
    assert again.boot_id == spool.boot_id
    assert numbers(again) == [2]
    assert again.append([record(5)]) == 6


def test_kill_before_the_acknowledgement_was_noted_sends_again_the_same(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MANY)
    spool.append([record(0)])
    first = spool.oldest()
    spool.acknowledge(1)
    again = Spool(tmp_path, MANY)  # no close: killed
    assert again.oldest() == first
    assert again.append([record(1)]) == 2


def test_segments_go_once_acknowledged_and_the_bound_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "_SEGMENT_BYTES", 500)
    spool = Spool(tmp_path, 5000)
    with pytest.raises(SpoolFullError, match="its bound is 5000"):
        for n in range(100):
            spool.append([record(n)])
    last = spool.last
    assert 5000 - 200 < spool.size_bytes <= 5000
    spool.acknowledge(last - 1)
    assert len(list(tmp_path.glob("*.batches"))) == 1
    assert spool.append([record(100)]) == last + 1


def test_failed_write_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path, MANY)
    spool.append([record(0)])

    def no_space(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(SpoolFullError, match="No space left"):
            spool.append([record(1)])
    assert spool.append([record(1)]) == 2
    spool.acknowledge(1)
    assert numbers(spool) == [1]
    assert Spool(tmp_path, MANY).last == 2


def test_full_spool_is_told_and_nothing_is_lost_when_it_empties(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 400)
    ledger = Ledger(UtcClock())
    told: list[str] = []
    spooler = Spooler(ledger, spool, 1, told.append)
    sent: list[int] = []
    for n in range(12):
        ledger.add_text(record(n))
        spooler.store()
    assert len(told) == 1 and "its bound is 400" in told[0]
    while True:
        found = numbers(spool)
        if not found:
            break
        sent += found
        spool.acknowledge(spool.acknowledged + 1)
        spooler.store()
    assert sent == list(range(12))
    assert told[-1] == ""


def test_records_that_found_no_room_are_counted_and_told_of_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "MAX_WAITING", 5)
    spool = Spool(tmp_path, 400)
    ledger = Ledger(UtcClock())
    spooler = Spooler(ledger, spool, 1, lambda _: None)
    ledger.add_texts([record(n) for n in range(5)])
    taken = ledger.take(3)
    ledger.add_texts([record(n) for n in range(5, 9)])  # one of them finds no room
    ledger.put_back(taken)
    assert (ledger.waiting, ledger.dropped) == (8, 1)
    ledger.add_texts([record(n) for n in range(9, 12)])
    ledger.add_texts([record(n) for n in range(12, 22)])
    assert (ledger.waiting, ledger.dropped) == (8, 14)
    full = spool.append(["0" * 250])
    spooler.store()
    assert ledger.dropped == 14  # there is no room to tell of them yet
    spool.acknowledge(full)
    spooler.store()
    assert numbers(spool) == [0, 1, 2, 3, 4, 5, 6, 7]
    spool.acknowledge(full + 1)
    spooler.store()
    batch = spool.oldest()
    assert batch is not None
    [event] = Batch.model_validate_json(batch.text).records
    assert isinstance(event, EventRecord)
    assert event.what == "lost"
    assert event.text.startswith("14 record(s) were lost since 2")
    spooler.store()
    assert (spool.waiting, ledger.waiting, ledger.dropped) == (1, 0, 0)  # told once


@pytest.mark.parametrize("acknowledged_before", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_disk_that_the_spool_has_filled_is_freed_by_what_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarted: bool, acknowledged_before: bool
) -> None:
    spool = Spool(tmp_path, 1 << 30)
    spool.append(['{"a":1}'])
    last = spool.append(['{"a":2}'])
    full = OSError(errno.ENOSPC, "No space left on device")

    def on_full_disk(writes: Callable[..., None]) -> Callable[..., None]:
        def write(*given: object) -> None:
            if any(path.stat().st_size for path in tmp_path.glob("*.batches")):
                raise full
            writes(*given)

        return write

    monkeypatch.setattr(spool_module, "write_atomically", on_full_disk(write_atomically))
    monkeypatch.setattr(Spool, "_write", on_full_disk(Spool._write))
    if acknowledged_before:
        spool.acknowledge(last)
    with pytest.raises(SpoolFullError):
        spool.append(['{"a":3}'])
    spool.acknowledge(last)
    assert spool.oldest() is None
    if restarted:
        spool = Spool(tmp_path, 1 << 30)
        assert (spool.acknowledged, spool.last) == (last, last)
    assert spool.append(['{"a":3}']) == last + 1
    assert spool.oldest() is not None


def test_positions_of_boards_survive_with_the_batch_and_are_not_sent(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MANY)
    spool.append([record(1)], {7: 100, 8: 5})
    spool.append([record(2)])
    spool.append([record(3)], {7: 1 << 40})
    again = Spool(tmp_path, MANY)
    assert again.positions == {7: 1 << 40, 8: 5}
    for n in range(1, 4):
        batch = again.oldest()
        assert batch is not None
        assert json.loads(batch.text) == {
            "boot_id": spool.boot_id,
            "sequence": n,
            "records": [{"n": n}],
        }
        again.acknowledge(n)


def test_a_batch_ends_where_a_board_s_position_is_whole(tmp_path: Path) -> None:
    ledger = Ledger(UtcClock())
    ledger.add_text("a")
    ledger.add_texts(["b", "c"], (7, 2))
    ledger.add_texts([], (8, 9))
    ledger.add_texts(["d", "e", "f"], (7, 5))
    ledger.add_text("g")

    def taken(most: int) -> tuple[str, dict[int, int]]:
        found = ledger.take(most)
        return "".join(found.records), found.positions

    assert taken(2) == ("a", {})
    first = ledger.take(2)
    assert ("".join(first.records), first.positions) == ("bc", {7: 2, 8: 9})
    ledger.put_back(first)
    assert taken(4) == ("bc", {7: 2, 8: 9})
    assert taken(1) == ("def", {7: 5})
    assert taken(1) == ("g", {})
    assert taken(1) == ("", {})
    ledger.add_texts([], (7, 6))
    assert taken(1) == ("", {7: 6})


def test_boards_are_told_what_is_stored_and_not_what_is_only_taken(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 300)
    ledger = Ledger(UtcClock())
    stored: list[dict[int, int]] = []
    spooler = Spooler(ledger, spool, 1, lambda _: None, stored.append)
    ledger.add_texts([record(1)], (7, 1))
    spooler.store()
    ledger.add_texts([record(n) * 50 for n in range(2)], (7, 3))
    spooler.store()
    assert stored == [{7: 1}]
    assert ledger.waiting == 2


def test_a_file_that_the_disk_takes_in_parts_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:1000]))
    text = json.dumps(list(range(2000)))
    write_atomically(tmp_path / "state.json", text)
    assert (tmp_path / "state.json").read_text() == text


def test_a_disk_that_fills_within_a_file_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, room, write = tmp_path / "state.json", 4096, os.write
    write_atomically(path, "good" * 750)

    def filling(descriptor: int, data: bytes) -> int:
        """A part is written without an error; only the next write fails."""
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, data[:room])
        room -= written
        return written

    monkeypatch.setattr(os, "write", filling)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "new" * 3000)
    assert path.read_text() == "good" * 750
    assert list(tmp_path.iterdir()) == [path]  # what was written of the new one takes no room


def test_no_record_is_dropped_by_an_error_that_nobody_foresaw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, spool = Ledger(UtcClock()), Spool(tmp_path, MANY)
    spooler = Spooler(ledger, spool, 1, lambda _: None)
    ledger.add_text(record(1))

    def failing(*_: object) -> int:
        raise RuntimeError

    monkeypatch.setattr(spool, "append", failing)
    with pytest.raises(RuntimeError):
        spooler.store()
    monkeypatch.undo()
    spooler.store()
    assert numbers(spool) == [1]
