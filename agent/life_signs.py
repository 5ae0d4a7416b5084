"""When a process last showed on its board that it lived.

For processes that ended while nobody looked. Its board is the process's own to write: what lies in
the future does not count.
"""

from __future__ import annotations

from agent.attachments import Fill, Training
from agent.board import BUBBLE_RING, MAX_GPUS, MAX_STREAMS


def last_sign_ns(attached: Training | Fill, now_ns: int) -> int:
    """Monotonic time of the last sign of life; that it attached at all is the first."""
    seen = _of_training(attached) if isinstance(attached, Training) else _of_fill(attached)
    return max(each for each in seen if each <= now_ns)


def _of_training(training: Training) -> list[int]:
    view = training.memory.view
    seen = [int(slot.last_issue_ns) for slot in view.slots[: min(view.slots_used, MAX_STREAMS)]]
    for section in view.gpus[: min(view.gpus_used, MAX_GPUS)]:
        seen += [int(section.bubble_begin_ns), int(section.resume_call_ns)]
        seen += [int(section.resume_launch_ns), int(section.resume_issued_ns)]
    seen += [int(bubble.end_ns) for bubble in view.bubbles[: min(view.bubble_head, BUBBLE_RING)]]
    return [training.attached_ns, *seen]


def _of_fill(fill: Fill) -> list[int]:
    view = fill.memory.view
    seen = [fill.admitted_ns, fill.recorded_until_ns]
    for section in view.gpus[: min(view.gpus_used, MAX_GPUS)]:
        seen += [int(section.last_release_ns), int(section.done_ns)]
    return seen
