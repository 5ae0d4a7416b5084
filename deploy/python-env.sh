#!/bin/bash
# Prints the Python interpreter to run the product with, making its virtual environment first if
# that is missing or older than pyproject.toml:
#   deploy/python-env.sh [--dev]        --dev: with what the tests need
# SFILL_PYTHON  an interpreter that has the dependencies; nothing is made or checked then
# SFILL_VENV    the environment's folder (default: /opt/sfill/venv as root, else .venv here)
# SFILL_WHEELS  a folder of wheels to install from, without network
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
oldest="3.11"

say() { echo "python-env: $*" >&2; }

# Ordinary users run parts of the product inside their jobs, so they must be able to execute it.
suits() {
    local python=$1 as_user=()
    [ -x "$python" ] || return 1
    [ "$(id -u)" -ne 0 ] || as_user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
    "${as_user[@]}" "$python" -c "
import ensurepip, sys, venv
sys.exit(sys.version_info < (${oldest/./, }))" 2>/dev/null
}

find_python() {
    local candidate
    for candidate in /usr/bin/python3 /usr/bin/python3.{14,13,12,11} /usr/local/bin/python3 \
        "$(command -v python3 || true)"; do
        if suits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    say "no Python >= $oldest with venv that ordinary users can execute; run deploy/packages.sh"
    return 1
}

# The product's requirements, one a line.
requirements() {
    "$1" - "$repository/pyproject.toml" "${extras[@]}" <<'PYTHON'
import sys, tomllib
project = tomllib.load(open(sys.argv[1], "rb"))["project"]
lines = project["dependencies"]
for extra in sys.argv[2:]:
    lines += project["optional-dependencies"][extra]
print("\n".join(lines))
PYTHON
}

make_environment() {
    local python began=$SECONDS from=()
    if [ ! -x "$venv/bin/python" ]; then
        python=$(find_python)
        say "making $venv with $python"
        mkdir -p "$(dirname "$venv")"
        "$python" -m venv "$venv"
    fi
    [ -z "${SFILL_WHEELS:-}" ] || from=(--no-index --find-links "$SFILL_WHEELS")
    say "installing the dependencies of pyproject.toml; its extras: ${extras[*]:-none}"
    requirements "$venv/bin/python" >"$venv/requirements.txt"
    # Readable for users whatever the caller's umask.
    (umask 022 && "$venv/bin/python" -m pip install --quiet --quiet --disable-pip-version-check \
        "${from[@]}" -r "$venv/requirements.txt") >&2
    echo "$wanted" >"$stamp"
    say "done in $((SECONDS - began)) s"
}

case "${1:-}" in
"") extras=() ;;
--dev) extras=(dev mariadb) ;;
*)
    echo "usage: deploy/python-env.sh [--dev]" >&2
    exit 2
    ;;
esac
if [ -n "${SFILL_PYTHON:-}" ]; then
    echo "$SFILL_PYTHON"
    exit
fi
if [ "$(id -u)" -eq 0 ]; then venv=/opt/sfill/venv; else venv=$repository/.venv; fi
venv=${SFILL_VENV:-$venv}
stamp=$venv/sfill-stamp${1:-}
wanted=$(cat "$repository/pyproject.toml" "${BASH_SOURCE[0]}" | sha256sum)
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    mkdir -p "$(dirname "$venv")"
    exec 9>"$venv.lock"
    flock 9
    [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] || make_environment
fi
echo "$venv/bin/python"
