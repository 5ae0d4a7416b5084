"""A failed test says what else the machine did meanwhile."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.busy_machine import MachineTimes, report

_BEFORE = pytest.StashKey[MachineTimes]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_BEFORE] = MachineTimes.now()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    found = yield
    if found.failed and _BEFORE in item.stash:
        before = item.stash[_BEFORE]
        found.sections.append(("machine meanwhile", report(before, MachineTimes.now())))
    return found
