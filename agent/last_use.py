"""The last use of a bubble by a process that died with it open, as far as the boards tell.

The gate writes a use when it is over; a process that is killed takes the last one with it. Its
board still says how much it had released, when it released last and whether that was done.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.attachments import Fill, Training, place_of
from agent.board import BUBBLE_RING

_SLACK_NS = 1_000_000  # a killed process's work is off the GPU so soon
_HOST_CAUSE = 1
_MOST_OPERATIONS = (1 << 32) - 1

UseValues = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, int]


@dataclass(frozen=True)
class LastUse:
    """`records`: values of struct sfill_use, one for each training process; `text` for the log."""

    records: list[UseValues]
    text: str


@dataclass(frozen=True)
class _Bubble:
    seq: int
    begin_ns: int
    end_ns: int  # 0: still open
    cause: int


def estimate(
    fill: Fill, trainings: list[Training], ended_ns: int, *, stood: bool
) -> LastUse | None:
    """What is missing of a fill's uses; None when nothing is.

    Operations: released, but in no record. GPU time: what the gate had measured and not yet
    written, and the time from the last release to the end if that was not done. Intrusion: all of
    the time since that release in which the training had work; where a share of the GPU is not
    known, the whole is charged. Work that was not seen to stand (`stood`) ended soon after its
    estimated time, whenever the process did.
    """
    place = place_of(fill)
    if place is None or not trainings:
        return None
    gpu = fill.memory.view.gpus[place]
    released_ns, in_flight_ns = int(gpu.last_release_ns), int(gpu.in_flight_ns)
    # The board is its process's to write: no more than a record holds.
    missing = min(max(0, int(gpu.released) - int(gpu.recorded)), _MOST_OPERATIONS)
    open_ns = min(int(gpu.open_gpu_ns), ended_ns)
    if not 0 < released_ns <= ended_ns or not (missing or in_flight_ns or open_ns):
        return None
    done_ns = max(released_ns, min(int(gpu.done_ns), ended_ns))
    until_ns = done_ns
    if in_flight_ns:
        likely_ns = max(done_ns, min(ended_ns, released_ns + in_flight_ns + _SLACK_NS))
        until_ns = ended_ns if stood else likely_ns
    gpu_time_ns = open_ns + until_ns - done_ns
    records = []
    waited_ns = 0
    for position, training in enumerate(trainings):
        bubbles = _bubbles(training, fill.gpu)
        used = _holding(bubbles, released_ns)
        wait_ns = busy_ns(bubbles, released_ns, until_ns)
        waited_ns = max(waited_ns, wait_ns)
        # The bubble may have begun before the fill was here.
        from_ns = max(fill.recorded_until_ns, fill.admitted_ns + 1)
        first_ns = max(used.begin_ns, from_ns) if used else released_ns
        own = position == 0  # one process's bubble was used; the others may have waited too
        records.append(
            (
                training.board_id,
                used.seq if used else 0,
                used.begin_ns if used else 0,
                used.end_ns if used else 0,
                min(first_ns, released_ns),
                until_ns,
                gpu_time_ns if own else 0,
                wait_ns,
                missing if own else 0,
                0,
                place,
                used.cause if used else _HOST_CAUSE,
                0,
                0,
            )
        )
    text = (
        f"process {fill.process.process_id} of fill job {fill.job.job_id} ended with a use open: "
        f"{missing} operation(s), {gpu_time_ns / 1e6:.1f} ms of GPU time and "
        f"{waited_ns / 1e6:.1f} ms of training's waiting are entered by estimate"
    )
    return LastUse(records, text)


def _bubbles(training: Training, uuid: str) -> list[_Bubble]:
    """Bubbles of a training process on a GPU that its board still has, the open one included."""
    view, index = training.memory.view, training.sections.get(uuid)
    if index is None:
        return []
    head = int(view.bubble_head)
    ring = [view.bubbles[at % BUBBLE_RING] for at in range(max(0, head - BUBBLE_RING), head)]
    found = [
        _Bubble(int(each.seq), int(each.begin_ns), int(each.end_ns), int(each.cause))
        for each in ring
        if each.gpu == index and each.begin_ns < each.end_ns
    ]
    section = view.gpus[index]
    seq = int(section.bubble_seq)
    if seq & 1:
        begin_ns, cause = int(section.bubble_begin_ns), int(section.bubble_cause)
        found.append(_Bubble(seq, begin_ns, 0, cause))
    return found


def _holding(bubbles: list[_Bubble], moment_ns: int) -> _Bubble | None:
    """The bubble in which a moment lies, or the last one before it."""
    begun = [each for each in bubbles if each.begin_ns <= moment_ns]
    return max(begun, key=lambda each: each.begin_ns, default=None)


def busy_ns(bubbles: list[_Bubble], begin_ns: int, end_ns: int) -> int:
    """How much of a time lies outside these bubbles, which do not overlap."""
    idle = sum(
        max(0, min(each.end_ns or end_ns, end_ns) - max(each.begin_ns, begin_ns))
        for each in bubbles
    )
    return max(0, end_ns - begin_ns - idle)
