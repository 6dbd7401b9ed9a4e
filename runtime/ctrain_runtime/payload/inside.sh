#!/bin/sh
# The first that a rank's container runs: it puts libraries first on the loader's path, for all that runs in it, checks that
# the layers of the image and of the user are there, and becomes the program. Engines whose overlay is switched off, and
# Singularity in user namespaces, ignore a SIF's overlay partitions silently; and a user may replace the file of a layer while
# the job waits. Only builtins of sh are used: PATH may be anything.
#
#   inside.sh RANK NODE_RANK [paths PATTERNS] [driver VERSION] [nsys RANKS] [marker KEY] [layer KEY PATH]... [need PROGRAM] run PROGRAM [ARGUMENT]...

ctrain_rank=$1 ctrain_node_rank=$2 ctrain_profiled= # the program's environment has names of its own
shift 2

refuse() { # CODE MESSAGE; printf, because the echo of some shells reads backslashes
  printf 'ctrain: %s\n' "$2" >&2
  escape "$2"
  printf '{"rank": %s, "what": "refused",%s "stage": "run", "code": %s, "message": "%s"}\n' "${ctrain_rank:-null}" \
    "${CTRAIN_ATTEMPT:+ \"attempt\": $CTRAIN_ATTEMPT,}" "$1" "$escaped" \
    >>"$CTRAIN_RUN_DIR/nodes/$ctrain_node_rank.jsonl"
  exit "$1"
}
escape() { # TEXT: sets escaped, for JSON: it may hold what users typed
  left=$1 escaped=
  while [ "$left" ]; do
    others=${left#?}
    character=${left%"$others"}
    left=$others
    case $character in
      \" | \\) escaped="$escaped\\$character" ;;
      [[:cntrl:]]) escaped=$escaped$(printf '\\u%04x' "'$character") ;;
      *) escaped=$escaped$character ;;
    esac
  done
}
put_first() { # DIRECTORIES: on the loader's path
  export LD_LIBRARY_PATH="$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
}
add_paths() { # PATTERNS: those directories that the container has. Of several that one matches, the last by its name comes
  # first: of versions, the newest
  more=
  for directory in $1; do [ ! -d "$directory" ] || more="$directory${more:+:}$more"; done # without quotes: patterns
  [ -z "$more" ] || put_first "$more"
}
# NVIDIA's libraries of the image where the node's driver is older than its CUDA needs. Elsewhere these would not work (error
# 803); so where the image puts them on the path, the node's come first. NVIDIA's images choose by BASH_ENV: it takes seconds
# in every start of bash, and misses programs that need no bash.
choose_driver() { # VERSION: the oldest driver that the image's CUDA needs no help with
  { read -r line </proc/driver/nvidia/version; } 2>/dev/null || return 0
  for word in $line; do
    case $word in [1-9][0-9][0-9].*)
      case $((${word%%.*} < $1)):${LD_LIBRARY_PATH-} in
        1:*) first="/usr/local/cuda/compat/lib.real /usr/local/cuda/compat/lib /usr/local/cuda/compat" ;;
        0:*/usr/local/cuda/compat*) first=/.singularity.d/libs ;; # of the node, in a container that was started with --nv
        *) first= ;;
      esac
      for libraries in $first; do
        [ ! -e "$libraries/libcuda.so.1" ] || { put_first "$libraries" && break; }
      done
      break
      ;;
    esac
  done
}

while [ "$1" != run ]; do
  case $1 in
    paths) add_paths "$2" ;;
    driver) choose_driver "$2" ;;
    nsys) ctrain_profiled=",$2," ;;
    marker)
      { read -r key </.singularity.d/ctrain-layer; } 2>/dev/null
      [ "$key" = "$2" ] ||
        refuse 73 "this engine ignores the layers of the image (why: ctrain help engines): it needs a flat one"
      ;;
    layer)
      [ -e "/.singularity.d/ctrain-user-layers/$2.json" ] ||
        refuse 73 "layer $3 differs from the plan; was it rebuilt after submission?"
      shift
      ;;
    need) command -v "$2" >/dev/null || refuse 127 "command not found in the image: $2" ;;
  esac
  shift 2
done
shift
export CTRAIN_HEARTBEAT="${HOME-}/.heartbeat/$ctrain_rank" # on the node's disk; watch.py looks at it
[ ! -e "$CTRAIN_HEARTBEAT" ] || { true >"$CTRAIN_HEARTBEAT"; } 2>/dev/null # of an earlier attempt
# Pythons of a rank that hangs write their stacks
[ ! -d "${HOME-}/.startup" ] || export PYTHONPATH="$HOME/.startup${PYTHONPATH:+:$PYTHONPATH}"
case $ctrain_profiled in
  *",$ctrain_rank,"*) # Nsight Systems records what beat() of ctrain_program brackets, and nothing else
    command -v nsys >/dev/null || refuse 127 "command not found in the image: nsys (--profile nsys)"
    mkdir -p "$CTRAIN_RUN_DIR/profiles"
    report=$CTRAIN_RUN_DIR/profiles/rank$ctrain_rank
    [ "${CTRAIN_ATTEMPT:-0}" = 0 ] || report=$report.attempt$CTRAIN_ATTEMPT
    set -- nsys profile --output="$report" --force-overwrite=true --trace=cuda,nvtx,osrt \
      --capture-range=cudaProfilerApi --capture-range-end=stop "$@"
    ;;
esac
exec "$@"
