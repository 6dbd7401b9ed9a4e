#!/bin/bash
#SBATCH --job-name=digits-1
#SBATCH --partition=amd_a100nv_8
#SBATCH --nodes=2
#SBATCH --ntasks=8
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --gres=gpu:4
#SBATCH --time=01:00:00
#SBATCH --chdir=/scratch/kim/ctrain/digits-1
#SBATCH --output=/scratch/kim/ctrain/digits-1/logs/job.log
#SBATCH --no-requeue
# Run digits-1: computes the rendezvous on the first node, then starts one task a rank.
run=/scratch/kim/ctrain/digits-1
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((61000 + SLURM_JOB_ID % 4536)) # above the ephemeral ports; differs between jobs that share a node
export MASTER_ADDR MASTER_PORT
unset SLURM_CPU_BIND # an allocation's binding of its shell must not hold for the ranks

srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=16 --mpi=pmix --kill-on-bad-exit=1 /bin/bash /scratch/kim/ctrain/digits-1/rank.sh
code=$?
echo "$code" >"$run/exit_code"
exit "$code"
