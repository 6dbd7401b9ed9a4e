#!/bin/bash
# Horovod's ranks meet without MPI, at a server in the first rank's container (horovod/common/gloo/gloo_context.cc).
# shellcheck disable=SC2034,SC2154  # variables of other parts, and of the scripts

ct_serve=() # what precedes the program in the container
join_gloo() { # NODES RANKS_PER_NODE PATIENCE: exports Horovod's variables, and sets serve: the server in the first rank, in
  # the others a wait for it, beside which their containers start. The port is not MASTER_PORT: torch.distributed may use that.
  [ "$ct_stage" != preflight ] || return 0
  local interface=lo
  [ "$MASTER_ADDR" = 127.0.0.1 ] || interface=$(interface_to "$MASTER_ADDR")
  export HOROVOD_CONTROLLER=gloo HOROVOD_CPU_OPERATIONS=gloo HOROVOD_HOSTNAME=node$NODE_RANK
  export HOROVOD_RANK=$RANK HOROVOD_SIZE=$WORLD_SIZE HOROVOD_LOCAL_RANK=$LOCAL_RANK HOROVOD_LOCAL_SIZE=$2
  export HOROVOD_CROSS_RANK=$NODE_RANK HOROVOD_CROSS_SIZE=$1 HOROVOD_GLOO_IFACE=$interface
  export HOROVOD_GLOO_RENDEZVOUS_ADDR=$MASTER_ADDR HOROVOD_GLOO_TIMEOUT_SECONDS=$3
  export HOROVOD_GLOO_RENDEZVOUS_PORT=$((61000 + (MASTER_PORT - 61000 + 2268) % 4536))
  if [ "$RANK" = 0 ]; then
    ct_serve=(python3 "$run/rendezvous.py" "$HOROVOD_GLOO_RENDEZVOUS_PORT" "$1" "$2")
  else
    # shellcheck disable=SC2016  # for the bash of the container
    ct_serve=(/bin/bash -p -c '(run=$1 && . "$run/ctrain.bash" && wait_for_gloo "$2") || exit; exec "${@:3}"' ctrain "$run" "$3")
  fi
}
# Horovod must be told an interface that the others reach: that of the most specific route to the first node. Addresses in
# /proc/net/route (man 5 proc) are numbers of the CPU, little-endian on all that images are made for.
interface_to() { # HOST; prints nothing if it is unknown: Horovod then takes that of the host name
  local address name network mask best=-1 device='' a b c d _
  address=$(getent ahostsv4 "$1") && IFS='. ' read -r a b c d _ <<<"$address" || return 0
  while read -r name network _ _ _ _ _ mask _; do
    [ "$name" != Iface ] || continue
    if ((((d << 24 | c << 16 | b << 8 | a) & 16#$mask) == 16#$network && 16#$mask > best)); then
      best=$((16#$mask)) device=$name
    fi
  done </proc/net/route
  echo "$device"
}
wait_for_gloo() { # SECONDS: for the server
  # shellcheck disable=SC2016  # for another shell
  until timeout 10 /bin/bash -p -c 'exec 3<>"/dev/tcp/$HOROVOD_GLOO_RENDEZVOUS_ADDR/$HOROVOD_GLOO_RENDEZVOUS_PORT"' \
    2>/dev/null; do
    ! grep -qs "\"what\": \"ended\", ${CTRAIN_ATTEMPT:+\"attempt\": $CTRAIN_ATTEMPT, }\"rank\": 0," "$run/nodes/0.jsonl" || break # and its server with it
    ((SECONDS < $1)) || refuse 72 "cannot connect to the server of the first rank"
    sleep $((SECONDS < 2 ? 0 : 1)).05
  done
  return 0
}
