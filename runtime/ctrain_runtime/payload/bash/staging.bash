#!/bin/bash
# Files on a node's own disk: stage.sh has them copied there, and tasks use the copy where there is one.
# shellcheck disable=SC2034,SC2154  # variables of other parts, and of the scripts

CT_COPIES_DAYS=7 # after its last use, a copy stays on its node for so long

is_own_directory() { # DIRECTORY
  [ -O "$1" ] && [ ! -L "$1" ]
}
copy_to_disk() { # FILE SIZE NAME PARENT SECONDS HOSTS_COMMAND...: by relay.py, from node to node. A node that cannot do that
  # is named, and does without.
  local file=$1 size=$2 name=$3 directory=$4/ctrain-images-$UID seconds=$5 before='' port=0 hosts python
  [ "$task" != 0 ] || echo "copying $file to $directory on each node"
  ! is_own_directory "$directory" || # a copy in use is locked
    find "$directory" -maxdepth 1 -type f -mtime "+$CT_COPIES_DAYS" -exec flock -n {} rm -f {} \;
  mapfile -t hosts < <("${@:6}")
  [ "$task" = 0 ] || before=${hosts[task - 1]}:$MASTER_PORT
  ((task + 1 >= ${#hosts[@]})) || port=$MASTER_PORT
  find_python
  [ "$python" ] || {
    echo "ctrain: $file not copied to $node: no Python 3.6 or later there. Ranks there read the shared file" >&2
    exit 1
  }
  exec "$python" -I "$run/relay.py" "$file" "$size" "$name" "$directory" "$run/.stage" "$seconds" "$before" "$port"
}
find_copy() { # FILE SIZE NAME PARENT: sets copy, to the copy if this node has one, else to the file. A lock says that it is
  # in use, for as long as what the task starts has the file open. After a crash of the node, it may be shorter than the file.
  local directory=$4/ctrain-images-$UID made=$4/ctrain-images-$UID/$3 in_use # complete: it got this name when checked
  copy=$1
  if is_own_directory "$directory" && [ "$(stat -c %s "$made" 2>/dev/null)" = "$2" ] &&
    { exec {in_use}<"$made"; } 2>/dev/null && flock -s -n "$in_use"; then
    touch -c "$made"
    copy=$made
  fi
}
