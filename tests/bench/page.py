"""The small shared file through which bench, training and fill of one GPU speak.

Mirrors tests/bench/peers/page.h word by word (a test compares the two). Every word has one writer.
"""

from __future__ import annotations

import mmap
import time
from enum import IntEnum
from pathlib import Path

MAGIC = 0x31454741504C4653


class Word(IntEnum):
    """Place of each 64-bit word; meanings stand in page.h."""

    MAGIC = 0
    COMMAND = 1
    OBEYED = 2
    STOP = 3
    STEADY = 4
    TRAINING_LAUNCHES = 5
    TRAINING_LAST_NS = 6
    FILL_LAUNCHES = 7
    POLICY = 8
    QUIET_NS = 9
    IN_FLIGHT = 10
    RATE = 11
    FREE_RATE = 12


class Page:
    """One mapped page."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8 * len(Word))
        self._words = memoryview(self._map).cast("Q")
        if self._words[Word.MAGIC] != MAGIC:
            raise ValueError(f"{path} is no page of the bench")

    @classmethod
    def create(cls, path: Path) -> Page:
        """A new page, paused, that every local user may write."""
        words = [0] * len(Word)
        words[Word.MAGIC] = MAGIC
        path.write_bytes(b"".join(word.to_bytes(8, "little") for word in words))
        path.chmod(0o666)
        return cls(path)

    def __getitem__(self, word: Word) -> int:
        return self._words[word]

    def __setitem__(self, word: Word, value: int) -> None:
        self._words[word] = value

    @property
    def runs(self) -> bool:
        """Whether the latest command lets the fill run."""
        return self[Word.COMMAND] % 2 == 1

    def order(self, run: bool) -> int:
        """Says that the fill is to run, or to pause; the command's number."""
        command = self[Word.COMMAND]
        if (command % 2 == 1) != run:
            command += 1
            self[Word.COMMAND] = command
        return command

    def obey(self, command: int) -> None:
        """The program that the page is for has done what this command says."""
        self[Word.OBEYED] = command

    def wait_obeyed(self, seconds: float) -> None:
        """Waits until the fill has done what was ordered; TimeoutError when it does not."""
        command = self[Word.COMMAND]
        limit = time.monotonic() + seconds
        while self[Word.OBEYED] != command:
            if time.monotonic() > limit:
                what = "run" if self.runs else "pause"
                raise TimeoutError(f"the fill did not {what} within {seconds:.0f} s")
            time.sleep(0.0002)
