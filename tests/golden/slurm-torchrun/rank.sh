#!/bin/bash -p
# One rank of digits-1, started by torchrun in the container.
run=/scratch/kim/ctrain/digits-1
. "$run/ctrain.bash" || exit 71
# RANK, LOCAL_RANK and WORLD_SIZE are torchrun's.
record_rank
check_world 16 ranks torchrun
pass_signals_to_program
run_rank /bin/sh "$run/inside.sh" "$RANK" "$NODE_RANK" driver 525 marker k1 need python run python train.py
