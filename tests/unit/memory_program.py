"""A CUDA program for tests that takes memory, by ctypes on whatever libcuda.so.1 is found.

    python memory_program.py SECONDS [STEP ...]

Works for SECONDS: it sends numbers to the GPU, launches kernels, copies them back and adds them up.
The steps are taken one after the other, evenly over that time, the first at once:

    CALL:MIB   takes so much memory by that call (alloc, pitch, managed, async, pool, create, array)
    free       gives back what was taken last
    info       notes what cuMemGetInfo says
    spin:MS    launches a kernel of so many milliseconds and does not wait for it
    wait       goes on iterating until SIGUSR1 comes; those iterations are not added up

Prints one JSON object: the result of each step (a CUDA error, 0 for success; MiB free and in all
for info), its length in milliseconds, and the sum. Needs nothing but Python.
"""

import ctypes as c
import json
import signal
import sys
import time

MIB = 1 << 20


def check(result: int) -> None:
    if result != 0:
        raise SystemExit(f"CUDA error {result}")


class Program:
    def __init__(self) -> None:
        self.cuda = cuda = c.CDLL("libcuda.so.1")
        device, context, self.stream = c.c_int(), c.c_void_p(), c.c_void_p()
        check(cuda.cuInit(0))
        check(cuda.cuDeviceGet(c.byref(device), 0))
        check(cuda.cuCtxCreate_v2(c.byref(context), 0, device))
        check(cuda.cuStreamCreate(c.byref(self.stream), 1))
        module, self.kernel = c.c_void_p(), c.c_void_p()
        check(cuda.cuModuleLoadData(c.byref(module), b"image"))
        check(cuda.cuModuleGetFunction(c.byref(self.kernel), module, b"work"))
        self.numbers = (c.c_uint64 * 512)()
        self.at = c.c_uint64()
        check(cuda.cuMemAlloc_v2(c.byref(self.at), c.c_size_t(c.sizeof(self.numbers))))
        self.total = self.iterations = 0
        self.taken: list[tuple[str, c.c_uint64]] = []
        self.signalled = False
        signal.signal(signal.SIGUSR1, self._signal)

    def _signal(self, *_: object) -> None:
        self.signalled = True

    def launch(self, microseconds: int) -> int:
        arguments = [self.kernel, microseconds, 1, 1, 32, 1, 1, 0, self.stream, None, None]
        return int(self.cuda.cuLaunchKernel(*arguments))

    def iterate(self) -> None:
        """The sum depends on every number that came back from the GPU."""
        back = (c.c_uint64 * 512)()
        for index in range(512):
            self.numbers[index] = self.total * 31 + index
        check(self.cuda.cuMemcpyHtoD_v2(self.at, self.numbers, c.c_size_t(c.sizeof(back))))
        for _ in range(5):
            check(self.launch(200))
        check(self.cuda.cuStreamSynchronize(self.stream))
        check(self.cuda.cuMemcpyDtoH_v2(back, self.at, c.c_size_t(c.sizeof(back))))
        self.total = sum(back) % (1 << 61)
        self.iterations += 1
        time.sleep(0.01)

    def take(self, call: str, size: int) -> int:
        cuda, at, pitch = self.cuda, c.c_uint64(), c.c_size_t()
        bytes_ = c.c_size_t(size)
        if call == "alloc":
            result = cuda.cuMemAlloc_v2(c.byref(at), bytes_)
        elif call == "pitch":
            row, rows = c.c_size_t(MIB), c.c_size_t(size // MIB)
            result = cuda.cuMemAllocPitch_v2(c.byref(at), c.byref(pitch), row, rows, 4)
        elif call == "managed":
            result = cuda.cuMemAllocManaged(c.byref(at), bytes_, 1)
        elif call == "async":
            result = cuda.cuMemAllocAsync(c.byref(at), bytes_, self.stream)
        else:
            raise SystemExit(f"{call!r} is no call")
        if result == 0:
            self.taken.append((call, at))
        return int(result)

    def free(self) -> int:
        call, at = self.taken.pop()
        if call == "async":
            return int(self.cuda.cuMemFreeAsync(at, self.stream))
        return int(self.cuda.cuMemFree_v2(at))

    def step(self, text: str) -> object:
        name, _, value = text.partition(":")
        if name == "info":
            free, total = c.c_size_t(), c.c_size_t()
            check(self.cuda.cuMemGetInfo_v2(c.byref(free), c.byref(total)))
            return [free.value // MIB, total.value // MIB]
        if name == "wait":
            before = self.total
            while not self.signalled:
                self.iterate()
            self.total = before
            return 0
        if name == "free":
            return self.free()
        if name == "spin":
            return self.launch(int(value) * 1000)
        return self.take(name, int(value) * MIB)


def main() -> None:
    seconds, steps = float(sys.argv[1]), sys.argv[2:]
    program = Program()
    results: list[object] = []
    took_ms: list[float] = []
    iterations = max(len(steps), round(seconds / 0.0125))
    for index in range(iterations):
        program.iterate()
        while len(results) < len(steps) and index * len(steps) >= iterations * len(results):
            began = time.monotonic()
            results.append(program.step(steps[len(results)]))
            took_ms.append((time.monotonic() - began) * 1000)
    print(json.dumps({"results": results, "took_ms": took_ms, "sum": program.total}))


if __name__ == "__main__":
    main()
