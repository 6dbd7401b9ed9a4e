#!/bin/bash -p
#PBS -N digits-1
#PBS -q workq
#PBS -l select=2:ncpus=64:mpiprocs=8:ngpus=8
#PBS -l place=scatter
#PBS -j oe
#PBS -o logs/scheduler.log
#PBS -r n
# Run digits-1: prepares, starts the tasks, and writes how it ended, whoever watches.
run=/scratch/kim/ctrain/digits-1
. "$run/ctrain.bash" || exit 71
begin_job "$(uname -n):$$:$(cut -d ' ' -f 22 /proc/$$/stat)"
list_hosts 2
set_rendezvous "${hosts[0]}" 4448
unset CUDA_VISIBLE_DEVICES # the GPUs of this node; mpiexec would pass it to all
pass_signals_to_tasks
preflight 80 '. If the image'"'"'s MPI does not form one world here, pass --launcher gloo for Horovod, or env for programs without MPI' run_mpiexec -n 16 -ppn 8 --hostfile /scratch/kim/ctrain/digits-1/hosts --cpu-bind depth --depth 8 /bin/bash -p -c '[ -r "$0" ] || { echo "ctrain: run directory $1 is not visible on $(uname -n). Choose one that all nodes share: --runs DIR" >&2; exit 71; }; shift; exec /bin/bash -p "$0" "$@"' /scratch/kim/ctrain/digits-1/task.sh /scratch/kim/ctrain/digits-1 preflight
ct_judge=(2 16 rank 0 report)
run_job run_mpiexec -n 16 -ppn 8 --hostfile /scratch/kim/ctrain/digits-1/hosts --cpu-bind depth --depth 8 /bin/bash -p -c '[ -r "$0" ] || { echo "ctrain: run directory $1 is not visible on $(uname -n). Choose one that all nodes share: --runs DIR" >&2; exit 71; }; shift; exec /bin/bash -p "$0" "$@"' /scratch/kim/ctrain/digits-1/task.sh /scratch/kim/ctrain/digits-1
