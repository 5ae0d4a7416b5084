#!/bin/bash
# The measurements that need a real GPU, on a GPU host (with or without network), as root:
#   bash tests/hardware/run.sh [stall] [power] [start] [demo] [rescue] [faults] [mps] [bench] [chaos]
#     [cost] [proof] [latency]
# Default: stall, power, start and demo.
# Results go to $OUT (default build/hardware): one JSON a measurement. On a host without network set
# SFILL_DEBS and SFILL_WHEELS (see machine.sh). SFILL_ROUNDS: rounds of alternating blocks (20).
# SFILL_STALL_ARGS: more arguments of tests.bench.stall (--inference, --infer-batch, --pairs, --name).
# chaos: tests/chaos for SFILL_CHAOS_MINUTES (8), with SFILL_CHAOS_SEED (1); two minutes more in all.
# bench: cells of tests/bench, for SFILL_BENCH_SECONDS (540) from the script's start, with
# SFILL_BENCH_ARGS (filters and the like); earlier results are taken from tests/bench/results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=${OUT:-$PWD/build/hardware}
mkdir -p "$out"
[ -z "${SFILL_DEBS:-}" ] || . tests/hardware/machine.sh
python=$(bash deploy/python-env.sh)
export PYTHONPATH=$PWD SFILL_BENCH_PYTHON=$python
export PYTHONUNBUFFERED=1
stages=("$@")
[ $# -gt 0 ] || stages=(stall power start demo)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1)
cuda=$("$python" -c 'import torch; print(torch.version.cuda)')
sandbox=/tmp/sfill-hardware
accounting=()
[ -z "${SFILL_SLURM_ROOT:-}" ] || accounting=(--no-accounting)

with_sandbox() {
    bash deploy/sandbox/up "$sandbox" --nodes 1 --gpus real "${accounting[@]}" --no-web || return 1
    local result=0
    "$@" || result=$?
    for log in sfilld-n1 sfillctld; do cp "$sandbox/log/$log.out" "$out/$log.txt" || true; done
    bash deploy/sandbox/down "$sandbox" || result=1
    return "$result"
}
bench() {
    # shellcheck disable=SC2086 # arguments are words
    "$python" -m tests.bench.stall --sandbox "$sandbox" --out "$out" --driver "$driver" \
        --cuda "$cuda" --rounds "${SFILL_ROUNDS:-20}" ${SFILL_STALL_ARGS:-} "$@"
}
stage_stall() { with_sandbox bench; }
stage_power() { with_sandbox bench --infer-batch 64 --rounds 8 --pairs 0 --name stall-power; }
stage_start() { "$python" -m tests.hardware.start --out "$out" --driver "$driver"; }
stage_rescue() {
    with_sandbox "$python" -m tests.hardware.rescue --sandbox "$sandbox" --out "$out" \
        --driver "$driver"
}
stage_faults() { "$python" -m tests.hardware.faults --out "$out" --driver "$driver"; }
stage_cost() { "$python" -m tests.hardware.cost --out "$out" --driver "$driver" --cuda "$cuda"; }
stage_proof() { "$python" -m tests.hardware.proof --out "$out" --driver "$driver" --cuda "$cuda"; }
stage_latency() {
    "$python" -m tests.hardware.latency --out "$out" --driver "$driver" --cuda "$cuda"
}
stage_mps() {
    with_sandbox "$python" -m tests.hardware.mps --sandbox "$sandbox" --out "$out" \
        --driver "$driver" || return 1
    # `down` leaves no daemon; nobody may be there to reap a dead one.
    ! ps -eo stat=,args= | grep -v '^Z' | grep '[n]vidia-cuda-mps'
}
stage_bench() { with_sandbox cells; }
cells() {
    local known=() file
    for file in tests/bench/results/bench*.json; do
        [ ! -e "$file" ] || known+=(--known "$file")
    done
    # shellcheck disable=SC2086 # arguments are words
    "$python" -m tests.bench --out /tmp/sfill-bench --collect "$out" --sandbox "$sandbox" \
        --seconds $((${SFILL_BENCH_SECONDS:-540} - SECONDS - 15)) "${known[@]}" \
        ${SFILL_BENCH_ARGS:-}
}
stage_chaos() { with_sandbox chaos; }
chaos() {
    "$python" -m tests.chaos --sandbox "$sandbox" --minutes "${SFILL_CHAOS_MINUTES:-8}" \
        --seed "${SFILL_CHAOS_SEED:-1}" --out "$out/chaos-h200.json"
}
stage_demo() {
    SFILL_DEMO_DIR=/tmp/sfill-demo bash deploy/demo.sh --once
    cp /tmp/sfill-demo/demo-result.json "$out/demo-h200.json"
}

failed=0
for stage in "${stages[@]}"; do
    declare -F "stage_$stage" >/dev/null || {
        echo "tests/hardware/run.sh: $stage is no stage; see its first lines" >&2
        exit 2
    }
    started=$SECONDS
    echo "== $stage"
    "stage_$stage" || failed=1
    echo "== $stage took $((SECONDS - started)) s"
done
exit "$failed"
