#!/usr/bin/env bash
# Create the environment in which the HTML page is tested: scripts/browser-env.sh [FOLDER]
#
# FOLDER defaults to .venv-browser, below the repository. PYTHON chooses the interpreter, PIP_ARGS
# is passed to pip (for instance an index with CPU builds of torch). Installs Debian's Chromium
# where it may, as root, and goes on without where it may not: the tests are then skipped, and say
# so. Quick when run again.
set -euo pipefail

cd "$(dirname "$0")/.."
folder=${1:-.venv-browser}
python=${PYTHON:-python3.11}
export PIP_DISABLE_PIP_VERSION_CHECK=1

if [[ ! -x ${COWTAIL_CHROMIUM:-/usr/bin/chromium} ]]; then
    echo "Chromium is not here: apt-get install chromium"
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        { timeout 300 apt-get install -qq -y --no-install-recommends chromium chromium-driver ||
            { timeout 120 apt-get update -qq &&
                timeout 300 apt-get install -qq -y --no-install-recommends chromium chromium-driver; }
        } >/dev/null 2>&1 </dev/null || echo "  that failed; going on without" >&2
    fi
fi

stamp=$(cat scripts/browser-env.sh constraints.txt pyproject.toml | sha256sum | cut -d' ' -f1)
if [[ -f $folder/.ready && $(<"$folder/.ready") == "$stamp" ]]; then
    exit 0
fi

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "$python is too old: cowtail needs Python 3.11 or newer; set PYTHON=..." >&2
    exit 2
}

echo "creating $folder (a minute or two, once)"
"$python" -m venv "$folder"
# shellcheck disable=SC2086  # PIP_ARGS is a list of words.
"$folder/bin/pip" install --quiet ${PIP_ARGS:-} -c constraints.txt -e '.[browser]'
"$folder/bin/python" -W ignore -c 'import playwright.sync_api, cowtail'
echo "$stamp" > "$folder/.ready"
