#!/bin/sh
# What a task's container runs in the preflight: one process of each node checks the GPUs and has the nodes meet; then the
# ranks do, by a command. Without Python none does.
#
#   preflight.sh HEADER NEEDS_TORCH [nodes ARGUMENT...] ranks COMMAND...      HEADER: a digest of that of the image

header=$1 needs_torch=$2
shift 2
command -v python3 >/dev/null || { echo 'no preflight: the image has no python3' && exit 0; }
if [ "$1" = nodes ]; then
  [ "${LOCAL_RANK:-0}" != 0 ] || python3 "$CTRAIN_RUN_DIR/inside/nodes.py" "$2" "$3" "$4" "$5" "$header" || exit
  shift 5
fi
shift
if [ "$needs_torch" ]; then
  python3 -c "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)" ||
    { echo 'no preflight of ranks: no torch' && exit 0; }
fi
export TORCH_CPP_LOG_LEVEL=ERROR
exec "$@"
