#!/bin/bash -p
# One rank of digits-1, started by mpirun in the container.
run=/scratch/kim/ctrain/digits-1
. "$run/ctrain.bash" || exit 71
export RANK=${OMPI_COMM_WORLD_RANK:?} WORLD_SIZE=${OMPI_COMM_WORLD_SIZE:?}
export LOCAL_RANK=$((RANK % 2)) NODE_RANK=$((RANK / 2))
record_rank
check_world 2 ranks mpirun
pass_signals_to_program
ct_spares_others=yes
run_rank /bin/sh "$run/inside.sh" "$RANK" "$NODE_RANK" marker k1 need python run python train.py
