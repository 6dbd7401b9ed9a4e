#!/bin/bash
# Tasks that srun has started, and how they end.
# shellcheck disable=SC2034,SC2154  # variables of other parts, and of the scripts

identify_slurm_task() { # SALT [SUFFIX]: who this is and where ranks meet, at the first node of this step, as two runs may
  # share an allocation. It is the first name of a list like gpu[03-05,09],cpu1, without a call of scontrol; SUFFIX is that
  # of a node's name in the fast network. The ports lie above the ephemeral ones.
  local hosts rest
  task=${SLURM_PROCID:?} tasks=${SLURM_NTASKS:?} local_task=${SLURM_LOCALID:?} NODE_RANK=${SLURM_NODEID:?}
  hosts=${SLURM_STEP_NODELIST:?}
  while [[ ${hosts%%,*} == *\[* ]]; do
    rest=${hosts#*\[}
    hosts=${hosts%%\[*}${rest%%[],-]*}${rest#*\]}
  done
  hosts=${hosts%%,*}
  [ -z "${2-}" ] || hosts=${hosts%%.*}$2
  export MASTER_ADDR=$hosts
  export MASTER_PORT=$((61000 + (SLURM_JOB_ID + SLURM_STEP_ID + $1) % 4536))
}
need_pmix() {
  [ -n "${PMIX_RANK:-}" ] || refuse 72 "srun started this rank without PMIx: MPI would run with world size 1"
  # PMIx keeps its sockets in a directory of this step, known only here.
  [ -z "${PMIX_SERVER_TMPDIR:-}" ] || ct_binds+=("$PMIX_SERVER_TMPDIR")
}
slurm_hosts() {
  scontrol show hostnames "$SLURM_STEP_NODELIST"
}
# srun answers SIGTERM with SIGKILL to its tasks, at once ("forcing job termination"). Of a job that ends, Slurm signals the
# steps itself; where job.sh alone was signalled, as in an allocation or by --signal=B:TERM, this does.
end_slurm_steps() { # NAME
  local step name
  while IFS='|' read -r step name; do
    [ "$name" != "$1" ] || scancel --signal=TERM "$step"
  done < <(squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format='%i|%j') 2>/dev/null
}
slurm_job_lasts() { # not at its time limit, nor cancelled; a controller that does not answer says neither
  local state
  state=$(timeout 20 squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T 2>/dev/null) || return 0
  [ "$state" = RUNNING ]
}

# A job with --requeue that ends early: Slurm queues it again, with its number and its place in the accounting, also when its
# time is over already (seen with 22.05). After the loss of a node, and as PreemptMode says, Slurm does so by itself.
slurm_cause() { # sets cause: why Slurm ends this job. Nothing for a cancellation, and without an answer
  local shown
  shown=$(timeout 20 scontrol --oneliner show job "$SLURM_JOB_ID" 2>/dev/null) || return
  if [[ $shown =~ \ Restarts=([0-9]+) ]] && ((BASH_REMATCH[1] > ${SLURM_RESTART_COUNT:-0})); then
    cause='queued again by Slurm' ct_queue_again=:
  elif [[ $shown =~ \ Reason=([^ ]+) && ${BASH_REMATCH[1]} = TimeLimit ]]; then
    cause='time limit'
  elif [[ $shown =~ \ PreemptTime=([^ ]+) && ${BASH_REMATCH[1]} != None ]]; then
    cause=preempted
  fi
}
requeue_slurm_job() {
  timeout 60 scontrol requeue "$SLURM_JOB_ID"
}
leave_out_slurm_nodes() { # of a job that is queued again: the nodes that failed it, which may be up when it starts. Enough
  # others must be there
  local all bad=() out well shown before='' name list others
  mapfile -t all < <(scontrol show hostnames "$SLURM_JOB_NODELIST" 2>/dev/null)
  well=$(list_nodes "$CT_WELL")
  [ "$well" ] || return 0 # nothing is known
  for name in "${all[@]}"; do
    [[ $'\n'$well$'\n' == *$'\n'"$name"$'\n'* && ,$ct_left_out, != *",$name,"* ]] || bad+=("$name")
  done
  ((${#bad[@]})) || return 0
  shown=$(timeout 20 scontrol --oneliner show job "$SLURM_JOB_ID" 2>/dev/null)
  [[ ! $shown =~ \ ExcNodeList=([^ ]+) || ${BASH_REMATCH[1]} = '(null)' ]] || before=,${BASH_REMATCH[1]}
  list=$(IFS=, && echo "${bad[*]}")
  mapfile -t out < <(scontrol show hostnames "$list$before")
  others=$(sinfo --noheader --partition="$SLURM_JOB_PARTITION" --format=%D | awk '{ all += $1 } END { print all + 0 }')
  ((others - ${#out[@]} >= ${#all[@]})) || return 0
  timeout 20 scontrol update JobId="$SLURM_JOB_ID" ExcNodeList="$list$before" >&2 || return 0
  job_event run 'left out' "\"message\": \"$list\""
}
keep_slurm_job() { # Slurm ends it, and does not queue it again
  timeout 20 scontrol update JobId="$SLURM_JOB_ID" Requeue=0 >&2
}

# A job with spare nodes (--no-kill) outlives the loss of one; its next step takes others in their place. Besides lost nodes
# those are left out that do not answer, do not see the run directory, or whose driver finds a GPU broken.
CT_PROBE_SECONDS=60
CT_SILENT_SECONDS=300 # a controller that is restarted is silent for a while, then knows no node: this script runs on one
CT_WELL='allocated|mixed|idle|completing|reserved' # states of nodes (man sinfo) with which steps start; * is for silent ones
run_on_good_nodes() { # srun ARGUMENT... A step whose node is lost never ends, and holds what it has of the others (Slurm 22.05)
  "$1" ${ct_left_out:+"--exclude=$ct_left_out" --overlap} "${@:2}"
}
look_for_good_nodes() { # NODES: that the run needs; of drained ones, if there are too few. Sets ct_left_out, or why
  local name states answers all good bad began=$SECONDS
  until [ "$(list_nodes "$CT_WELL|drain(ing|ed)")" ] || ((SECONDS - began > CT_SILENT_SECONDS)); do sleep 1; done
  mapfile -t all < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  for states in "$CT_WELL" "$CT_WELL|drain(ing|ed)"; do
    answers=$(probe_nodes "$(list_nodes "$states")") good=() bad=()
    for name in "${all[@]}"; do
      if [[ $'\n'$answers$'\n' == *$'\n'"$name"$'\n'* ]]; then good+=("$name"); else bad+=("$name"); fi
    done
    ((${#good[@]} < $1)) || break
  done
  ct_left_out=$(IFS=, && echo "${bad[*]}")
  # shellcheck disable=SC2034  # restarts.bash reads it
  ((${#good[@]} >= $1)) || ct_lacks_nodes=yes why="${#good[@]} of the job's ${#all[@]} nodes are well, $1 are needed"
}
list_nodes() { # STATES: prints the names of the job's nodes in one of these
  sinfo --noheader --Node --nodes="$SLURM_JOB_NODELIST" --format='%N %T' |
    awk -v states="^($1)[+]?$" '$2 ~ states && !seen[$1]++ { print $1 }'
} 2>/dev/null
probe_nodes() { # NAMES: prints those that are well, by one step on all
  local names
  mapfile -t names <<<"$1"
  # shellcheck disable=SC2016  # for another shell
  [ -z "$1" ] || timeout "$CT_PROBE_SECONDS" srun --overlap --mpi=none --kill-on-bad-exit=0 --nodes="${#names[@]}" \
    --ntasks="${#names[@]}" --ntasks-per-node=1 --cpus-per-task=1 --nodelist="$(IFS=, && echo "${names[*]}")" \
    /bin/bash -p -c '. "$0" && probe_node' "$run/ctrain.bash"
} 2>/dev/null
probe_node() { # prints its name as Slurm has it
  ! command -v nvidia-smi || timeout 20 nvidia-smi -L || return
  echo "$SLURMD_NODENAME" >&3
} 3>&1 >/dev/null 2>&1
force_end() { # SECONDS: nobody else ends a run in an allocation
  (sleep "$1" && kill -0 "$$" && signal_step TERM) 2>/dev/null &
}
leave_login_node() { # slurmd sets SLURMD_NODENAME (man srun, OUTPUT ENVIRONMENT VARIABLES); salloc's shell has the TMPDIR of
  # a login node
  [ -n "${SLURMD_NODENAME:-}" ] || unset TMPDIR
}
