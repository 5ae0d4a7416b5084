"""The calibrated slowdown: what fill costs a training by comparison, whatever the way.

Intrusion counts how long ready work waited. A fill can cost more than that: one that keeps the
tensor cores busy brings the card to its power cap, and training's own kernels, which run right
after, get slower. Only comparing filled with unfilled stretches shows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import sqrt

from agent.excess import AlikeStretches
from agent.stretches import Stretch, StretchesOfBoard

_ALIKE = 0.01  # of the launches
_MOST_KINDS = 64
_MOST_NAMES = 4096
_NEGLIGIBLE = 0.0025  # an error of so little of the wall time is none


class BoardCalibration:
    """One training process on one GPU; lengths in ns."""

    def __init__(self, window_ns: int) -> None:
        self.stretches = StretchesOfBoard()
        self.total_ns = 0.0
        self.filled_since_ns = 0  # first filled stretch beside the fills of now; 0: none yet
        self.cycle_ns = 0.0  # typical stretch and bubble, weighted by length
        self._window_ns = window_ns
        self._charges: deque[tuple[int, float]] = deque()
        self._kinds: dict[int, AlikeStretches] = {}
        self._names: dict[int, int] = {}  # launches -> of the kind

    def add(self, found: Iterable[tuple[Stretch, bool]]) -> None:
        """Adds stretches that have been told apart."""
        for stretch, filled in found:
            kind = self._kind_of(stretch.launches)
            kind.add(stretch.began_ns, stretch.busy_ns, stretch.cycle_ns, stretch.weight, filled)
            part = min(1.0, stretch.cycle_ns / 5e9) if self.cycle_ns else 1.0
            self.cycle_ns += (stretch.cycle_ns - self.cycle_ns) * part
            if filled and not self.filled_since_ns:
                self.filled_since_ns = stretch.began_ns

    def _kind_of(self, launches: int) -> AlikeStretches:
        name = self._names.get(launches)
        if name is None:
            near = min(self._kinds, key=lambda each: abs(each - launches), default=None)
            name = launches if near is None or abs(near - launches) > _ALIKE * launches else near
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()
            self._names[launches] = name
        # The one seen last stands last, so that the one unseen for longest is given up.
        kind = self._kinds.pop(name, None) or AlikeStretches()
        self._kinds[name] = kind
        if len(self._kinds) > _MOST_KINDS:
            gone = next(iter(self._kinds))
            del self._kinds[gone]
            self._names = {key: value for key, value in self._names.items() if value != gone}
        return kind

    def other_fills(self) -> None:
        """The fills on the GPU have changed."""
        self.filled_since_ns = 0
        for kind in self._kinds.values():
            kind.other_fills()

    def charge(self, now_ns: int) -> None:
        """Charges filled stretches at what is clear by now; older ones than the window never."""
        cost = 0.0
        for kind in self._kinds.values():
            while kind.uncharged and kind.uncharged[0][0] < now_ns - self._window_ns:
                kind.uncharged.popleft()
            excess = kind.excess
            if excess is not None and excess.clear:
                cost += excess.ns * sum(weight for _, weight in kind.uncharged)
                kind.uncharged.clear()
        if cost > 0:
            self._charges.append((now_ns, cost))
            self.total_ns += cost

    def charged_ns(self, now_ns: int) -> float:
        """Charged within the window."""
        while self._charges and self._charges[0][0] < now_ns - self._window_ns:
            self._charges.popleft()
        return sum(cost for _, cost in self._charges)

    @property
    def known(self) -> bool:
        """Whether half of the filled time is accounted for: its cost is clear, or clearly small."""
        whole = sum(kind.filled_ns for kind in self._kinds.values())
        found = [(kind, kind.excess) for kind in self._kinds.values()]
        measured = [(kind, excess) for kind, excess in found if excess is not None]
        if not whole or sum(kind.filled_ns for kind, _ in measured) < whole / 2:
            return False
        error = sqrt(sum((excess.error_ns * kind.filled) ** 2 for kind, excess in measured)) / whole
        return 2 * error <= _NEGLIGIBLE or any(excess.clear for _, excess in measured)


@dataclass
class JobCalibration:
    """A host job on this node. Its processes wait for each other, so the one that fill slows most
    speaks for all. `past_ns` is the cost to processes that have ended."""

    past_ns: float = 0.0
    known: bool = False
    boards: dict[tuple[str, int], BoardCalibration] = field(default_factory=dict)

    def total_ns(self) -> float:
        """Cost since the job began."""
        return self.past_ns + max((each.total_ns for each in self.boards.values()), default=0.0)

    def window_ns(self, now_ns: int) -> float:
        """Cost within the budget's window."""
        return max((each.charged_ns(now_ns) for each in self.boards.values()), default=0.0)

    def cycle_ns(self) -> float:
        """Typical stretch and bubble of its processes; 0: not known."""
        return max((each.cycle_ns for each in self.boards.values()), default=0.0)

    def filled_since_ns(self) -> int:
        """When the fills of now were first seen to run in its bubbles; 0: not yet."""
        times = [each.filled_since_ns for each in self.boards.values() if each.filled_since_ns]
        return min(times, default=0)

    def charge(self, now_ns: int, live: set[int]) -> None:
        """Charges every process; once all have ended their cost is kept as one figure."""
        for board in self.boards.values():
            board.charge(now_ns)
            self.known |= board.known
        if self.boards and not any(board_id in live for _, board_id in self.boards):
            self.past_ns = self.total_ns()
            self.boards = {}
