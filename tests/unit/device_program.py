"""A program for tests that asks how much memory the GPU has, in every way that programs ask.

    python device_program.py [CALLER ...]

Asks NVML before it makes a context, then the driver, then takes 100 MiB and asks NVML and the
driver again. Each CALLER is a program that is run between: its output is kept. Prints one JSON
object of MiB: `before`, `after`: [free, total, used] by NVML's first and second form; `device`: the
driver's total; `info`: [free, total] by the driver; `called`: what the callers printed.
"""

import ctypes as c
import json
import subprocess
import sys

import pynvml

MIB = 1 << 20


def by_nvml() -> list[list[int]]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    forms = (
        pynvml.nvmlDeviceGetMemoryInfo(handle),
        pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2),
    )
    return [[form.free // MIB, form.total // MIB, form.used // MIB] for form in forms]


def check(result: int) -> None:
    if result != 0:
        raise SystemExit(f"CUDA error {result}")


def main() -> None:
    pynvml.nvmlInit()
    before = by_nvml()
    cuda = c.CDLL("libcuda.so.1")
    device, context, at = c.c_int(), c.c_void_p(), c.c_uint64()
    free, total, whole = c.c_size_t(), c.c_size_t(), c.c_size_t()
    check(cuda.cuInit(0))
    check(cuda.cuDeviceGet(c.byref(device), 0))
    check(cuda.cuDeviceTotalMem_v2(c.byref(whole), device))
    check(cuda.cuCtxCreate_v2(c.byref(context), 0, device))
    check(cuda.cuMemAlloc_v2(c.byref(at), c.c_size_t(100 * MIB)))
    check(cuda.cuMemGetInfo_v2(c.byref(free), c.byref(total)))
    after = by_nvml()
    called = [json.loads(subprocess.check_output([caller])) for caller in sys.argv[1:]]
    found = {
        "before": before,
        "device": whole.value // MIB,
        "info": [free.value // MIB, total.value // MIB],
        "after": after,
        "called": called,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
