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


def test_torn_last_batch_is_cut_off_and_its_number_used_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MANY)
    spool.append([record(0)])
    [segment] = tmp_path.glob("*.batches")
    with segment.open("a") as file:
        file.write('{"boot_id":"x","sequence":2,"rec')
    again = Spool(tmp_path, MANY)
    assert again.last == 1
    assert again.append([record(1)]) == 2
    again.acknowledge(1)
    assert numbers(again) == [1]


@pytest.mark.parametrize("garbage", [b"{}", b"\xff\x00}", b'{"boot_id":"x","sequence":2}', b"no"])
def test_a_batch_that_the_disk_garbled_becomes_a_note_of_its_loss(
    tmp_path: Path, garbage: bytes
) -> None:
    spool = Spool(tmp_path, MANY)
    for n in range(4):
        spool.append([record(n)])
    [segment] = tmp_path.glob("*.batches")
    lines = segment.read_bytes().split(b"\n")
    lines[1] = garbage
    segment.write_bytes(b"\n".join(lines))
    again = Spool(tmp_path, MANY)
    assert again.last == 4
    assert numbers(again) == [0]
    again.acknowledge(1)
    lost = Batch.model_validate_json(again.oldest().text)  # type: ignore[union-attr]
    assert (lost.boot_id, lost.sequence) == (spool.boot_id, 2)
    [event] = lost.records
    assert isinstance(event, EventRecord)
    assert event.what == "lost" and "batch 2 " in event.text
    again.acknowledge(2)
    assert numbers(again) == [2]


def test_a_segment_that_is_gone_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "_SEGMENT_BYTES", 100)
    spool = Spool(tmp_path, MANY)
    for n in range(6):
        spool.append([record(n)])
    second = sorted(tmp_path.glob("*.batches"))[1]
    first_lost = int(second.stem)
    second.unlink()
    again = Spool(tmp_path, MANY)
    again.acknowledge(first_lost - 1)
    said = ""
    while (batch := again.oldest()) is not None:
        said += batch.text
        again.acknowledge(batch.sequence)
    assert f"batch {first_lost} " in said and '{"n": 5}' in said


def test_files_of_others_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.batches").write_text("x")
    spool = Spool(tmp_path, MANY)
    assert spool.append([record(0)]) == 1
    assert Spool(tmp_path, MANY).last == 1
    assert (tmp_path / "mine.batches").read_text() == "x"


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


def waiting(spool: Spool) -> list[Batch | list[int]]:
    """All that the spool still sends, to its end: numbers of records, or the note of a loss."""
    found: list[Batch | list[int]] = []
    while (batch := spool.oldest()) is not None:
        lost = '"kind":"event"' in batch.text
        found.append(Batch.model_validate_json(batch.text) if lost else numbers(spool))
        spool.acknowledge(batch.sequence)
    return found


HEADS = [
    None,
    "",
    "nonsense",
    "[]",
    "null",
    '{"boot_id":"another","acknowledged":2}',
    '{"boot_id":null,"acknowledged":2}',
    '{"boot_id":"another","acknowledged":1e999}',
    '{"boot_id":"another"}',
    "[" * 100_000,
]


@pytest.mark.parametrize("head", HEADS)
def test_no_batch_is_lost_with_the_spool_s_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str | None
) -> None:
    monkeypatch.setattr(spool_module, "_SEGMENT_BYTES", 200)
    spool = Spool(tmp_path, MANY)
    for n in range(7):
        spool.append([record(n)])
    spool.acknowledge(5)
    spool.close()
    gone = int(min(tmp_path.glob("*.batches")).stem) - 1
    assert gone > 1
    if head is None:
        (tmp_path / "spool.json").unlink()
    else:
        (tmp_path / "spool.json").write_text(head)
    again = Spool(tmp_path, MANY)
    # What the controller has is known to it by life and number.
    assert (again.boot_id, again.acknowledged, again.last) == (spool.boot_id, gone, 7)
    assert again.append([record(7)]) == 8
    assert Spool(tmp_path, MANY).boot_id == spool.boot_id
    assert waiting(again) == [[n] for n in range(gone, 8)]


def test_with_head_and_batches_unreadable_the_spool_begins_a_new_life(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MANY)
    spool.append([record(0)])
    (tmp_path / "spool.json").write_text("nonsense")
    [segment] = tmp_path.glob("*.batches")
    segment.write_text("nonsense}\n")
    again = Spool(tmp_path, MANY)
    assert again.boot_id != spool.boot_id
    assert again.append([record(1)]) == 1
    assert segment.with_suffix(".damaged").read_text() == "nonsense}\n"


@pytest.mark.parametrize("last", [False, True])
def test_a_garbled_line_end_or_a_line_more_costs_no_other_batch(tmp_path: Path, last: bool) -> None:
    spool = Spool(tmp_path, MANY)
    for n in range(5):
        spool.append([record(n)])
    [segment] = tmp_path.glob("*.batches")
    lines = segment.read_bytes().splitlines(keepends=True)
    at = 3 if last else 1
    lines[at] = lines[at][:-1] + b"\x00"  # two batches in one line
    segment.write_bytes(b"".join(lines))
    again = Spool(tmp_path, MANY)
    assert again.last == 5
    assert waiting(again) == [[n] for n in range(5)]

    lines[at] = b"#" * 10 + b"\n" + b"#" * 10 + b"\n"  # one is spoiled, and in two lines
    segment.write_bytes(b"".join(lines))
    found = waiting(Spool(tmp_path, MANY))
    assert [each for each in found if isinstance(each, list)] == [[n] for n in range(5) if n != at]
    [lost] = [each for each in found if isinstance(each, Batch)]
    assert lost.sequence == at + 1


def test_a_number_that_the_disk_garbled_spoils_its_own_batch_only(tmp_path: Path) -> None:
    spool = Spool(tmp_path, MANY)
    for n in range(4):
        spool.append([record(n)])
    [segment] = tmp_path.glob("*.batches")
    segment.write_bytes(segment.read_bytes().replace(b'"sequence":2,', b'"sequence":902,'))
    again = Spool(tmp_path, MANY)
    assert again.last == 4
    assert [each for each in waiting(again) if isinstance(each, list)] == [[0], [2], [3]]


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


@pytest.mark.parametrize("damage", ["[1]}", '{"x":1}', '{"7":{}}', "\xff}"])
def test_a_damaged_position_costs_no_batch(tmp_path: Path, damage: str) -> None:
    Spool(tmp_path, MANY).append([record(1)], {7: 100})
    (path,) = tmp_path.glob("*.batches")
    text = path.read_bytes().partition(b"\t")[0]
    path.write_bytes(text + b"\t" + damage.encode("latin-1") + b"\n")
    again = Spool(tmp_path, MANY)
    assert again.positions == {}
    assert numbers(again) == [1]


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
