"""Reads the rings of the boards in bulk, knowing that their writer may overtake the reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ring:
    """A ring of `entries` records of `entry_bytes`, `offset` bytes into a board."""

    offset: int
    entries: int
    entry_bytes: int

    def read(
        self, raw: memoryview, head: Callable[[], int], drained: int
    ) -> tuple[bytes, int, int]:
        """The records written since `drained`: (their bytes, the new `drained`, how many lost).

        `head` is read before and after the copy: a record that its writer may have been
        overwriting meanwhile is dropped and counted as lost, never taken in torn.
        """
        end = head()
        if not end - drained >= 0:
            return b"", end, 0  # the writer began anew: nothing of the past can be told
        first = max(drained, end - self.entries)
        data = self._copy(raw, first, end)
        safe = head() - self.entries + 1
        skip = min(max(0, safe - first), end - first)
        return data[skip * self.entry_bytes :], end, first + skip - drained

    def _copy(self, raw: memoryview, first: int, end: int) -> bytes:
        begin, count = first % self.entries, end - first
        head_count = min(count, self.entries - begin)
        start = self.offset + begin * self.entry_bytes
        parts = [bytes(raw[start : start + head_count * self.entry_bytes])]
        if count > head_count:
            rest = (count - head_count) * self.entry_bytes
            parts.append(bytes(raw[self.offset : self.offset + rest]))
        return b"".join(parts)
