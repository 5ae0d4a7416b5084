#!/bin/bash
# Builds the C parts into build/ (or $BUILD): interposer, simulated GPU, SPANK plugin.
# SFILL_PREBUILT=1: they were built elsewhere and carried here; nothing is compiled.
set -euo pipefail
[ -z "${SFILL_PREBUILT:-}" ] || exit 0
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${BUILD:-$repository/build}
mkdir -p "$build"
exec 9>"$build/.lock"
flock 9
for part in agent/shim deploy/sandbox/simgpu slurm_plugin/spank; do
    make --no-print-directory -s -j2 -C "$repository/$part" BUILD="$build"
done
