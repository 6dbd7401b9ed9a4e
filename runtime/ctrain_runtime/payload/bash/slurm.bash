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
force_end() { # SECONDS: nobody else ends a run in an allocation
  (sleep "$1" && kill -0 "$$" && signal_step TERM) 2>/dev/null &
}
leave_login_node() { # slurmd sets SLURMD_NODENAME (man srun, OUTPUT ENVIRONMENT VARIABLES); salloc's shell has the TMPDIR of
  # a login node
  [ -n "${SLURMD_NODENAME:-}" ] || unset TMPDIR
}
