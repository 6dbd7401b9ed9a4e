#!/bin/bash -p
#SBATCH --job-name=digits-1
#SBATCH --partition=amd_a100nv_8
#SBATCH --nodes=2
#SBATCH --ntasks=8
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --gres=gpu:4
#SBATCH --time=UNLIMITED
#SBATCH --chdir=/scratch/kim/ctrain/digits-1
#SBATCH --output=/scratch/kim/ctrain/digits-1/logs/job.log
#SBATCH --no-requeue
# Run digits-1: prepares, starts the tasks, and writes how it ended, whoever watches.
run=/scratch/kim/ctrain/digits-1
. "$run/ctrain.bash" || exit 71
begin_job "$(uname -n):$$:$(cut -d ' ' -f 22 /proc/$$/stat)"
leave_login_node
end_tasks() { end_slurm_steps digits-1; force_end 30; }
pass_signals_to_tasks
ct_judge=(2 8 rank 0 report)
run_job srun --job-name=digits-1 --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=8 --gres=gpu:4 --distribution=block:block --cpu-bind=cores --mpi=pmix --kill-on-bad-exit=1 --quit-on-interrupt /bin/bash -p -c '[ -r "$0" ] || { echo "ctrain: run directory $1 is not visible on $(uname -n). Choose one that all nodes share: --runs DIR" >&2; exit 71; }; shift; exec /bin/bash -p "$0" "$@"' /scratch/kim/ctrain/digits-1/task.sh /scratch/kim/ctrain/digits-1
