"""The simulated driver captures streams by CUDA's rules and runs graphs in the order of edges."""

from pathlib import Path

import pytest

from deploy.sandbox.simgpu.log_file import GpuLog, Kind, Operation
from tests.unit.simgpu_machine import Machine

CAPTURED = """
import threading
def fails(code, name, *arguments):
    got = getattr(gpu.cuda, name)(*arguments)
    assert got == code, (name, got)
def elsewhere(function, mode=0):
    def body():
        gpu.call('cuCtxSetCurrent', gpu.context)
        gpu.call('cuThreadExchangeStreamCaptureMode', ctypes.byref(ctypes.c_int(mode)))
        function()
    thread = threading.Thread(target=body); thread.start(); thread.join()
def status(stream):
    found = ctypes.c_int(-1)
    gpu.call('cuStreamIsCapturing', stream, ctypes.byref(found))
    return found.value
def end(code, stream):
    graph = ctypes.c_void_p(1)
    fails(code, 'cuStreamEndCapture', stream, ctypes.byref(graph))
    assert bool(graph.value) == (code == 0)
    return graph
def nodes(graph):
    n = ctypes.c_size_t(); gpu.call('cuGraphGetNodes', graph, None, ctypes.byref(n))
    found = (ctypes.c_void_p * n.value)()
    gpu.call('cuGraphGetNodes', graph, found, ctypes.byref(n))
    return list(found)
s = gpu.stream()
"""


def ready_after(op: Operation, *ends_ns: int) -> bool:
    """Was it ready at the latest of these ends, or at its launch where that came later?"""
    return op.ready_ns == max(op.launch_ns, *ends_ns)


def kernels(log: GpuLog) -> dict[str, list[Operation]]:
    found: dict[str, list[Operation]] = {}
    for op in log.operations:
        if op.kind == Kind.KERNEL:
            found.setdefault(op.name, []).append(op)
    return found


def test_what_is_captured_runs_with_each_launch_and_not_before(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.run(
        CAPTURED + "words = gpu.words(); at = ctypes.addressof(words)\n"
        "device = ctypes.c_uint64(gpu.allocate(64)); size = ctypes.c_size_t(8)\n"
        "gpu.capture(s); assert status(s) == 1\n"
        "gpu.launch('first', 100, s); gpu.write(s, at, 7); gpu.launch('second', 50, s)\n"
        "gpu.call('cuMemcpyHtoDAsync_v2', device, ctypes.c_void_p(at + 8), size, s)\n"
        "gpu.call('cuMemcpyDtoHAsync_v2', ctypes.c_void_p(at + 16), device, size, s)\n"
        "gpu.call('cuMemsetD8Async', ctypes.c_uint64(at + 24), 1, size, s)\n"
        "called = []\n"
        "function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(called.append)\n"
        "gpu.call('cuLaunchHostFunc', s, function, None)\n"
        "graph = gpu.end_capture(s); assert status(s) == 0\n"
        "gpu.synchronize(s); assert list(words[:4]) == [0] * 4 and not called\n"
        "kind = ctypes.c_int(); kinds = []\n"
        "for node in nodes(graph):\n"
        "    gpu.call('cuGraphNodeGetType', ctypes.c_void_p(node), ctypes.byref(kind))\n"
        "    kinds.append(kind.value)\n"
        "assert kinds == [0, 12, 0, 1, 1, 2, 3], kinds\n"
        "run = gpu.instantiate(graph); gpu.call('cuGraphDestroy', graph)\n"
        "gpu.call('cuGraphUpload', run, s)\n"
        "for i in (1, 2):\n"
        "    words[0], words[1] = 0, 40 + i\n"  # a copy's source is read when the graph runs
        "    gpu.call('cuGraphLaunch' + ('', '_ptsz')[i - 1], run, s); gpu.synchronize(s)\n"
        "    assert list(words[:4]) == [7, 40 + i, 40 + i, 0x0101010101010101]\n"
        "    assert len(called) == i\n"
        "gpu.launch('alone', 1, s); gpu.synchronize(s); gpu.call('cuGraphExecDestroy', run)\n"
    )
    found = kernels(machine.log())
    assert [op.graph_launch for op in found["first"]] == [1, 2]
    assert [op.graph_launch for op in found["second"]] == [1, 2]
    assert all(op.in_graph for op in found["first"])
    assert found["alone"][0].graph_launch == 0
    assert not found["alone"][0].in_graph
    for first, second in zip(found["first"], found["second"], strict=True):
        assert ready_after(second, first.end_ns + 1000)  # the written value
        assert second.start_ns == second.ready_ns


def test_streams_join_by_events_and_edges_are_heeded_in_every_launch(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.run(
        CAPTURED + "side, fork, join = gpu.stream(), gpu.event(), gpu.event()\n"
        "gpu.capture(s); gpu.launch('head', 50, s); gpu.call('cuEventRecord', fork, s)\n"
        "gpu.call('cuStreamWaitEvent', side, fork, 0); assert status(side) == 1\n"
        "gpu.launch('side', 500, side); gpu.launch('main', 50, s)\n"
        "gpu.call('cuEventRecord', join, side); gpu.call('cuStreamWaitEvent', s, join, 0)\n"
        "gpu.launch('tail', 50, s)\n"
        "run = gpu.instantiate(gpu.end_capture(s)); assert status(side) == 0\n"
        "other = gpu.stream()\n"
        "for stream in (s, s, other):\n"
        "    gpu.call('cuGraphLaunch', run, stream); gpu.launch('behind', 10, stream)\n"
        "gpu.call('cuCtxSynchronize')\n"
    )
    found = kernels(machine.log())
    for launch in range(3):
        head, side, main, tail = (found[n][launch] for n in ("head", "side", "main", "tail"))
        assert {op.graph_launch for op in (head, side, main, tail)} == {launch + 1}
        assert ready_after(side, head.end_ns)  # neither branch waits for the other
        assert ready_after(main, head.end_ns)
        assert ready_after(tail, side.end_ns, main.end_ns)
        assert ready_after(found["behind"][launch], tail.end_ns)
    ends = [op.end_ns for op in found["tail"]]
    assert ready_after(found["head"][1], found["behind"][0].end_ns)
    assert found["head"][2].start_ns >= ends[1]  # launches of one graph do not overlap


@pytest.mark.parametrize(
    ("mode", "thread_mode", "allowed"),
    [(0, 0, False), (0, 1, True), (0, 2, True), (1, 0, True), (1, 1, True), (2, 0, True)],
)
def test_another_threads_unsafe_call_spoils_a_global_capture_unless_it_is_relaxed(
    tmp_path: Path, mode: int, thread_mode: int, allowed: bool
) -> None:
    Machine(tmp_path).run(
        CAPTURED + f"code = {0 if allowed else 900}\n"
        "event, other = gpu.event(), gpu.stream()\n"
        "gpu.call('cuEventRecord', event, other)\n"
        "at = ctypes.c_uint64(); data = ctypes.c_uint64(gpu.allocate(64))\n"
        "back = ctypes.create_string_buffer(8)\n"
        "calls = (('cuEventQuery', event), ('cuEventSynchronize', event),\n"
        "         ('cuMemcpyDtoH_v2', back, data, ctypes.c_size_t(8)),\n"
        "         ('cuMemAlloc_v2', ctypes.byref(at), ctypes.c_size_t(64)),\n"
        "         ('cuStreamSynchronize', other))\n"
        "gpu.synchronize(other)\n"
        "for call in calls:\n"
        f"    gpu.capture(s, {mode}); gpu.launch('k', 1, s)\n"
        f"    elsewhere(lambda: fails(code, *call), {thread_mode})\n"
        "    assert status(s) == (2 if code else 1)\n"
        "    function = gpu.function('k')\n"
        "    fails(code and 901, 'cuLaunchKernel', function, 1, 1, 1, 32, 1, 1, 0, s, None, None)\n"
        "    end(901 if code else 0, s)\n"
    )


def test_a_threads_own_unsafe_calls_spoil_its_capture_unless_one_of_both_is_relaxed(
    tmp_path: Path,
) -> None:
    Machine(tmp_path).run(
        CAPTURED + "at = ctypes.c_uint64()\n"
        "def allocate(code): fails(code, 'cuMemAlloc_v2', ctypes.byref(at), ctypes.c_size_t(64))\n"
        "for mode in (0, 1):\n"
        "    gpu.capture(s, mode); allocate(900); end(901, s)\n"
        "gpu.capture(s, 2); allocate(0); end(0, s)\n"
        "mode = ctypes.c_int(2)\n"
        "gpu.call('cuThreadExchangeStreamCaptureMode', ctypes.byref(mode))\n"
        "assert mode.value == 0\n"
        "gpu.capture(s); allocate(0)\n"
        "fails(900, 'cuStreamSynchronize', s); end(901, s)\n"  # whatever the thread's mode
        "gpu.capture(s); fails(900, 'cuStreamQuery', s); end(901, s)\n"
        "gpu.capture(s); fails(900, 'cuCtxSynchronize'); end(901, s)\n"
    )


def test_the_legacy_stream_is_out_of_bounds_while_a_blocking_stream_captures(
    tmp_path: Path,
) -> None:
    Machine(tmp_path).run(
        CAPTURED + "b = gpu.stream(blocking=True); f = gpu.function('k')\n"
        "def legacy(code):\n"
        "    fails(code, 'cuLaunchKernel', f, 1, 1, 1, 32, 1, 1, 0, None, None, None)\n"
        "for mode in (0, 1, 2):\n"
        "    gpu.capture(b, mode)\n"
        "    fails(906, 'cuStreamIsCapturing', None, ctypes.byref(ctypes.c_int()))\n"
        "    assert status(b) == 1; legacy(906); end(901, b)\n"
        "gpu.capture(b); elsewhere(lambda: legacy(906)); end(901, b)\n"
        "gpu.capture(s); legacy(0); end(0, s)\n"  # a non-blocking one is not in its way
        "fails(900, 'cuStreamBeginCapture_v2', None, 0)\n"
        "gpu.call('cuStreamBeginCapture_v2', ctypes.c_void_p(2), 0); gpu.launch('k', 1,\n"
        "    ctypes.c_void_p(2)); assert len(nodes(end(0, ctypes.c_void_p(2)))) == 1\n"
    )


def test_captures_end_where_they_began_with_all_streams_joined(tmp_path: Path) -> None:
    Machine(tmp_path).run(
        CAPTURED + "other, e, plain = gpu.stream(), gpu.event(), gpu.event()\n"
        "end(401, s)\n"
        "def fork():\n"
        "    gpu.capture(s); fails(401, 'cuStreamBeginCapture_v2', s, 0)\n"
        "    gpu.launch('k', 1, s); gpu.call('cuEventRecord', e, s)\n"
        "    gpu.call('cuStreamWaitEvent', other, e, 0)\n"
        "fork(); gpu.launch('k', 1, other); end(904, s); assert status(other) == 0\n"
        "fork(); end(0, s)\n"  # nothing was added: the fork is joined as it stands
        "fork(); end(903, other); end(901, s)\n"
        "gpu.capture(s); elsewhere(lambda: end(908, s)); end(0, s)\n"
        "gpu.capture(s, 2); elsewhere(lambda: end(0, s))\n"
        "gpu.call('cuEventRecord', plain, other)\n"
        "gpu.capture(s); fails(905, 'cuStreamWaitEvent', s, plain, 0); end(901, s)\n"
        "gpu.capture(s); gpu.call('cuStreamWaitEvent', s, gpu.event(), 0); end(0, s)\n"
        "gpu.capture(s); gpu.capture(other); gpu.call('cuEventRecord', e, s)\n"
        "fails(902, 'cuStreamWaitEvent', other, e, 0); end(901, s); end(901, other)\n"
        "gpu.capture(s, 2); gpu.call('cuEventRecord', e, s)\n"
        "fails(907, 'cuEventQuery', e); end(901, s)\n"
        "fails(907, 'cuEventSynchronize', e); fails(907, 'cuStreamWaitEvent', other, e, 0)\n"
        "gpu.call('cuEventRecord', e, other); gpu.call('cuEventSynchronize', e)\n"
        "fork(); gpu.call('cuStreamDestroy_v2', other); end(901, s)\n"
        "gpu.capture(s); gpu.call('cuStreamDestroy_v2', s); gpu.call('cuCtxSynchronize')\n"
    )


def test_capture_info_tells_graph_id_and_what_the_next_node_follows(tmp_path: Path) -> None:
    Machine(tmp_path).run(
        CAPTURED + "state, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()\n"
        "tips, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_size_t()\n"
        "def info(version):\n"
        "    out = [ctypes.byref(x) for x in (state, number, graph, tips)]\n"
        "    out += [None] * (version == 3) + [ctypes.byref(count)]\n"
        "    gpu.call('cuStreamGetCaptureInfo_v%d' % version, s, *out)\n"
        "    return state.value, bool(graph.value), [tips[i] for i in range(count.value)]\n"
        "assert info(2) == info(3) == (0, False, [])\n"
        "gpu.capture(s); gpu.launch('a', 1, s); gpu.launch('b', 1, s)\n"
        "info(3); one, two = nodes(graph); assert info(3) == (1, True, [two])\n"
        "gpu.call('cuStreamGetCaptureInfo', s, ctypes.byref(state), ctypes.byref(number))\n"
        "assert number.value > 0\n"
        "only = (ctypes.c_void_p * 1)(one)\n"
        "gpu.call('cuStreamUpdateCaptureDependencies', s, only, ctypes.c_size_t(1), 1)\n"
        "assert info(2)[2] == [one]; gpu.launch('c', 1, s); end(0, s)\n"
        "edges = ctypes.c_size_t()\n"
        "gpu.call('cuGraphGetEdges', graph, None, None, ctypes.byref(edges))\n"
        "assert edges.value == 2\n"
    )


BUILT = """
class Kernel(ctypes.Structure):
    _fields_ = [('function', ctypes.c_void_p), ('grid', ctypes.c_uint * 3),
                ('block', ctypes.c_uint * 3), ('shared', ctypes.c_uint),
                ('parameters', ctypes.c_void_p), ('extra', ctypes.c_void_p),
                ('kernel', ctypes.c_void_p), ('context', ctypes.c_void_p)]
graph = ctypes.c_void_p(); gpu.call('cuGraphCreate', ctypes.byref(graph), 0)
def kernel(name, us, *before):
    node, p = ctypes.c_void_p(), Kernel(gpu.function(name), (us, 1, 1), (32, 1, 1))
    wanted = (ctypes.c_void_p * len(before))(*(b.value for b in before))
    gpu.call('cuGraphAddKernelNode_v2', ctypes.byref(node), graph, wanted,
             ctypes.c_size_t(len(before)), ctypes.byref(p))
    return node
def edge(a, b):
    gpu.call('cuGraphAddDependencies', graph, ctypes.byref(a), ctypes.byref(b), ctypes.c_size_t(1))
"""


def test_graphs_built_by_hand_can_be_asked_cloned_and_updated(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.run(
        CAPTURED + BUILT + "c = kernel('c', 30); a = kernel('a', 10); b = kernel('b', 20, a)\n"
        "edge(b, c)\n"  # the order in which nodes were made is not that of the edges
        "run = gpu.instantiate(graph); gpu.call('cuGraphLaunch', run, s)\n"
        "p = Kernel(); gpu.call('cuGraphKernelNodeGetParams_v2', b, ctypes.byref(p))\n"
        "assert p.function == gpu.function('b').value and list(p.grid) == [20, 1, 1]\n"
        "clone, twin = ctypes.c_void_p(), ctypes.c_void_p()\n"
        "gpu.call('cuGraphClone', ctypes.byref(clone), graph)\n"
        "gpu.call('cuGraphNodeFindInClone', ctypes.byref(twin), b, clone)\n"
        "assert twin.value in nodes(clone) and twin.value not in nodes(graph)\n"
        "gpu.call('cuGraphLaunch', gpu.instantiate(clone), s)\n"
        "old = graph\n"
        "class Info(ctypes.Structure):\n"
        "    _fields_ = [('result', ctypes.c_int), ('nodes', ctypes.c_void_p * 2)]\n"
        "graph = ctypes.c_void_p(); gpu.call('cuGraphCreate', ctypes.byref(graph), 0)\n"
        "c = kernel('c', 33); a = kernel('a', 11); b = kernel('b', 22, a); edge(b, c)\n"
        "info = Info(); gpu.call('cuGraphExecUpdate_v2', run, graph, ctypes.byref(info))\n"
        "gpu.call('cuGraphLaunch', run, s)\n"
        "edge(a, c); fails(910, 'cuGraphExecUpdate_v2', run, graph, ctypes.byref(info))\n"
        "assert info.result == 2\n"
        "edge(c, a); made = ctypes.c_void_p()\n"
        "fails(1, 'cuGraphInstantiateWithFlags', ctypes.byref(made), graph, ctypes.c_uint64(0))\n"
        "fails(801, 'cuGraphInstantiateWithFlags', ctypes.byref(made), old, ctypes.c_uint64(4))\n"
        "gpu.synchronize(s)\n"
    )
    log = kernels(machine.log())
    for launch, scale in enumerate((10, 10, 11)):
        a, b, c = (log[name][launch] for name in "abc")
        assert [op.end_ns - op.start_ns for op in (a, b, c)] == [
            scale * 1000,
            2 * scale * 1000,
            3 * scale * 1000,
        ]
        assert ready_after(b, a.end_ns)
        assert ready_after(c, b.end_ns)


def test_a_graph_wider_than_its_lanes_and_longer_than_a_queue_runs_whole(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.run(
        CAPTURED + BUILT + "last = kernel('last', 1)\n"
        "for i in range(40):\n"
        "    node = kernel('deep', 1)\n"
        "    for _ in range(40): node = kernel('deep', 1, node)\n"
        "    edge(node, last)\n"
        "run = gpu.instantiate(graph)\n"
        "for _ in range(2): gpu.call('cuGraphLaunch', run, s)\n"
        "gpu.synchronize(s)\n"
    )
    log = kernels(machine.log())
    assert len(log["deep"]) == 2 * 40 * 41
    for launch in (1, 2):
        deep = [op for op in log["deep"] if op.graph_launch == launch]
        (last,) = [op for op in log["last"] if op.graph_launch == launch]
        assert last.start_ns >= max(op.end_ns for op in deep)
