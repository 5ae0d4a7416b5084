"""The table of tests/mutation keeps up with the code: every change applies, every test exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mutation.rules import REPOSITORY, Rule, absent, rules


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.name)
def test_each_rule_can_still_be_disabled(rule: Rule) -> None:
    texts: dict[str, str] = {}
    for change in rule.changes:
        before = texts.get(change.file) or (REPOSITORY / change.file).read_text()
        texts[change.file] = change.applied(before)
        assert texts[change.file] != before


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.name)
def test_each_rule_names_tests_that_exist(rule: Rule) -> None:
    assert rule.tests
    for test in rule.tests:
        file, _, name = test.partition("::")
        text = Path(REPOSITORY / file).read_text()
        assert not name or re.search(rf"^(def )?{re.escape(name)}\b", text, re.M), test


def test_names_are_told_apart_and_what_is_not_covered_has_a_reason() -> None:
    names = [rule.name for rule in rules()]
    assert len(names) == len(set(names))
    assert all(each.says and each.why for each in absent())
