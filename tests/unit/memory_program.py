"""A CUDA program for tests that takes memory, by ctypes on whatever libcuda.so.1 is found.

    python memory_program.py SECONDS [STEP ...]

Works for SECONDS: it sends numbers to the GPU, launches kernels, copies them back and adds them up.
The steps are taken one after the other, evenly over that time, the first at once:

    CALL:MIB   takes so much memory by that call (alloc, pitch, managed, async; pool: from a pool of
               the program's own, which keeps what is freed; graph: by a node of a graph that
               is instantiated)
    free       gives back what was taken last
    sync       waits for the stream
    trim       trims the program's own pool
    destroy    destroys it
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
        self.pool = c.c_void_p()
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
        elif call == "pool":
            if not self.pool:
                self.make_pool()
            result = cuda.cuMemAllocFromPoolAsync(c.byref(at), bytes_, self.pool, self.stream)
        elif call == "graph":
            result = self.instantiate(size, at)
        else:
            raise SystemExit(f"{call!r} is no call")
        if result == 0:
            self.taken.append((call, at))
        return int(result)

    def make_pool(self) -> None:
        properties = (c.c_int * 22)(1, 0, 1, 0)  # pinned, on device 0
        threshold = c.c_uint64(-1)
        check(self.cuda.cuMemPoolCreate(c.byref(self.pool), properties))
        check(self.cuda.cuMemPoolSetAttribute(self.pool, 4, c.byref(threshold)))

    def instantiate(self, size: int, made: c.c_uint64) -> int:
        graph, node = c.c_void_p(), c.c_void_p()
        parameters = (c.c_uint64 * 32)(1, 1)  # pinned, on device 0
        parameters[13] = size
        check(self.cuda.cuGraphCreate(c.byref(graph), 0))
        check(self.cuda.cuGraphAddMemAllocNode(c.byref(node), graph, None, 0, parameters))
        return int(self.cuda.cuGraphInstantiateWithFlags(c.byref(made), graph, c.c_uint64(0)))

    def free(self) -> int:
        call, at = self.taken.pop()
        if call == "graph":
            return int(self.cuda.cuGraphExecDestroy(at))
        if call in ("async", "pool"):
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
        if name == "sync":
            return int(self.cuda.cuStreamSynchronize(self.stream))
        if name == "trim":
            return int(self.cuda.cuMemPoolTrimTo(self.pool, c.c_size_t(0)))
        if name == "destroy":
            result = int(self.cuda.cuMemPoolDestroy(self.pool))
            self.pool = c.c_void_p()
            return result
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
