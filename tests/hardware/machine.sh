#!/bin/bash
# Sets up a GPU host without network for the hardware runs; source it.
#   SFILL_DEBS    folder of Debian packages (deploy/sandbox/fetch-debs), unpacked, not installed
#   SFILL_WHEELS  folder of Python wheels that the host's own Python (with torch) lacks
# Afterwards: SFILL_PYTHON, SFILL_SLURM_ROOT and SFILL_PREBUILT are set as deploy/ reads them.
set -euo pipefail
work=${SFILL_MACHINE_DIR:-/tmp/sfill-machine}
mkdir -p "$work/slurm" "$work/site"
for package in "${SFILL_DEBS:?}"/*.deb; do dpkg -x "$package" "$work/slurm"; done
base=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
    --target "$work/site" "${SFILL_WHEELS:?}"/*.whl
# An interpreter of our own that sees the host's torch and the wheels, the wheels first.
python=$(readlink -f "$(command -v python3)")
"$python" -m venv --without-pip "$work/venv"
packages=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf '%s\n%s\n' "$work/site" "$base" >"$packages/host.pth"
chmod -R a+rX "$work"
for user in sfilluser1 sfilluser2; do
    id "$user" >/dev/null 2>&1 || useradd --create-home --shell /bin/bash "$user"
done
export SFILL_PYTHON="$work/venv/bin/python" SFILL_SLURM_ROOT="$work/slurm" SFILL_PREBUILT=1
