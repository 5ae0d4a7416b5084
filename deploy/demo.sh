#!/bin/bash
# The main job, end to end, on this machine: installs what is missing, builds, boots a real Slurm in
# a folder, runs a training alone and then beside a fill job, and shows the record of it.
#
#   bash deploy/demo.sh            leaves everything up, with the dashboard
#   bash deploy/demo.sh --once     stops everything at the end
#   bash deploy/demo.sh --down     stops one that runs
#
# Uses a real GPU when one is usable, else the simulated one (and says so). SFILL_DEMO_DIR names the
# folder (default /tmp/sfill-demo).
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${SFILL_DEMO_DIR:-/tmp/sfill-demo}
once=no
[ $# -le 1 ] || {
    echo "demo.sh: $# arguments; allowed is one of --once and --down, or none" >&2
    exit 2
}
case "${1:-}" in
"" | --down) ;;
--once) once=yes ;;
*)
    echo "demo.sh: $1 is not known; allowed are --once and --down" >&2
    exit 2
    ;;
esac
[ "$(id -u)" = 0 ] || {
    echo "demo.sh: must run as root (it boots slurmd, which changes to the users of the jobs)" >&2
    exit 2
}
if [ "${1:-}" = --down ]; then
    exec bash "$repository/deploy/sandbox/down" "$folder"
fi
# A second one would take the first one's Slurm down under it. No daemon inherits descriptor 9.
mkdir -p /run/lock
exec 9>"/run/lock/sfill-demo$(realpath -m -- "$folder" | tr -c '[:alnum:]\n' -).lock"
flock --nonblock 9 || {
    echo "demo.sh: a demo is being run in $folder; wait for it, or name another SFILL_DEMO_DIR" >&2
    exit 1
}

began=$SECONDS
say() { echo "[demo $((SECONDS - began)) s] $*"; }

usable_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU '; }

say "installing what is missing"
bash "$repository/deploy/packages.sh"
python=$(bash "$repository/deploy/python-env.sh")
say "building"
bash "$repository/deploy/build.sh"

arguments=()
if usable_gpu && "$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())'; then
    say "a real GPU is here: $(nvidia-smi -L | head -1 | sed 's/ (UUID.*//')"
    gpus=real
else
    say "no usable GPU (with torch) here: the GPU is SIMULATED; figures show the path, not speed"
    gpus=sim:1
    arguments+=(--simulated)
fi

bash "$repository/deploy/sandbox/down" "$folder" >/dev/null 2>&1 || true
say "booting Slurm in $folder"
accounting=()
[ -n "${SFILL_SLURM_ROOT:-}" ] && accounting=(--no-accounting)
bash "$repository/deploy/sandbox/up" "$folder" --nodes 1 --gpus "$gpus" "${accounting[@]}"
finish() {
    [ "$once" = yes ] || return 0
    say "stopping everything"
    bash "$repository/deploy/sandbox/down" "$folder"
}
trap finish EXIT
for user in sfilluser1 sfilluser2; do
    id "$user" >/dev/null 2>&1 || useradd --no-create-home --shell /bin/bash "$user"
done

dashboard=$(. "$folder/env" && echo "${SFILL_WEB_URL:-}")
PYTHONPATH="$repository${PYTHONPATH:+:$PYTHONPATH}" "$python" -m deploy.demo "$folder" \
    --dashboard "$dashboard" "${arguments[@]}" | tee "$folder/demo.log"
result=$(tail -n 1 "$folder/demo.log")
if [ "$once" = yes ]; then
    finish
    trap - EXIT
else
    say "everything stays up; stop it with: bash deploy/demo.sh --down"
fi
say "done"
echo "$result"
