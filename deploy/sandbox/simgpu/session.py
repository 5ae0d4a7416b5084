"""Drives the simulated driver from Python, for tests: one process's view of one GPU.

Run `python -m deploy.sandbox.simgpu.session CODE` to have CODE executed in a process of its own,
with `gpu` bound to a Session.
"""

import ctypes
import os
import sys
from pathlib import Path


class DriverError(Exception):
    """A driver call failed; code is its CUresult."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} gave {code}")
        self.code = code


class Session:
    """A primary context on one device. library: path of libcuda.so.1.

    Streams are raw handles; None is the legacy default stream.
    """

    def __init__(self, library: Path, device: int = 0) -> None:
        self.cuda = ctypes.CDLL(str(library))
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.context = context
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), b"image")
        self._module = module
        self._functions: dict[str, ctypes.c_void_p] = {}

    def call(self, name: str, *arguments: object) -> None:
        """Calls the driver.

        Raises:
            DriverError: the driver did not say CUDA_SUCCESS.
        """
        code = getattr(self.cuda, name)(*arguments)
        if code:
            raise DriverError(name, code)

    def use(self, device: int) -> None:
        """Makes another device's primary context current."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def function(self, name: str) -> ctypes.c_void_p:
        """A kernel of this name."""
        if name not in self._functions:
            function = ctypes.c_void_p()
            self.call("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
            self._functions[name] = function
        return self._functions[name]

    def stream(self, *, blocking: bool = False, priority: int = 0) -> ctypes.c_void_p:
        """A new stream; a blocking one heeds the legacy default stream. Priority: 0 down to -5,
        lower goes first."""
        stream = ctypes.c_void_p()
        flags = 0 if blocking else 1
        self.call("cuStreamCreateWithPriority", ctypes.byref(stream), flags, priority)
        return stream

    def launch(
        self, name: str, microseconds: int, stream: ctypes.c_void_p | None = None, suffix: str = ""
    ) -> None:
        """Launches a kernel that takes so long."""
        self.call(
            "cuLaunchKernel" + suffix,
            self.function(name),
            *(microseconds, 1, 1, 32, 1, 1, 0),
            stream,
            None,
            None,
        )

    def spin(
        self, name: str, microseconds: int, stream: ctypes.c_void_p, address: int, value: int
    ) -> None:
        """Launches a kernel that takes so long, and ends no sooner than the 64-bit word at address
        is at least value."""
        buffer, size = (ctypes.c_uint64 * 2)(address, value), ctypes.c_size_t(16)
        pointers = (1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
        extra = (ctypes.c_void_p * 5)(*pointers)
        self.call(
            "cuLaunchKernel",
            self.function(name),
            *(microseconds, 1, 1, 32, 1, 1, 0),
            *(stream, None, extra),
        )

    def synchronize(self, stream: ctypes.c_void_p | None = None) -> None:
        """Waits for the stream."""
        self.call("cuStreamSynchronize", stream)

    def event(self) -> ctypes.c_void_p:
        """A new event."""
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), 0)
        return event

    def words(self, count: int = 64) -> "ctypes.Array[ctypes.c_uint64]":
        """Pinned 64-bit words that the GPU reaches; their addresses by ctypes.addressof."""
        at = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(at), ctypes.c_size_t(8 * count), 0)
        return (ctypes.c_uint64 * count).from_address(at.value or 0)

    def write(self, stream: ctypes.c_void_p | None, address: int, value: int) -> None:
        """Has the GPU write a 64-bit word."""
        word, number = ctypes.c_uint64(address), ctypes.c_uint64(value)
        self.call("cuStreamWriteValue64_v2", stream, word, number, 0)

    def wait(self, stream: ctypes.c_void_p | None, address: int, value: int) -> None:
        """Has the stream wait until the word is at least value."""
        word, number = ctypes.c_uint64(address), ctypes.c_uint64(value)
        self.call("cuStreamWaitValue64_v2", stream, word, number, 0)

    def capture(self, stream: ctypes.c_void_p, mode: int = 0) -> None:
        """Begins capturing the stream: 0 global, 1 thread-local, 2 relaxed."""
        self.call("cuStreamBeginCapture_v2", stream, mode)

    def end_capture(self, stream: ctypes.c_void_p) -> ctypes.c_void_p:
        """Ends it; the graph."""
        graph = ctypes.c_void_p()
        self.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        return graph

    def instantiate(self, graph: ctypes.c_void_p) -> ctypes.c_void_p:
        """Makes the graph ready for cuGraphLaunch."""
        executable = ctypes.c_void_p()
        self.call(
            "cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0)
        )
        return executable

    def allocate(self, size: int) -> int:
        """Device memory of size bytes."""
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return at.value

    def memory_info(self) -> tuple[int, int]:
        """Free and all bytes of the GPU."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value


if __name__ == "__main__":
    exec(sys.argv[1], {"gpu": Session(Path(os.environ["SIMGPU_LIBRARY"])), "ctypes": ctypes})
