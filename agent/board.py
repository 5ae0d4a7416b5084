"""The memory of board.h as ctypes structures; a test compares every offset with the C compiler's.

Plain aligned loads and stores of 2, 4 or 8 bytes are what ctypes does for these fields, so single
fields are never torn. Times are CLOCK_MONOTONIC nanoseconds.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_uint16, c_uint32, c_uint64
from enum import IntEnum

MAGIC_TRAINING = 0x3152544E4C494653
MAGIC_FILL = 0x31524C464E4C4653
MAGIC_POLICY = 0x31594C504E4C4653
MAGIC_ACCOUNT = 0x314343414E4C4653
LAYOUT_VERSION = 5
MAX_STREAMS = 512
MAX_GPUS = 16
BUBBLE_RING = 1024
USE_RING = 2048
MAX_BOARDS = 64
MAX_FILLS = 16
MAX_PLACES = 256
UUID_BYTES = 48
POLICY_IGNORE_TRAINING = 1
POLICY_NO_PREDICTION = 2
POLICY_MPS = 4


class Shut(IntEnum):
    """Why a training board is shut for good."""

    NO = 0
    STREAMS = 1
    MARKER = 2
    UNSUPPORTED = 3
    TEARDOWN = 4
    GPUS = 5


class Closed(IntEnum):
    """Why a gate is shut."""

    OPEN = 0
    STALE = 1
    OFF = 2
    BUDGET = 3
    UNKNOWN = 4
    BOARDS = 5
    BUSY = 6
    DWELL = 7
    IN_FLIGHT = 8
    TOO_LONG = 9
    TURN = 10
    NO_HOST = 11
    CALIBRATION = 12


class StreamSlot(ctypes.Structure):
    _fields_ = (
        ("before", c_uint64),
        ("after", c_uint64),
        ("marked", c_uint64),
        ("last_issue_ns", c_uint64),
        ("context", c_uint64),
        ("stream_id", c_uint64),
        ("state", c_uint32),
        ("gpu", c_uint32),
        ("reserved0", c_uint64),
        ("done", c_uint64),
        ("reserved1", c_uint64 * 7),
    )


class GpuSection(ctypes.Structure):
    _fields_ = (
        ("uuid", c_char * UUID_BYTES),
        ("used", c_uint32),
        ("bubble_cause", c_uint32),
        ("bubble_seq", c_uint64),
        ("bubble_begin_ns", c_uint64),
        ("resume_seq", c_uint64),
        ("resume_launch_ns", c_uint64),
        ("launches", c_uint64),
        ("resume_issued_ns", c_uint64),
        ("resume_mark_ns", c_uint64),
        ("resume_call_ns", c_uint64),
        ("reserved0", c_uint64),
        ("resumed_seq", c_uint64),
        ("reserved1", c_uint64 * 7),
    )


class Bubble(ctypes.Structure):
    _fields_ = (
        ("seq", c_uint64),
        ("begin_ns", c_uint64),
        ("end_ns", c_uint64),
        ("launches", c_uint64),
        ("gpu", c_uint32),
        ("cause", c_uint32),
    )


class BoardHead(ctypes.Structure):
    _fields_ = (
        ("magic", c_uint64),
        ("version", c_uint32),
        ("size_bytes", c_uint32),
        ("board_id", c_uint64),
        ("process_id", c_uint32),
        ("shut", c_uint32),
    )


class TrainingBoard(ctypes.Structure):
    _fields_ = (
        ("head", BoardHead),
        ("lend", c_uint32),
        ("fill_present", c_uint32),
        ("ready", c_uint32),
        ("slots_used", c_uint32),
        ("gpus_used", c_uint32),
        ("drained", c_uint32),
        ("bubble_head", c_uint64),
        ("gpus", GpuSection * MAX_GPUS),
        ("slots", StreamSlot * MAX_STREAMS),
        ("bubbles", Bubble * BUBBLE_RING),
    )


class Use(ctypes.Structure):
    _fields_ = (
        ("host_board_id", c_uint64),
        ("bubble_seq", c_uint64),
        ("bubble_begin_ns", c_uint64),
        ("bubble_end_ns", c_uint64),
        ("first_release_ns", c_uint64),
        ("last_done_ns", c_uint64),
        ("gpu_time_ns", c_uint64),
        ("intrusion_ns", c_uint64),
        ("kernels", c_uint32),
        ("copies", c_uint32),
        ("gpu", c_uint32),
        ("cause", c_uint32),
        ("check_age_max_ns", c_uint32),
        ("reserved0", c_uint32),
    )


class FillGpu(ctypes.Structure):
    _fields_ = (
        ("uuid", c_char * UUID_BYTES),
        ("wants", c_uint32),
        ("open", c_uint32),
        ("closed_reason", c_uint32),
        ("member", c_uint16),
        ("members", c_uint16),
        ("released", c_uint64),
        ("last_release_ns", c_uint64),
        ("in_flight_ns", c_uint64),
        ("memory_bytes", c_uint64),
        ("held_too_long", c_uint64),
        ("wait_ns", c_uint64),
        ("open_gpu_ns", c_uint64),
        ("done_ns", c_uint64),
        ("recorded", c_uint64),
    )


class FillBoard(ctypes.Structure):
    _fields_ = (
        ("head", BoardHead),
        ("gpus_used", c_uint32),
        ("drained", c_uint32),
        ("use_head", c_uint64),
        ("use_lost", c_uint64),
        # C aligns gpus to 64 bytes; ctypes of Python < 3.13 cannot say so.
        ("_align_gpus", c_uint64),
        ("gpus", FillGpu * MAX_GPUS),
        ("uses", Use * USE_RING),
    )


class PolicyFill(ctypes.Structure):
    _fields_ = (
        ("job_id", c_uint64),
        ("allowed", c_uint32),
        ("reason", c_uint32),
        ("memory_limit_bytes", c_uint64),
        ("turn", c_uint32),
        ("reserved0", c_uint32),
    )


class PolicyPage(ctypes.Structure):
    _fields_ = (
        ("magic", c_uint64),
        ("version", c_uint32),
        ("size_bytes", c_uint32),
        ("uuid", c_char * UUID_BYTES),
        ("heartbeat", c_uint64),
        ("boards_sequence", c_uint64),
        ("boards_count", c_uint32),
        ("unknown_training", c_uint32),
        ("boards", c_uint64 * MAX_BOARDS),
        ("dwell_us", c_uint32),
        ("in_flight_us", c_uint32),
        ("min_bubble_us", c_uint32),
        ("unknown_op_us", c_uint32),
        ("max_op_us", c_uint32),
        ("turn_us", c_uint32),
        ("turns", c_uint32),
        ("flags", c_uint32),
        ("graph_part_us", c_uint32),
        ("fills", PolicyFill * MAX_FILLS),
    )


class AccountPlace(ctypes.Structure):
    _fields_ = (
        ("board_id", c_uint64),
        ("bytes", c_uint64),
    )


class AccountPage(ctypes.Structure):
    _fields_ = (
        ("magic", c_uint64),
        ("version", c_uint32),
        ("size_bytes", c_uint32),
        ("uuid", c_char * UUID_BYTES),
        ("job_id", c_uint64),
        ("complete", c_uint32),
        ("places_used", c_uint32),
        ("places", AccountPlace * MAX_PLACES),
    )
