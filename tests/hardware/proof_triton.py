"""A kernel of Triton's that counts. In a file of its own, since Triton reads its source."""

import triton
import triton.language as tl


@triton.jit
# No annotations: Triton would take them for globals.
def count(place):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
    tl.store(place, tl.load(place) + 1)
