#!/bin/bash
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
#SBATCH '--account=ai lab'
#SBATCH --comment=pytorch
# Run digits-1: computes the rendezvous on the first node, then starts one task a rank.
run=/scratch/kim/ctrain/digits-1
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((61000 + SLURM_JOB_ID % 4536)) # above the ephemeral ports; differs between jobs that share a node
export MASTER_ADDR MASTER_PORT
unset SLURM_CPU_BIND # an allocation's binding of its shell must not hold for the ranks
# Tells the store. Where a node can't write to it, what was told at the submission holds.
touch --no-create '--date=+60 minutes' /apps/ctrain/in-use/pytorch_24.12-hd-py3-r3.sif@887be2b4ed78 2>/dev/null

srun --nodes=2 --ntasks=16 --ntasks-per-node=8 --cpus-per-task=8 --mpi=pmix --kill-on-bad-exit=1 /bin/bash /scratch/kim/ctrain/digits-1/rank.sh
code=$?
echo "$code" >"$run/exit_code"
exit "$code"
