"""Tests that run.sh leaves out, for its quarter of an hour: see tests/README.md."""

import os

import pytest

ASKED_FOR = bool(os.environ.get("SFILL_SLOW_TESTS"))
SLOW = pytest.mark.skipif(not ASKED_FOR, reason="slow suite")
