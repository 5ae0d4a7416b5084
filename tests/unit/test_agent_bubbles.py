"""Rings with a writer that overtakes, bubble time over windows, and what the ledger gets."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from agent.attachments import drained_before
from agent.bubbles import BubblesOfBoard, bubble_time, watched_time
from agent.rings import Ring

MS = 1_000_000
RING = Ring(offset=8, entries=8, entry_bytes=8)


def written(head: int) -> memoryview:
    """A ring whose entries hold their own numbers."""
    raw = bytearray(8 + 64)
    for number in range(max(0, head - 8), head):
        struct.pack_into("=Q", raw, 8 + number % 8 * 8, number)
    return memoryview(raw)


@given(st.integers(0, 100), st.integers(0, 100))
def test_ring_gives_every_record_once_or_counts_it_lost(drained: int, more: int) -> None:
    head = drained + more
    data, now, lost = RING.read(written(head), lambda: head, drained)
    numbers = [number for (number,) in struct.iter_unpack("=Q", data)]
    assert now == head
    assert len(numbers) + lost == more
    assert numbers == list(range(head - len(numbers), head))


def test_records_overwritten_during_the_copy_are_dropped() -> None:
    heads = iter([8, 11])
    data, now, lost = RING.read(written(8), lambda: next(heads), 0)
    numbers = [number for (number,) in struct.iter_unpack("=Q", data)]
    # Entries 0..2 were overwritten by 8..10, and entry 3 may be in the writer's hands.
    assert numbers == [4, 5, 6, 7]
    assert (now, lost) == (8, 4)


def test_ring_that_went_back_is_taken_as_new() -> None:
    assert RING.read(written(3), lambda: 3, 9) == (b"", 3, 0)


def test_note_of_an_agent_that_is_gone() -> None:
    assert drained_before(100, 90, 64) == 90
    assert drained_before((1 << 32) + 5, (1 << 32) - 1, 64) == (1 << 32) - 1
    assert drained_before(100, 7, 64) == 100


def test_bubbles_of_one_process() -> None:
    board = BubblesOfBoard([(1 * MS, 2 * MS), (3 * MS, 3 * MS + 50_000), (5 * MS, 7 * MS)])
    found = bubble_time([board], 0, 10 * MS)
    assert (found.count, found.length_ns) == (2, 3 * MS)


def test_bubble_over_the_edge_counts_in_both_windows_with_its_parts() -> None:
    board = BubblesOfBoard([(8 * MS, 13 * MS)])
    first = bubble_time([board], 0, 10 * MS)
    second = bubble_time([board], 10 * MS, 20 * MS)
    assert (first.count, first.length_ns) == (0, 2 * MS)
    assert (second.count, second.length_ns) == (1, 3 * MS)


def test_open_bubble_counts_up_to_the_end() -> None:
    board = BubblesOfBoard([], open_since_ns=4 * MS)
    found = bubble_time([board], 0, 10 * MS)
    assert (found.count, found.length_ns) == (0, 6 * MS)


def test_gpu_is_in_a_bubble_while_all_its_processes_are() -> None:
    one = BubblesOfBoard([(0, 6 * MS)])
    other = BubblesOfBoard([(4 * MS, 9 * MS)])
    found = bubble_time([one, other], 0, 10 * MS)
    assert (found.count, found.length_ns) == (1, 2 * MS)


def test_process_counts_only_while_it_lives() -> None:
    before = BubblesOfBoard([(1 * MS, 3 * MS)], gone_ns=4 * MS)
    after = BubblesOfBoard([(7 * MS, 9 * MS)], attached_ns=6 * MS)
    found = bubble_time([before, after], 0, 10 * MS)
    assert (found.count, found.length_ns) == (2, 4 * MS)


intervals = st.lists(st.tuples(st.integers(0, 10 * MS), st.integers(0, 10 * MS)), max_size=8)


@given(st.lists(intervals, min_size=1, max_size=3))
def test_whatever_users_write_bubble_time_stays_within_the_window(
    lists: list[list[tuple[int, int]]],
) -> None:
    boards = [BubblesOfBoard(list(each)) for each in lists]
    assert 0 <= bubble_time(boards, 2 * MS, 9 * MS).length_ns <= 7 * MS


def test_a_window_counts_only_the_time_in_which_a_process_was_watched() -> None:
    early = BubblesOfBoard(attached_ns=2 * MS, gone_ns=5 * MS)
    late = BubblesOfBoard(attached_ns=4 * MS)
    assert watched_time([early], 0, 10 * MS) == 3 * MS
    assert watched_time([early, late], 0, 10 * MS) == 8 * MS
    assert watched_time([late], 0, 3 * MS) == 0
    assert watched_time([], 0, 10 * MS) == 0
