#!/bin/bash
# What a program compiles for torch (torch.utils.cpp_extension: operators of DeepSpeed, one's own) is compiled once per user,
# image and kind of node, not in every run. The user's cache keeps it; ranks work on a copy in the node's home, so nobody
# waits for the lock of a killed one there, and nobody sees half of a file.
# shellcheck disable=SC2154  # home.bash sets ct_home, ct_extensions_key and ct_made: TORCH_EXTENSIONS_DIR, inside

CT_EXTENSIONS_DAYS=30
find_kept() { # ["any"]: sets kept, the place of what was compiled for this image on such a node; fails if there can be none,
  # or, with "any", if there is none for any node
  local cache=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}} sum all
  [[ $cache == /* && $ct_extensions_key ]] || return
  all=("$cache/ctrain/extensions/$ct_extensions_key-"*)
  [ "${1-}" != any ] || [ -e "${all[0]}" ] || return
  read -r sum _ < <(
    { grep -m 1 -E '^(flags|Features)' /proc/cpuinfo && grep -h '^Model:' /proc/driver/nvidia/gpus/*/information; } | cksum
  )
  kept=$cache/ctrain/extensions/$ct_extensions_key-$sum
  [ ! -L "$kept" ] && { [ ! -e "$kept" ] || [ -O "$kept" ]; }
} 2>/dev/null
take_extensions() { # the first rank of a node does it; the others wait
  local part=$ct_home/.extensions
  { find_kept any && [ -d "$kept" ]; } || return 0
  {
    flock 9
    [ ! -e "$ct_made" ] || return 0
    touch "$kept"
    rm -rf "$part"
    cp -a "$kept" "$part" && mkdir -p "${ct_made%/*}" && mv -T "$part" "$ct_made"
  } 9>"$ct_home/.extensions.lock"
} 2>/dev/null
free_extensions() {
  local locks=("$ct_home/.cache/torch_extensions/"*/lock)
  [ ! -e "${locks[0]}" ] || rm -f "${locks[@]}"
}
keep_extensions() { # of a run that ended well, by its last rank on the node
  local directory name new made=("$ct_made"/*/)
  [ -e "${made[0]}" ] || return 0
  find_kept || return 0
  find "${kept%/*}" -mindepth 1 -maxdepth 1 -mtime "+$CT_EXTENSIONS_DAYS" -exec rm -rf {} +
  find "$kept" -mindepth 1 -maxdepth 1 -name '.*' -mtime +1 -exec rm -rf {} + # of killed ones
  for directory in "${made[@]}"; do
    directory=${directory%/} name=${directory##*/}
    { [ -e "$directory/$name.so" ] && [ ! -e "$directory/lock" ]; } || continue # a rank was killed
    ! cmp -s "$directory/$name.so" "$kept/$name/$name.so" || continue
    mkdir -p "${kept%/*}" && { mkdir -m 700 "$kept" || [ -O "$kept" ]; } || return 0
    new=$kept/.$name.$node.$$
    if cp -a "$directory" "$new"; then # another node may do the same: the first wins
      mv -T "$kept/$name" "$new.old"
      mv -T "$new" "$kept/$name"
    fi
    rm -rf "$new" "$new.old"
  done
} 2>/dev/null
