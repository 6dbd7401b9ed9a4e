#!/bin/bash
# What task.sh and rank.sh do around the program of a rank: its log, its world, its record.
# shellcheck disable=SC2034,SC2154  # variables of other parts, and of the scripts

ct_stage=${1-} # "preflight": what that prints goes to the job's log
record_rank() {
  [ "$ct_stage" = preflight ] || open_log "$run/logs/rank$RANK.log"
}
record_rank_with_node() { # ranks of a node share a log, line by line: files grow with nodes, not with ranks
  [ "$ct_stage" != preflight ] || return 0
  if [ "$RANK" = 0 ]; then
    record_rank
  else
    exec > >(trap '' INT TERM USR1 USR2 && exec sed -u "s/^/[$RANK] /" >>"$run/logs/node$NODE_RANK.log") 2>&1
    [ "${CTRAIN_ATTEMPT:-0}" = 0 ] || mark_attempt
  fi
}
check_world() { # SIZE UNITS STARTED_BY: ranks that each believe to be alone train N wrong models without an error
  [ "$WORLD_SIZE" = "$1" ] || refuse 72 "$3 started $WORLD_SIZE $2, but the plan has $1"
}
export_open_mpi() { # many programs ask these for their rank: mpirun of Open MPI sets them (man mpirun), srun does not
  export OMPI_COMM_WORLD_RANK=$RANK OMPI_COMM_WORLD_SIZE=$WORLD_SIZE
  export OMPI_COMM_WORLD_LOCAL_RANK=$LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE=$LOCAL_WORLD_SIZE
}
ct_spares_others='' # of a rank whose end is not to be seen as a failure: mpirun would kill the other ranks
run_rank() { # COMMAND...: as a rank, to its end; records when it started and how it ended
  local killed_before
  find_memory_group
  count_memory_kills
  killed_before=$killed
  node_event started "\"rank\": $RANK"
  run_step "$@"
  count_memory_kills
  memory=''
  if [ "$code" != 0 ] && ((killed > killed_before)); then
    find_memory_limit
    memory=", \"memory_limit\": $memory_limit"
  fi
  ((LOCAL_WORLD_SIZE == 1)) || ct_outlived=yes
  leave
  node_event ended "\"rank\": $RANK, \"code\": $code$memory"
  [ -z "$ct_spares_others" ] || [ -z "$ending" ] || code=0
  exit "$code"
}
leave() { # of a task: ends its scan and its watch, and leaves its home
  end_scan
  end_watch
  [ -z "$ct_home" ] || leave_home
}
header_of() { # IMAGE: prints a digest of a SIF's header: its id, and where and when each part was made (sif's spec.go)
  head -c 32768 "$1" 2>/dev/null | sha256sum
}
prove_world() { # COMMAND...: ends a task with the preflight
  ct_record_signal=: # what ends this has interrupted no program
  run_step "${launch[@]}" "$@"
  leave
  exit "$code"
}
# torchrun takes the values of options that are not given from PET_* (torch/distributed/argparse_util.py). The endpoint holds
# for the back end c10d, too, and before a master address that a script has made up.
export_node() { # NODES RANKS_PER_NODE GPUS_PER_NODE RUN_KEY COMMAND..., which prints the names of the hosts
  export PET_NNODES=$1 PET_NODE_RANK=$NODE_RANK PET_NPROC_PER_NODE=$2
  export PET_MASTER_ADDR=$MASTER_ADDR PET_MASTER_PORT=$MASTER_PORT
  export PET_RDZV_ENDPOINT=$MASTER_ADDR:$MASTER_PORT PET_RDZV_ID=$4${CTRAIN_ATTEMPT:+.$CTRAIN_ATTEMPT}
  export CTRAIN_NODES=$1 CTRAIN_RANKS_PER_NODE=$2 CTRAIN_GPUS_PER_NODE=$3
  CTRAIN_HOSTS=$("${@:5}" | paste -sd, -)
  export CTRAIN_HOSTS
}
