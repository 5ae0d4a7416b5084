"""Five processes at a time do everything the driver knows on two GPUs, and many are killed: the
log keeps its laws and nobody hangs."""

import random
import subprocess
import time
from pathlib import Path

from deploy.sandbox.simgpu.log_file import GpuLog, Kind
from tests.unit.simgpu_machine import Machine

SECONDS = 8.0
SWITCH_NS = 130_000

PROGRAM = """
import random, time
dice = random.Random({seed})
gpu.use(dice.randrange(2))
streams = [None, gpu.stream(), gpu.stream(blocking=True), gpu.stream(), ctypes.c_void_p(2)]
words = gpu.words(); at = ctypes.addressof(words)
events = [gpu.event() for _ in range(4)]
device = ctypes.c_uint64(gpu.allocate(1 << 20)); host = ctypes.create_string_buffer(4096)
size = ctypes.c_size_t(4096)
function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
waits = 0
fork, join = gpu.event(), gpu.event()
gpu.capture(streams[1]); gpu.call('cuEventRecord', fork, streams[1])
gpu.call('cuStreamWaitEvent', streams[3], fork, 0); gpu.launch('ncclGraph', 50, streams[3])
for i in range(6): gpu.launch('graph', 1 + 9 * i, streams[1])
gpu.call('cuEventRecord', join, streams[3]); gpu.call('cuStreamWaitEvent', streams[1], join, 0)
run = gpu.instantiate(gpu.end_capture(streams[1]))
end = time.monotonic() + {seconds}
def released(stream):
    global waits
    waits += 1
    gpu.wait(stream, at, waits); gpu.launch('behind', 5, stream)
    time.sleep(dice.random() * 0.002); words[0] = waits
def spun(stream):
    global waits
    waits += 1
    gpu.spin('ncclPeer', 5, stream, at, waits); gpu.launch('behind', 5, stream)
    time.sleep(dice.random() * 0.002); words[0] = waits
def passing(stream):
    own = gpu.stream(); gpu.launch('passing', 20, own); gpu.call('cuStreamDestroy_v2', own)
actions = (
    [lambda s: gpu.launch('k%d' % dice.randrange(9), dice.randrange(1, 400), s)] * 50
    + [lambda s: gpu.write(s, at + 8 * dice.randrange(1, 40), 1)] * 10
    + [lambda s: gpu.call('cuEventRecord', dice.choice(events), s)] * 6
    + [lambda s: gpu.call('cuStreamWaitEvent', s, dice.choice(events), 0)] * 6
    + [lambda s: gpu.call('cuMemcpyHtoDAsync_v2', device, host, size, s)] * 4
    + [lambda s: gpu.call('cuMemcpyDtoH_v2', host, device, size)] * 4
    + [lambda s: gpu.call('cuLaunchHostFunc', s, function, None)] * 2
    + [lambda s: gpu.call('cuGraphLaunch', run, s)] * 4
    + [lambda s: gpu.launch('ncclAllReduce', dice.randrange(1, 400), s)] * 6
    + [released] * 4 + [spun] * 3 + [passing] + [gpu.synchronize] * 4
    + [lambda s: time.sleep(dice.random() / 100)] * 2
    + [lambda s: gpu.call('cuCtxSynchronize'), lambda s: gpu.call('cuEventSynchronize', events[0])]
)
while time.monotonic() < end:
    dice.choice(actions)(dice.choice(streams))
gpu.call('cuCtxSynchronize')
"""


def broken_laws(log: GpuLog) -> list[str]:
    """Every way in which the log contradicts what a GPU can do."""
    found = []
    busy = sorted(
        (o for o in log.operations if o.kind <= Kind.SET and not o.spins), key=lambda o: o.start_ns
    )
    ended: dict[int, int] = {}  # by context; communication may run beside compute of its own
    computed: dict[int, int] = {}
    for op in busy:
        if any(op.start_ns < t + SWITCH_NS for c, t in ended.items() if c != op.context):
            found.append(f"{op} began too soon after another context")
        if not op.communication and op.start_ns < computed.get(op.context, 0):
            found.append(f"{op} ran beside its own context's work")
        ended[op.context] = max(op.end_ns, ended.get(op.context, 0))
        if not op.communication:
            computed[op.context] = op.end_ns
    last_of: dict[tuple[int, int], int] = {}
    for op in log.operations:
        if not op.launch_ns <= op.ready_ns <= op.start_ns <= op.end_ns:
            found.append(f"{op}: times out of order")
        stream = (op.context, op.stream)
        if op.start_ns < last_of.get(stream, 0):
            found.append(f"{op} overtook its stream")
        last_of[stream] = op.end_ns
    return found


def test_a_crowd_with_many_killed_keeps_the_laws(tmp_path: Path) -> None:
    machine = Machine(tmp_path, gpus=2)
    dice = random.Random(7)
    killed = finished = 0
    live: list[tuple[subprocess.Popen[str], float, bool]] = []  # when to be killed; or it hangs
    stop = time.monotonic() + SECONDS
    while live or time.monotonic() < stop:
        if len(live) < 5 and time.monotonic() < stop:
            code = PROGRAM.format(seed=dice.randrange(10**9), seconds=dice.uniform(0.2, 2))
            doomed = dice.random() < 0.4
            deadline = time.monotonic() + (dice.uniform(0.3, 1.5) if doomed else 30)
            live.append((machine.start(code), deadline, doomed))
        for process, deadline, doomed in list(live):
            if process.poll() is None and time.monotonic() > deadline:
                assert doomed, "a process hangs"
                process.kill()
                killed += process.wait() != 0
            if process.poll() is not None:
                _, err = process.communicate()
                assert process.returncode in (0, -9), err
                finished += process.returncode == 0
                live.remove((process, deadline, doomed))
        time.sleep(0.02)
    assert killed >= 2
    assert finished >= 4
    for gpu in (0, 1):
        log = machine.log(gpu)
        assert len(log.operations) > 1000
        assert {"graph", "ncclGraph", "ncclPeer", "ncclAllReduce"} <= {
            o.name for o in log.operations
        }
        assert broken_laws(log) == []
    machine.run("gpu.launch('after', 10); gpu.synchronize()")
