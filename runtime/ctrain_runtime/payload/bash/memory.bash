#!/bin/bash
# Whether the kernel has killed processes of this task for want of memory, by its cgroup (of version 1 or 2).
# shellcheck disable=SC2034  # rank.bash uses the variables

find_memory_group() { # sets group, the cgroup's directory, and kills, the file that counts
  local controllers path
  group='' kills=''
  while IFS=: read -r _ controllers path; do
    case ,$controllers, in
      *,memory,*)
        group=/sys/fs/cgroup/memory${path%/} kills=memory.oom_control
        return
        ;;
      ,,) group=/sys/fs/cgroup${path%/} kills=memory.events ;;
    esac
  done </proc/self/cgroup
} 2>/dev/null
count_memory_kills() { # sets killed
  local name value
  killed=0
  while read -r name value _; do
    [ "$name" != oom_kill ] || killed=$value
  done <"$group/$kills"
} 2>/dev/null
find_memory_limit() { # sets memory_limit in bytes, 0 without one
  local directory=$group name value
  memory_limit=0
  while read -r name value; do
    [ "$name" != hierarchical_memory_limit ] || ((${#value} > 18)) || memory_limit=$value
  done <"$group/memory.stat"
  [ "$kills" = memory.events ] || return 0
  while [[ $directory == /sys/fs/cgroup/* ]]; do
    if read -r value <"$directory/memory.max" && [[ $value =~ ^[0-9]+$ ]]; then
      ((memory_limit && memory_limit <= value)) || memory_limit=$value
    fi
    directory=${directory%/*}
  done
} 2>/dev/null
