"""A kernel of Triton's that counts. In a file of its own, since Triton reads its source."""

import triton
import triton.language as tl


@triton.jit
def count(place):  # type: ignore[no-untyped-def]  # Triton takes an annotation for a global
    tl.store(place, tl.load(place) + 1)
