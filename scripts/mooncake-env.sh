#!/usr/bin/env bash
# Create the environment in which a real Mooncake store is used: scripts/mooncake-env.sh [FOLDER]
#
# FOLDER defaults to .venv-mooncake, below the repository. PYTHON chooses the interpreter, PIP_ARGS
# is passed to pip (for instance an index with CPU builds of torch). Installs the system libraries
# that Mooncake loads where it may, as root on Debian, and goes on without where it may not: tests
# then say what is missing. Quick when run again.
set -euo pipefail

cd "$(dirname "$0")/.."
folder=${1:-.venv-mooncake}
python=${PYTHON:-python3.11}
package=mooncake-transfer-engine-non-cuda==0.3.13.post1
libraries=(libibverbs1 libnuma1 libcurl4)
export PIP_DISABLE_PIP_VERSION_CHECK=1

missing=()
for library in libibverbs.so.1 libnuma.so.1 libcurl.so.4; do
    "$python" -c "import ctypes; ctypes.CDLL('$library')" 2>/dev/null || missing+=("$library")
done
if ((${#missing[@]})); then
    echo "Mooncake loads ${missing[*]}, which is not here: apt-get install ${libraries[*]}"
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        { timeout 120 apt-get install -qq -y "${libraries[@]}" ||
            { timeout 120 apt-get update -qq && timeout 120 apt-get install -qq -y "${libraries[@]}"; }
        } >/dev/null 2>&1 </dev/null || echo "  that failed; going on without" >&2
    fi
fi

stamp=$(cat scripts/mooncake-env.sh constraints.txt pyproject.toml | sha256sum | cut -d' ' -f1)
if [[ -f $folder/.ready && $(<"$folder/.ready") == "$stamp" ]]; then
    exit 0
fi

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "$python is too old: cowtail needs Python 3.11 or newer; set PYTHON=..." >&2
    exit 2
}

install() {
    # shellcheck disable=SC2086  # PIP_ARGS is a list of words.
    "$folder/bin/pip" install --quiet ${PIP_ARGS:-} "$@"
}

echo "creating $folder for $package (a minute or two, once)"
"$python" -m venv "$folder"
echo "  1/3 torch"
install -c constraints.txt torch
echo "  2/3 $package"
install "$package"
echo "  3/3 cowtail and its tools"
install -c constraints.txt attrs cattrs hypothesis networkx pytest rich typer
install --no-deps -e .
"$folder/bin/python" -W ignore -c 'import cowtail.impl.torch_engine.mooncake_store'
echo "$stamp" > "$folder/.ready"
