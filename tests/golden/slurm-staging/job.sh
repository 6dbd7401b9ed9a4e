#!/bin/bash -p
#SBATCH --job-name=digits-1
#SBATCH --partition=amd_a100nv_8
#SBATCH --nodes=2
#SBATCH --ntasks=16
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --gres=gpu:8
#SBATCH --time=01:00:00
#SBATCH --chdir=/scratch/kim/ctrain/digits-1
#SBATCH --output=/scratch/kim/ctrain/digits-1/logs/job.log
#SBATCH --no-requeue
# Run digits-1: prepares, starts the tasks, and writes how it ended, whoever watches.
run=/scratch/kim/ctrain/digits-1
. "$run/ctrain.bash" || exit 71
begin_job "$SLURM_JOB_ID"
end_tasks() { end_slurm_steps digits-1; }
pass_signals_to_tasks
copy_to_nodes srun --job-name=digits-1 --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=1 --distribution=block --overlap --mpi=none --kill-on-bad-exit=0 /bin/bash -p -c '[ -r "$0" ] || { echo "ctrain: run directory $1 is not visible on $(uname -n). Choose one that all nodes share: --runs DIR" >&2; exit 71; }; shift; exec /bin/bash -p "$0" "$@"' /scratch/kim/ctrain/digits-1/stage.sh /scratch/kim/ctrain/digits-1
ct_judge=(2 16 rank 0 report)
run_job srun --job-name=digits-1 --nodes=2 --ntasks=16 --ntasks-per-node=8 --cpus-per-task=8 --distribution=block:block --cpu-bind=cores --mpi=pmix --kill-on-bad-exit=1 --quit-on-interrupt /bin/bash -p -c '[ -r "$0" ] || { echo "ctrain: run directory $1 is not visible on $(uname -n). Choose one that all nodes share: --runs DIR" >&2; exit 71; }; shift; exec /bin/bash -p "$0" "$@"' /scratch/kim/ctrain/digits-1/task.sh /scratch/kim/ctrain/digits-1
