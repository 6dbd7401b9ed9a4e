#!/bin/bash -p
# Copies the image of digits-1 to the disk of this node.
set -o pipefail
image=/apps/ctrain/pytorch_24.12-hd-py3-r3.sif
directory=/local/ctrain-images-$UID
copy=$directory/9f2c41d0a7e3.sif # complete: it got this name when its digest was checked
fail() { # MESSAGE
  echo "ctrain: image not copied to $(uname -n): $1. Ranks there read $image" >&2
  exit 1
}
umask 077
mkdir "$directory" 2>/dev/null
if [ ! -d "$directory" ] || [ ! -O "$directory" ] || [ -L "$directory" ]; then fail "cannot create $directory"; fi
exec 7<"$directory" && flock 7 # other runs on this node wait for the copy, and use it
find "$directory" -maxdepth 1 -type f -mtime +7 -delete
[ ! -f "$copy" ] || exec touch "$copy"
trap 'rm -f "$copy.part"' EXIT
trap 'exit 143' TERM
digest=$(tee "$copy.part" <"$image" | sha256sum) || fail "cannot write $copy.part"
[ "${digest%% *}" = 9f2c41d0a7e3 ] || fail "digest mismatch: $image has sha256:${digest%% *}"
mv "$copy.part" "$copy" || fail "cannot write $copy"
