#!/bin/bash
# One empty home per node and run on the node's disk: caches land there once for all ranks, and nothing of ~ comes in.
# Whoever uses it holds a shared lock on it, so that the last to leave removes it, and so that what killed runs left behind
# can be told from what is in use.
# shellcheck disable=SC2034,SC2154  # variables of other parts

CT_HOME_TRIES=50 # to create a home; each loses against one that removes it
ct_home=''

use_home() { # RUN_KEY EXTENSIONS_KEY: sets home, which the first one frees of locks of compilations of an earlier attempt
  local base=${TMPDIR:-/tmp} old tries=0 # the submitting host's may be missing here; engines read ':' and ',' as separators
  [[ $base == /* && -d $base && -w $base && $base != *[:,\\\"[:cntrl:]]* ]] || base=/tmp
  ct_home=$base/ctrain-$UID-$node.$1 # a node's own, where TMPDIR is shared: locks on NFS may be local
  for old in "$base/ctrain-$UID-$node."*; do # what runs left behind that were killed
    [ "$old" = "$ct_home" ] || [ -L "$old" ] || [ ! -O "$old" ] || remove_unused "$old"
  done
  until [ "$ct_home" -ef /dev/fd/8 ]; do # again while the last user of it removes it
    if has_home || mkdir -m 700 "$ct_home" 2>/dev/null || has_home; then
      { exec 8<"$ct_home"; } 2>/dev/null && { ! flock -n -x 8 || free_extensions; } && flock -s 8
    elif ((++tries > CT_HOME_TRIES)); then
      refuse 73 "cannot create a home in $base on $node"
    fi
  done
  [ -d "$ct_home/.heartbeat" ] || mkdir -p "$ct_home/.heartbeat"
  ct_extensions_key=$2 ct_made=$ct_home/.cache/torch_extensions
  take_extensions
}
has_home() { # of this user
  [ -d "$ct_home" ] && [ -O "$ct_home" ] && [ ! -L "$ct_home" ]
}
remove_unused() { # DIRECTORY: unless another process holds it
  (exec 7<"$1" && flock -n -x 7 && rm -rf "$1") 2>/dev/null
}
leave_home() {
  exec 8<&-
  (exec 7<"$ct_home" && flock -n -x 7 && { [ "$code" != 0 ] || keep_extensions; end_watch_of_node; rm -rf "$ct_home"; }) 2>/dev/null
}
