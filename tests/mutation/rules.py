"""The table of rules: what a rule says, the change that disables it, the tests that must notice."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
TABLES = ("board", "training", "fill")


@dataclass(frozen=True)
class Change:
    """One replacement of text; `old` stands in the file exactly once."""

    file: str
    old: str
    new: str

    def applied(self, text: str) -> str:
        """The changed text; raises ValueError when `old` is not there exactly once."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.file} has {found} times: {self.old!r}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Rule:
    """A statement of the rules, and how to break it."""

    name: str
    says: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Absent:
    """A statement that the code doesn't implement, or that no change of one place disables."""

    says: str
    why: str


def rules() -> tuple[Rule, ...]:
    """All rules that can be disabled, in the order of the tables."""
    return tuple(_rule(each) for table in TABLES for each in _read(table).get("rule", ()))


def absent() -> tuple[Absent, ...]:
    """What the tables list as not covered."""
    found = (each for table in TABLES for each in _read(table).get("absent", ()))
    return tuple(Absent(each["says"], each["why"]) for each in found)


def _read(table: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(f"{table}.toml").read_text())


def _rule(entry: dict[str, Any]) -> Rule:
    places = entry.get("also", ())
    first = {key: entry[key] for key in ("file", "old", "new")}
    changes = tuple(Change(**each) for each in (first, *places))
    return Rule(entry["name"], entry["says"], changes, tuple(entry["tests"]))
