"""How often something may happen that users' processes bring about."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from agent.clock import now_ns

_SPAN_NS = 10_000_000_000
_KEYS = 4096


@dataclass
class Rate:
    """At most `most` a key in ten seconds; the rest is counted and left out."""

    most: int
    _began_ns: int = 0
    _counts: dict[Hashable, int] = field(default_factory=dict)

    def allows(self, key: Hashable = None) -> bool:
        """Whether it may happen once more now."""
        now = now_ns()
        if now - self._began_ns > _SPAN_NS or len(self._counts) > _KEYS:
            self._began_ns = now
            self._counts.clear()
        self._counts[key] = self._counts.get(key, 0) + 1
        return self._counts[key] <= self.most
