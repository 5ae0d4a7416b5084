"""A CUDA program for tests, by ctypes on whatever libcuda.so.1 is found: training or inference.

    python cuda_program.py train|infer SECONDS KERNEL_US KERNELS STALL_US

Each iteration launches KERNELS kernels of KERNEL_US (a simulated kernel runs as many microseconds
as its grid is wide), waits for them, and, in training, stalls the host for STALL_US: the bubble.
Prints one JSON object at the end. Needs nothing but Python, so that any interpreter runs it.
"""

import ctypes
import json
import sys
import time


def check(result: int) -> None:
    if result != 0:
        raise SystemExit(f"CUDA error {result}")


def kernel(cuda: ctypes.CDLL, name: bytes) -> ctypes.c_void_p:
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuModuleLoadData(ctypes.byref(module), b"image"))
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, name))
    return function


def main() -> None:
    role, seconds, kernel_us, kernels, stall_us = sys.argv[1], *map(float, sys.argv[2:6])
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDeviceGet(ctypes.byref(device), 0))
    check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
    check(cuda.cuStreamCreate(ctypes.byref(stream), 1))
    function = kernel(cuda, role.encode())
    took_ms: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        for _ in range(int(kernels)):
            check(
                cuda.cuLaunchKernel(function, int(kernel_us), 1, 1, 32, 1, 1, 0, stream, None, None)
            )
        check(cuda.cuStreamSynchronize(stream))
        took_ms.append((time.monotonic() - began) * 1000)
        if stall_us:
            time.sleep(stall_us / 1e6)
    took_ms.sort()
    median = took_ms[len(took_ms) // 2] if took_ms else None
    print(json.dumps({"iterations": len(took_ms), "median_ms": median}))


if __name__ == "__main__":
    main()
