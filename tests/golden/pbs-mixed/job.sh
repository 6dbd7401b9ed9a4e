#!/bin/bash -p
#PBS -N digits-1
#PBS -q gpu
#PBS -l select=2:ncpus=40:mpiprocs=4:ngpus=4:accelerator_model=v100
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -j oe
#PBS -o logs/scheduler.log
#PBS -r n
# Run digits-1: prepares, starts the tasks, and writes how it ended, whoever watches.
run=/scratch/kim/ctrain/digits-1
. "$run/ctrain.bash" || exit 71
begin_job "$PBS_JOBID"
cd "$run" && exec >>"$run/logs/job.log" 2>&1
list_hosts 2
set_rendezvous "${hosts[0]}" 4448
use_tm 1 /bin/bash -p -c '[ -r "$0" ] || { echo "ctrain: run directory $1 is not visible on $(uname -n). Choose one that all nodes share: --runs DIR" >&2; exit 71; }; shift; exec /bin/bash -p "$0" "$@"' /scratch/kim/ctrain/digits-1/node.sh /scratch/kim/ctrain/digits-1
pass_signals_to_tasks
ct_judge=(2 8 rank 0 report)
run_job run_on_nodes 4 task.sh
