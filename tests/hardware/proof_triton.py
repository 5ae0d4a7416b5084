"""A kernel of Triton's that counts. In a file of its own, since Triton reads its source."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def count(place: Any) -> None:
    tl.store(place, tl.load(place) + 1)
