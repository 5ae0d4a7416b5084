"""Training's wait at the end of a bubble that several fills had used is charged once.

Each gate tells of the whole wait that it could have caused: the GPU's switch back to training,
which none can know to be another's, and its own work before that. All these begin when training
came back, so what training waited is the longest of them, not their sum.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

_REMEMBERED = 4096  # bubbles

BubbleKey = tuple[str, int, int]  # GPU's UUID, id of the training's board, the bubble's number


@dataclass
class _Bubble:
    told_ns: dict[int, int] = field(default_factory=dict)  # by the fill's board: its parts add up
    charged_ns: int = 0


@dataclass
class SharedWaits:
    """The waits at the ends of recent bubbles, of all GPUs."""

    _bubbles: OrderedDict[BubbleKey, _Bubble] = field(default_factory=OrderedDict)

    def charge(self, key: BubbleKey, fill_board_id: int, intrusion_ns: int) -> int:
        """What one fill's record of a bubble adds to what that bubble's training waited, in ns."""
        bubble = self._bubbles.get(key)
        if bubble is None:
            bubble = self._bubbles[key] = _Bubble()
            if len(self._bubbles) > _REMEMBERED:
                self._bubbles.popitem(last=False)
        told_ns = bubble.told_ns.get(fill_board_id, 0) + intrusion_ns
        bubble.told_ns[fill_board_id] = told_ns
        more_ns = max(0, told_ns - bubble.charged_ns)
        bubble.charged_ns += more_ns
        return more_ns
