"""What a disk spoils of the spool costs nothing that is intact."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent import spool as spool_module
from agent.spool import Spool
from db.wire.messages import Batch, EventRecord
from tests.unit.test_agent_spool import MANY, numbers, record


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


@pytest.mark.parametrize("damage", ["[1]}", '{"x":1}', '{"7":{}}', "\xff}"])
def test_a_damaged_position_costs_no_batch(tmp_path: Path, damage: str) -> None:
    Spool(tmp_path, MANY).append([record(1)], {7: 100})
    (path,) = tmp_path.glob("*.batches")
    text = path.read_bytes().partition(b"\t")[0]
    path.write_bytes(text + b"\t" + damage.encode("latin-1") + b"\n")
    again = Spool(tmp_path, MANY)
    assert again.positions == {}
    assert numbers(again) == [1]
