"""Records on disk until the controller has stored them.

Batches are numbered without a gap from 1 within one life of the spool, whose name `boot_id` is
made with the spool's folder and survives restarts of the agent: a batch that is sent again after a
crash is known by its number. Each names both itself (`spool_lines.py`): they outlive the spool's
head, the file that has them too. Each is one line of JSON in a segment file, synced before it is
sent; after a tab stands how far boards' rings are on record with it, so that an agent that is
killed has recorded each use once.
A segment is deleted once all its batches are acknowledged.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent import spool_lines
from db.wire.messages import Batch, EventRecord

log = logging.getLogger(__name__)

_SEGMENT_BYTES = 4 << 20
NO_POSITIONS: Mapping[int, int] = {}


class SpoolFullError(Exception):
    """The spool has reached its bound or the disk is full; nothing was written."""


@dataclass(frozen=True)
class StoredBatch:
    """A batch as the spool keeps it: the JSON of db.wire.messages.Batch."""

    sequence: int
    text: str


@dataclass
class _Segment:
    path: Path
    first: int
    last: int
    size_bytes: int


class Spool:
    """Append at one end, acknowledge at the other; any thread."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Opens or makes the spool. Raises OSError."""
        self._folder = folder
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._pending: dict[int, str] = {}  # oldest batches, read ahead
        self.positions: dict[int, int] = {}  # of the rings by board, as batches found here say
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.boot_id, self.acknowledged = self._read_head()
        self._segments = self._read_segments()
        self._no_space = False  # the disk refused the last batch
        if self._segments:
            # Of a crash between the removal of segments and the note of it, on a full disk.
            self.acknowledged = max(self.acknowledged, self._segments[0].first - 1)
        self.last = max([self.acknowledged, *(segment.last for segment in self._segments)])

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def waiting(self) -> int:
        """Batches that are not acknowledged."""
        return self.last - self.acknowledged

    def append(self, records: list[str], positions: Mapping[int, int] = NO_POSITIONS) -> int:
        """Stores records (JSON texts) as the next batch, synced; returns its number.

        `positions`: how far boards' rings are on record with them, by board id.
        Raises SpoolFullError, and then nothing was stored.
        """
        with self._lock:
            sequence = self.last + 1
            text = spool_lines.written(self.boot_id, sequence, records)
            noted = f"\t{json.dumps(dict(positions))}" if positions else ""
            line = f"{text}{noted}\n".encode()
            if self.size_bytes + len(line) > self._max_bytes:
                raise SpoolFullError(
                    f"the spool {self._folder} holds {self.size_bytes} bytes, its bound is "
                    f"{self._max_bytes}"
                )
            segment = self._open_segment(sequence)
            try:
                self._write(segment, line)
            except OSError as error:
                self._no_space = True
                self._drop_acknowledged()  # if that makes room, the next try finds it
                raise SpoolFullError(
                    f"the spool {self._folder} cannot be written: {error}"
                ) from error
            self._no_space = False
            segment.size_bytes += len(line)
            segment.last = self.last = sequence
            if sequence == self.acknowledged + 1:
                self._pending = {sequence: text}  # the usual case: it is sent next
            return sequence

    def oldest(self) -> StoredBatch | None:
        """The oldest batch that is not acknowledged."""
        with self._lock:
            sequence = self.acknowledged + 1
            if sequence > self.last:
                return None
            if sequence not in self._pending:
                self._pending = self._read_from(sequence)
            return StoredBatch(sequence, self._pending[sequence])

    def acknowledge(self, sequence: int) -> None:
        """The controller has stored all batches up to here for good."""
        with self._lock:
            sequence = min(sequence, self.last)
            if sequence <= self.acknowledged:
                return
            self.acknowledged = sequence
            self._pending = {key: text for key, text in self._pending.items() if key > sequence}
            self._drop_acknowledged()

    def close(self) -> None:
        """Keeps the acknowledged number for the next start."""
        with self._lock:
            self._write_head()

    # Files

    def _read_head(self) -> tuple[str, int]:
        """From its file; else from the segments, whose batches the controller may have already: it
        knows them by their numbers."""
        path = self._folder / "spool.json"
        boot_id, acknowledged = "", 0
        try:
            boot_id, acknowledged = _parse_head(path.read_text())
        except FileNotFoundError:
            pass
        except (ValueError, RecursionError) as error:
            log.error("%s is damaged (%s)", path, error)
        segments = self._segment_files()
        if not segments and boot_id:
            return boot_id, acknowledged
        life = spool_lines.life_in(segments, boot_id)
        if boot_id and life in ("", boot_id):
            return boot_id, acknowledged
        if life:
            log.error("%s does not say whose the batches beside it are: they say %s", path, life)
            self.boot_id, self.acknowledged = life, int(segments[0].stem) - 1
            with contextlib.suppress(OSError):  # the segments tell it as well
                self._write_head()
            return self.boot_id, self.acknowledged
        for old in segments:
            log.error("%s can't be read: the spool begins a new life", old)
            old.rename(old.with_suffix(".damaged"))
        self.boot_id, self.acknowledged = uuid.uuid4().hex, 0
        self._write_head()
        return self.boot_id, self.acknowledged

    def _drop_acknowledged(self) -> None:
        """Removes segments that nobody needs; one that can grow stays while the disk has room."""
        done = [each for each in self._segments if each.last <= self.acknowledged]
        growing = done and done[-1] is self._segments[-1] and not self._is_whole(done[-1])
        if growing and not (self._no_space and done[-1].size_bytes):
            done.pop()
        if done:
            # First the number, then the files that it is known from.
            self._keep_number(done[-1].last)
        for segment in done:
            segment.path.unlink(missing_ok=True)
            self._segments.remove(segment)

    def _keep_number(self, last: int) -> None:
        """On a full disk by an empty segment, which takes no room: its name tells the number."""
        try:
            self._write_head()
        except OSError:
            path = self._folder / f"{last + 1:016d}.batches"
            path.touch(mode=0o600)
            if all(segment.path != path for segment in self._segments):
                self._segments.append(_Segment(path, last + 1, last, 0))
            _sync_folder(self._folder)

    def _write_head(self) -> None:
        write_atomically(
            self._folder / "spool.json",
            json.dumps({"boot_id": self.boot_id, "acknowledged": self.acknowledged}),
        )

    def _segment_files(self) -> list[Path]:
        found = []
        for path in sorted(self._folder.glob("*.batches")):
            if _NAME.fullmatch(path.name):
                found.append(path)
            else:
                log.warning("%s is none of the spool's files and is left alone", path)
        return found

    def _read_segments(self) -> list[_Segment]:
        segments: list[_Segment] = []
        for path in self._segment_files():
            first = int(path.stem)
            size = self._whole_bytes(path)
            if size != path.stat().st_size:
                log.warning("%s ended in a torn batch, never sent: cut off", path)
                os.truncate(path, size)
            last = first - 1
            for number, piece in spool_lines.numbered(path, first, self.boot_id):
                last = number
                self._note_positions(piece.partition(b"\t")[2])
            if segments:
                segments[-1].last = min(segments[-1].last, first - 1)
            segments.append(_Segment(path, first, last, size))
        return segments

    def _whole_bytes(self, path: Path) -> int:
        """The file's length, but for a last line that a crash has torn."""
        size, line = 0, b"}\n"
        with path.open("rb") as lines:
            for line in lines:
                size += len(line)
        return size if line.endswith(b"}\n") else size - len(line)

    def _note_positions(self, noted: bytes) -> None:
        if not noted:
            return
        try:
            found = {int(board): int(drained) for board, drained in json.loads(noted).items()}
        except (ValueError, TypeError, AttributeError):
            return  # the disk did not keep it: the boards' own notes are as good, but for a moment
        self.positions |= found

    def _open_segment(self, sequence: int) -> _Segment:
        if self._segments and not self._is_whole(self._segments[-1]):
            return self._segments[-1]
        path = self._folder / f"{sequence:016d}.batches"
        segment = _Segment(path, sequence, sequence - 1, 0)
        self._segments.append(segment)
        return segment

    def _is_whole(self, segment: _Segment) -> bool:
        """Whether a segment is not to grow any more: a small spool has small segments."""
        return segment.size_bytes >= min(_SEGMENT_BYTES, self._max_bytes // 8)

    def _write(self, segment: _Segment, line: bytes) -> None:
        descriptor = os.open(
            segment.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        try:
            _write_all(descriptor, line)
            os.fsync(descriptor)
            if segment.size_bytes == 0:
                _sync_folder(self._folder)
        except OSError:
            os.ftruncate(descriptor, segment.size_bytes)
            raise
        finally:
            os.close(descriptor)

    def _read_from(self, sequence: int) -> dict[int, str]:
        """The batches from `sequence` to the end of its segment, or to where files go on.

        One that the disk did not keep is replaced by a note of its loss: what follows must not
        wait for it for ever.
        """
        for segment in self._segments:
            if segment.first <= sequence <= segment.last:
                return self._read_segment(segment, sequence)
        later = [each.first for each in self._segments if each.first > sequence]
        end = min(later, default=self.last + 1)
        return {number: self._lost(number, self._folder) for number in range(sequence, end)}

    def _read_segment(self, segment: _Segment, sequence: int) -> dict[int, str]:
        found: dict[int, str] = {}
        for number, piece in spool_lines.numbered(segment.path, segment.first, self.boot_id):
            if sequence <= number <= segment.last:
                text = spool_lines.sound(piece, self.boot_id, number)
                if text is not None:
                    found[number] = text
        return {
            number: found.get(number) or self._lost(number, segment.path)
            for number in range(sequence, segment.last + 1)
        }

    def _lost(self, number: int, place: Path) -> str:
        text = f"batch {number} of boot {self.boot_id} was damaged on the node's disk"
        log.error("%s: %s", place, text)
        event = EventRecord(at_us=time.time_ns() // 1000, what="lost", text=text)
        return Batch(boot_id=self.boot_id, sequence=number, records=[event]).model_dump_json()


_NAME = re.compile(r"[0-9]{16}\.batches")


def _parse_head(text: str) -> tuple[str, int]:
    """The spool's life and what is acknowledged. Raises ValueError."""
    head = json.loads(text)
    if not isinstance(head, dict):
        raise ValueError("it is no object")
    boot_id, acknowledged = head.get("boot_id"), head.get("acknowledged")
    if not isinstance(boot_id, str) or not boot_id:
        raise ValueError("it names no boot_id")
    if type(acknowledged) is not int or not 0 <= acknowledged < 10**16:
        raise ValueError("it does not say what is acknowledged")
    return boot_id, acknowledged


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file in one step, synced: after a crash it is the old one or the new one."""
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(descriptor, text.encode())
        os.fsync(descriptor)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()  # it would hold the last of a full disk's room
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)
    temporary.rename(path)
    _sync_folder(path.parent)


def _write_all(descriptor: int, data: bytes) -> None:
    """A disk that fills takes a part of the data without an error: only the next try fails."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
