#!/bin/bash
# Installs the Debian or Ubuntu packages that the product needs and that are missing:
#   deploy/packages.sh [--tests]        --tests: with what the tests need besides
# SFILL_SLURM_ROOT  a folder of unpacked packages (deploy/sandbox/fetch-debs): nothing is installed
set -euo pipefail

product=(
    slurmctld slurmd slurmdbd slurm-client slurm-wlm-basic-plugins slurm-wlm-mysql-plugin
    munge mariadb-server mariadb-client
    python3 python3-venv
    gcc make libc6-dev libslurm-dev
    procps util-linux
)
tests=(chromium clang-format git lua5.1 valgrind)

case "${1:-}" in
"") wanted=("${product[@]}") ;;
--tests) wanted=("${product[@]}" "${tests[@]}") ;;
*)
    echo "usage: deploy/packages.sh [--tests]" >&2
    exit 2
    ;;
esac

if [ -n "${SFILL_SLURM_ROOT:-}" ]; then
    echo "packages: Slurm is taken from $SFILL_SLURM_ROOT; nothing is installed"
    exit 0
fi
missing=()
for package in "${wanted[@]}"; do
    status=$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null || true)
    [ "${status%% *}" = ii ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
    echo "packages: missing, and only root can install them: ${missing[*]}" >&2
    exit 1
fi
echo "packages: installing ${missing[*]}"
began=$SECONDS
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
# RUNLEVEL=1: the packages' own services stay stopped; the sandbox runs its own.
RUNLEVEL=1 apt-get -qq -y -o Dpkg::Use-Pty=0 install --no-install-recommends "${missing[@]}" \
    </dev/null >/dev/null
echo "packages: done in $((SECONDS - began)) s"
