"""Timers of the main loop that no unforeseen error ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


async def every(
    seconds: float, turn: Callable[[], Awaitable[None] | None], *, at_once: bool = False
) -> None:
    """Calls `turn` again and again, for ever; `at_once`: before the first pause too.

    An error is logged and ends that turn only: one bad reading must not end the watch.
    """
    if not at_once:
        await asyncio.sleep(seconds)
    while True:
        try:
            if (waiting := turn()) is not None:
                await waiting
        except Exception:
            log.exception("an unforeseen error in a timer")
        await asyncio.sleep(seconds)
