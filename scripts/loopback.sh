#!/usr/bin/env bash
# Run a command where loopback is the only network: scripts/loopback.sh COMMAND [ARGUMENT...]
#
# Mooncake's clients listen on every address, whatever they are told. In a network namespace of its
# own a test run can neither be reached nor meet another. Linux, as root or with user namespaces;
# where there are none the command runs all the same, after a line that says so.
set -euo pipefail

up="$(dirname "$0")/loopback-up.py"
python=${PYTHON:-python3.11}
for isolated in "unshare --net" "unshare --net --map-current-user --keep-caps"; do
    # shellcheck disable=SC2086  # the command and its options.
    if $isolated "$python" "$up" 2>/dev/null; then
        exec $isolated "$python" "$up" "$@"
    fi
done
echo "no network namespace can be made here: Mooncake's clients will listen on every address" >&2
exec "$@"
