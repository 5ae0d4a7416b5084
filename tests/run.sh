#!/bin/bash
# Every check and test, from a clean clone: installs what is missing, builds, then runs each stage
# even when an earlier one failed, and ends with one line a stage. As root (it boots slurmd).
#
#   bash tests/run.sh             everything
#   bash tests/run.sh unit web    these stages only
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

stages=(style types c-style unit cluster web)
[ $# -eq 0 ] || stages=("$@")
[ "$(id -u)" -eq 0 ] || {
    echo "tests/run.sh: must run as root: the cluster tests boot slurmd" >&2
    exit 2
}

began=$SECONDS
bash deploy/packages.sh --tests
python=$(bash deploy/python-env.sh --dev)
bash deploy/build.sh
echo "tests: packages, environment and build took $((SECONDS - began)) s"

stage_style() { "$python" -m ruff check . && "$python" -m ruff format --check .; }
stage_types() { "$python" -m mypy --strict; }
stage_c-style() {
    local files
    mapfile -t files < <(git ls-files '*.c' '*.h')
    clang-format --dry-run -Werror "${files[@]}"
}
stage_unit() {
    local result=0
    # Most of them wait more than they compute: four workers keep two cores busy.
    "$python" -m pytest tests/unit -m "not alone" -n 4 --dist loadfile || result=1
    "$python" -m pytest tests/unit -m alone || result=1
    return "$result"
}
stage_cluster() { "$python" -m pytest tests/cluster; }
stage_web() { "$python" -m pytest tests/web; }

failed=0
report=()
for stage in "${stages[@]}"; do
    declare -F "stage_$stage" >/dev/null || {
        echo "tests/run.sh: $stage is no stage; they are style, types, c-style, unit, cluster, web" >&2
        exit 2
    }
    echo "== $stage"
    started=$SECONDS
    if "stage_$stage"; then result=ok; else
        result=FAILED
        failed=1
    fi
    report+=("$(printf '%-8s %-6s %4d s' "$stage" "$result" $((SECONDS - started)))")
done
echo "== all stages, $((SECONDS - began)) s"
printf '%s\n' "${report[@]}"
exit "$failed"
