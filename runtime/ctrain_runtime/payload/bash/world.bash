#!/bin/bash
# The scan: who joins the world of the run, by scan.py on each node (docs/one-world.md). The node's first task starts it, before
# anything is open that it must not hold; it waits for a second with bash alone, as runs that end at once have no scan.
# shellcheck disable=SC2034,SC2154  # variables of other parts, and of the scripts

CT_PYTHONS=(/usr/bin/python3 /usr/libexec/platform-python python3) # one that is not on the shared file system first
ct_scan=''
find_python() { # sets python to one of 3.6 or later, or to ""
  for python in "${CT_PYTHONS[@]}" ''; do
    ! "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 6))' || break
  done
} 2>/dev/null
start_scan() { # LAUNCHER NODES RANKS_PER_NODE [COMMAND...], which prints the names of the hosts
  [ "$local_task" = 0 ] && [ "$ct_stage" != preflight ] || return 0
  scan_world "$@" &
  ct_scan=$!
}
scan_world() {
  local python hosts=()
  exec </dev/null >/dev/null 2>&1 4<> <(:) # nobody writes to it
  read -r -t 1 -u 4
  [ "$#" = 3 ] || mapfile -t hosts < <("${@:4}")
  find_python
  [ -z "$python" ] || exec "$python" -I -S "$run/scan.py" "$run" "$1" "$NODE_RANK" "$2" "$3" "${hosts[@]}"
}
end_scan() { # with its task, which fails if the scan has stopped it
  local parent=''
  [ -n "$ct_scan" ] || return 0
  read -r _ _ _ parent _ <"/proc/$ct_scan/stat" # it may have ended long ago, and another process have its number
  [ "$parent" != "$$" ] || kill "$ct_scan"
  wait "$ct_scan"
  [ "$?" != 81 ] || code=81
} 2>/dev/null
