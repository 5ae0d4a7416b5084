"""The ways in which a measured training lets fill run beside it, or shuts it out."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from tests.bench.page import Page, Word
from tests.bench.stopwatch import Switch

OBEY_S = 20.0


class LendSwitch:
    """The interposer's own switch, from this process (specinf_lend): policy ours."""

    def __init__(self) -> None:
        try:
            self._lend = ctypes.CDLL(None).specinf_lend
        except AttributeError as error:
            message = "the interposer is not loaded: submit with --fill-host=on"
            raise SystemExit(message) from error

    def set(self, on: bool) -> None:
        self._lend(int(on))

    def steady(self, on: bool) -> None:
        pass


class PageSwitch:
    """Has the fill itself pause after what it has begun: every peer."""

    def __init__(self, path: Path) -> None:
        self.page = Page(path)

    def set(self, on: bool) -> None:
        self.page.order(on)
        self.page.wait_obeyed(OBEY_S)

    def steady(self, on: bool) -> None:
        self.page[Word.STEADY] = int(on)


class NoSwitch:
    """There is no fill: policy alone."""

    def set(self, on: bool) -> None:
        pass

    def steady(self, on: bool) -> None:
        pass


def page_of_rank(pages: Path, rank: int) -> Path:
    """The page of the GPU that a rank uses: the path given with its number appended."""
    return pages.with_name(f"{pages.name}.{rank}")


def make_switch(kind: str, pages: Path | None) -> Switch:
    """The switch that a command line names: lend, page or none."""
    if kind == "lend":
        return LendSwitch()
    if kind == "none":
        return NoSwitch()
    if pages is None:
        raise SystemExit("--switch page needs --pages")
    return PageSwitch(page_of_rank(pages, int(os.environ.get("LOCAL_RANK", "0"))))
