#!/bin/bash
# Who runs here, and the events by which a run tells how it goes (docs/run-directory.md). Needs `run`, and NODE_RANK for those of a node.
# shellcheck disable=SC2154  # of the scripts

read -r node </proc/sys/kernel/hostname # not HOSTNAME: srun hands down that of the first node
node=${node%%.*}
write_event() { # FILE STAGE WHAT [MORE]: appends of one host do not get lost, on NFS neither
  local now=${EPOCHREALTIME/[^0-9]/.} # some locales write a comma
  now=${now:-$(date +%s.%N)}
  printf '{"time": %s, "stage": "%s", "node": "%s", "what": "%s"%s}\n' \
    "${now:-null}" "$2" "$node" "$3" "${4:+, $4}" >>"$run/$1"
}
job_event() { # STAGE WHAT [MORE]
  write_event events.jsonl "$@"
}
node_event() { # WHAT MORE; with the attempt of a run that may have several
  write_event "nodes/$NODE_RANK.jsonl" run "$1" "${CTRAIN_ATTEMPT:+\"attempt\": $CTRAIN_ATTEMPT, }$2"
}
refuse() { # CODE MESSAGE
  echo "ctrain: $2" >&2
  node_event refused "\"rank\": ${RANK:-null}, \"code\": $1, \"message\": \"$2\""
  exit "$1"
}
