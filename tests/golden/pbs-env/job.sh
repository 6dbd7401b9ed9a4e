#!/bin/bash -p
#PBS -N digits-1
#PBS -q amd_a100nv_8
#PBS -l select=2:ncpus=32:mpiprocs=4:ngpus=4:mem=64gb:gpu_type=a100
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -j oe
#PBS -o logs/scheduler.log
#PBS -r n
#PBS -A 'ai lab'
#PBS -Wdepend=afterok:41.pbs
#PBS -l filesystems=home:eagle
trap 'rm -f /scratch/kim/ctrain/digits-1/.environment' EXIT
[ ! -r /scratch/kim/ctrain/digits-1/.environment ] || . /scratch/kim/ctrain/digits-1/.environment
# Run digits-1: prepares, starts the tasks, and writes how it ended, whoever watches.
run=/scratch/kim/ctrain/digits-1
. "$run/ctrain.bash" || exit 71
ct_lease=/apps/ctrain/in-use/pytorch_24.12-hd-py3-r3.sif@887be2b4ed78
begin_job "$PBS_JOBID"
cd "$run" && exec >>"$run/logs/job.log" 2>&1
renew_lease 60
list_hosts 2
set_rendezvous "${hosts[0]}" 4448
use_tm 1 /bin/bash -p -c '[ -r "$0" ] || { echo "ctrain: run directory $1 is not visible on $(uname -n). Choose one that all nodes share: --runs DIR" >&2; exit 71; }; shift; exec /bin/bash -p "$0" "$@"' /scratch/kim/ctrain/digits-1/node.sh /scratch/kim/ctrain/digits-1
pass_signals_to_tasks
copy_to_nodes run_all_on_nodes 1 stage.sh
ct_judge=(2 8 rank 0 report)
run_job run_on_nodes 4 task.sh
