"""The lines of a spool's segments, each of which names its spool's life and its number itself.

What a disk garbled costs no other batch: a line whose end is spoiled runs into the next one, and
both are looked for in it; a number is believed if that many batches can have been before it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

_BEGIN = b'{"boot_id":"'  # no text of a record can hold it: its quotes would be escaped
_HEAD = re.compile(rb'\{"boot_id":"([0-9A-Za-z_-]+)","sequence":([0-9]{1,18}),"records":\[')
_LEAST_BYTES = 80  # a batch is no shorter


def written(boot_id: str, sequence: int, records: Iterable[str]) -> str:
    """A batch as it is written and sent: the JSON of db.wire.messages.Batch."""
    return (
        f'{{"boot_id":{json.dumps(boot_id)},"sequence":{sequence},"records":[{",".join(records)}]}}'
    )


def life_in(paths: list[Path], boot_id: str) -> str:
    """The life that segments are of: `boot_id` if any line has it, else what most lines have.

    Empty when no line can be read.
    """
    found: Counter[str] = Counter()
    for path in paths:
        with path.open("rb") as lines:
            for line in lines:
                for head in _HEAD.finditer(line):
                    if (life := head[1].decode()) == boot_id:
                        return boot_id
                    found[life] += 1
    return found.most_common(1)[0][0] if found else ""


def numbered(path: Path, first: int, boot_id: str) -> Iterator[tuple[int, bytes]]:
    """A segment's batches with their numbers; what can't be read has the number that it may have
    had."""
    number, spoiled, spoiled_bytes = first, 0, 0
    with path.open("rb") as lines:
        for line in lines:
            for piece in _pieces(line):
                head = _HEAD.match(piece)
                own = int(head[2]) if head and head[1].decode() == boot_id else 0
                known_to = number - spoiled
                if known_to <= own <= known_to + max(spoiled, spoiled_bytes // _LEAST_BYTES):
                    number, spoiled, spoiled_bytes = own, 0, 0
                else:
                    spoiled += 1
                    spoiled_bytes += len(piece)
                yield number, piece
                number += 1


def _pieces(line: bytes) -> Iterator[bytes]:
    while (end := line.find(_BEGIN, 1)) > 0:
        yield line[:end]
        line = line[end:]
    yield line


def sound(piece: bytes, boot_id: str, number: int) -> str | None:
    """The batch in a line if it is whole and has this number; what follows it is not looked at."""
    try:
        text = piece.decode(errors="surrogateescape")
        batch, end = json.JSONDecoder().raw_decode(text)
        if (batch["boot_id"], batch["sequence"]) == (boot_id, number):
            text[:end].encode()  # fails where the disk left no text
            return text[:end]
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return None
