"""Whole numbers that people write: leading zeros, and more digits than int() reads."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from db.quoted import quoted
from db.whole_number import whole_number

MANY = "9" * (2 * sys.get_int_max_str_digits())


@given(st.integers(0, 10**12), st.integers(0, 5000), st.integers(0, 99), st.integers(100, 10**9))
def test_zeros_before_a_number_change_nothing(number: int, zeros: int, low: int, high: int) -> None:
    expected = number if low <= number <= high else None
    assert whole_number("0" * zeros + str(number), low, high) == expected


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", "1e3", " 1", "1_0", "²", "١"])
def test_only_digits_are_a_number(text: str) -> None:
    assert whole_number(text, 0, 10**6) is None


@pytest.mark.parametrize("zeros", [0, 1, 20, 5000])
def test_a_number_of_any_length_is_compared_whole(zeros: int) -> None:
    assert whole_number("0" * zeros + "1" + MANY, 0, 2**63 - 1) is None


def test_long_text_is_quoted_by_its_beginning_on_one_line() -> None:
    assert quoted("a\nb") == r"'a\nb'"
    assert len(quoted(MANY)) < 120 and str(len(MANY) + 2) in quoted(MANY)
