#!/bin/bash
# ctrain as a user's own machine has sent it to a login node: its bin/ctrain, by a Python there that is new enough.
root=$(cd "${BASH_SOURCE[0]%/*}/.." && pwd) || exit
for python in python3 python3.{14,13,12,11,10,9}; do
  if "$python" -E -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
    exec "$python" -E "$root" "$@" # which starts its __main__.py
  fi
done
echo "ctrain: no Python 3.9 or newer on PATH of login shells. Load one in ~/.bash_profile, as by: module load python" >&2
exit 1
