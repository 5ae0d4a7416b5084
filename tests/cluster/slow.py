"""Cluster tests that run.sh leaves out, for its quarter of an hour: see tests/README.md."""

import os

import pytest

SLOW = pytest.mark.skipif("SFILL_SLOW_TESTS" not in os.environ, reason="slow suite")
