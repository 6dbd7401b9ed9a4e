#!/bin/sh
# Looks for the network plugin of NCCL or RCCL as these would find it, and for the libraries that it needs; run in a
# container with the site's mounts and variables. Prints "plugin PATH", and "lacks NAME" for each missing library, and
# for each version of one that it needs.
# Without a plugin it prints nothing; "unknown" where the image has no ldd.
plugin=
case ${NCCL_NET_PLUGIN-} in
  */*) [ ! -e "$NCCL_NET_PLUGIN" ] || plugin=$NCCL_NET_PLUGIN ;;
  *)
    set -f
    IFS=:
    for directory in ${LD_LIBRARY_PATH-} /usr/lib64 /usr/lib/x86_64-linux-gnu /usr/local/lib; do
      for name in "${NCCL_NET_PLUGIN:-libnccl-net.so}" "libnccl-net-${NCCL_NET_PLUGIN-}.so" librccl-net.so; do
        [ -n "$plugin" ] || [ -z "$directory" ] || [ ! -e "$directory/$name" ] || plugin=$directory/$name
      done
    done
    unset IFS
    ;;
esac
[ -n "$plugin" ] || exit 0
echo "plugin $plugin"
command -v ldd >/dev/null || { echo unknown; exit 0; }
ldd "$plugin" 2>&1 | while read -r name arrow where rest; do
  case "$name $arrow $where $rest" in
    *" => not found"*) echo "lacks $name" ;;
    *": version "*" not found"*) # NAME: version `SYMBOLS' not found (required by FILE)
      where=${where#?}
      echo "lacks ${where%?} of ${name%:}"
      ;;
  esac
done
