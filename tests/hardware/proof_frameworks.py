"""One framework's way to the GPU, gone again and again; a child of proof.py.

    python -m tests.hardware.proof_frameworks NAME FILE [simulated]

The memory that the GPU writes is page 1 of FILE, registered with the driver; most paths see it as
an array of the framework's own, so that the very kernel under test writes there. Two need something
between: what cuDNN computes is added to it by the next kernel (`behind`), and JAX, which has no say
in where results go, updates a number in place that a stream of ours has long been told to wait for.
NCCL is a world of one rank: ranks on several GPUs are not tried here.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hardware.proof_page import PAGE_BYTES, WHERE_BEHIND, WHERE_CALL, WHERE_ELSE, Page

ABSENT_CODE = 3
REST_S = 0.001
AHEAD = 32


def nothing() -> None:
    """Of paths that need nothing more."""


@dataclass
class Way:
    """`go` is under test; `behind` carries its result on; `wait` until the GPU is done."""

    go: Callable[[], None]
    wait: Callable[[], None]
    behind: Callable[[], None] = nothing


class Driver:
    """What is asked of the driver itself, in the primary context that frameworks use."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.check(self.cuda.cuInit(0))
        self.check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self.check(self.cuda.cuCtxSetCurrent(context))

    @staticmethod
    def check(result: int) -> None:
        if result != 0:
            raise RuntimeError(f"CUDA error {result}")

    def register(self, page: Page) -> int:
        """The GPU's address of what the prover sees."""
        at = ctypes.c_uint64()
        memory = ctypes.c_void_p(page.seen_address)
        self.check(self.cuda.cuMemHostRegister_v2(memory, ctypes.c_size_t(PAGE_BYTES), 3))
        self.check(self.cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(at), memory, 0))
        return at.value

    def stream(self) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.check(self.cuda.cuStreamCreate(ctypes.byref(made), 1))
        return made


class Mapped:
    """Registered host memory as frameworks take memory that is not theirs."""

    def __init__(self, at: int, shape: tuple[int, ...], kind: str) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": kind,
            "data": (at, False),
            "version": 2,
        }


def torch_counter(at: int, shape: tuple[int, ...] = (1,), kind: str = "<i8") -> Any:
    import torch

    torch.cuda.init()
    return torch.as_tensor(Mapped(at, shape, kind), device="cuda")


def torch_eager(at: int) -> Way:
    import torch

    counter = torch_counter(at)
    return Way(lambda: counter.add_(1), torch.cuda.synchronize)


def torch_compile(at: int) -> Way:
    import torch

    counter = torch_counter(at)

    @torch.compile
    def step(number: Any) -> None:
        number.add_(3).mul_(2).sub_(number // 2)

    return Way(lambda: step(counter), torch.cuda.synchronize)


def torch_graph(at: int) -> Way:
    import torch

    counter = torch_counter(at)
    counter.add_(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        counter.add_(1)
    return Way(graph.replay, torch.cuda.synchronize)


def triton(at: int) -> Way:
    import torch

    from tests.hardware.proof_triton import count

    counter = torch_counter(at)
    return Way(lambda: count[(1,)](counter), torch.cuda.synchronize)


def cublas(at: int) -> Way:
    import torch

    total = torch_counter(at, (8, 8), "<f4")
    one = torch.ones(8, 8, device="cuda")
    return Way(lambda: total.addmm_(one, one), torch.cuda.synchronize)


def cudnn(at: int) -> Way:
    import torch

    if not torch.backends.cudnn.is_available():
        raise ImportError("torch has no cuDNN")
    counter = torch_counter(at, (1,), "<f4")
    image = torch.ones(1, 8, 16, 16, device="cuda")
    filters = torch.ones(8, 8, 3, 3, device="cuda")
    results: list[Any] = [None]

    def go() -> None:
        results[0] = torch.cudnn_convolution(
            image, filters, (1, 1), (1, 1), (1, 1), 1, False, False, True
        )

    return Way(go, torch.cuda.synchronize, lambda: counter.add_(results[0][0, 0, 0, :1]))


def nccl(at: int) -> Way:
    """A world of one rank, with an operation that NCCL needs a kernel for even so."""
    import torch
    import torch.distributed as dist

    number = torch_counter(at, (1,), "<f4")
    number.fill_(1)
    store = dist.HashStore()
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    grow = dist._make_nccl_premul_sum(1.001)
    return Way(lambda: dist.all_reduce(number, op=grow), torch.cuda.synchronize)


def cupy(at: int) -> Way:
    import cupy as cp

    memory = cp.cuda.UnownedMemory(at, PAGE_BYTES, None, 0)
    counter = cp.ndarray((1,), dtype=cp.int64, memptr=cp.cuda.MemoryPointer(memory, 0))
    return Way(lambda: counter.__iadd__(1), cp.cuda.Device(0).synchronize)


def jax(at: int) -> Way:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax as framework
    import jax.numpy as numbers

    step = framework.jit(lambda number: number + 1, donate_argnums=0)
    held = [numbers.zeros((1,), dtype=numbers.uint32)]
    held[0] = step(held[0]).block_until_ready()
    where = held[0].unsafe_buffer_pointer()
    driver, told = Driver(), [1]
    stream = driver.stream()
    times = [1]

    def watch() -> None:
        while told[0] < times[0] + 2 * AHEAD:
            told[0] += 1
            value = ctypes.c_uint32(told[0])
            word = ctypes.c_uint64(told[0])
            driver.check(
                driver.cuda.cuStreamWaitValue32_v2(stream, ctypes.c_uint64(where), value, 0)
            )
            driver.check(driver.cuda.cuStreamWriteValue64_v2(stream, ctypes.c_uint64(at), word, 0))

    def go() -> None:
        held[0] = step(held[0]).block_until_ready()

    def wait() -> None:
        times[0] += 1
        if held[0].unsafe_buffer_pointer() != where:
            raise RuntimeError("JAX did not update the number in place")
        if told[0] < times[0] + AHEAD:
            watch()

    watch()
    return Way(go, wait)


def driver_alone(at: int) -> Way:
    """No framework: Python itself writes by a stream. For the dry run, where there is none."""
    driver, word = Driver(), [0]
    stream = driver.stream()

    def go() -> None:
        word[0] += 1
        value = ctypes.c_uint64(word[0])
        driver.check(driver.cuda.cuStreamWriteValue64_v2(stream, ctypes.c_uint64(at), value, 0))

    return Way(go, lambda: driver.check(driver.cuda.cuStreamSynchronize(stream)))


WAYS: dict[str, Callable[[int], Way]] = {
    "torch-eager": torch_eager,
    "torch-compile": torch_compile,
    "torch-graph": torch_graph,
    "triton": triton,
    "cublas": cublas,
    "cudnn": cudnn,
    "cupy": cupy,
    "jax": jax,
    "nccl": nccl,
    "driver-alone": driver_alone,
}


def run(way: Way, page: Page) -> None:
    words = page.words
    while not words.stop:
        words.tried += 1
        words.where = WHERE_CALL
        way.go()
        words.where = WHERE_BEHIND
        words.returned += 1
        way.behind()
        words.where = WHERE_ELSE
        way.wait()
        time.sleep(REST_S)


def main() -> int:
    page = Page(Path(sys.argv[2]), create=False)
    try:
        way = WAYS[sys.argv[1]](Driver().register(page))
    except ImportError as error:
        print(json.dumps({"absent": f"not installed: {error}"}), flush=True)
        return ABSENT_CODE
    way.go()
    way.behind()
    way.wait()
    run(way, page)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # streams that wait for values that never come are not waited for
