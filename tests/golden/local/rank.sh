#!/bin/bash
# One rank of digits-1, started by mpirun: finds out who it is, runs the program, and records how it ended.
run=/scratch/kim/ctrain/digits-1

export RANK=${OMPI_COMM_WORLD_RANK:?} WORLD_SIZE=${OMPI_COMM_WORLD_SIZE:?}
export LOCAL_RANK=$((RANK % 2)) NODE_RANK=$((RANK / 2))
export LOCAL_WORLD_SIZE=2
host=$(uname -n) # not HOSTNAME: srun hands down that of the first node
record="$run/ranks/$RANK"
exec >"$run/logs/rank$RANK.log" 2>&1
echo "start $(date +%s.%N) ${host%%.*}" >"$record"
end() {
  echo "end $(date +%s.%N) $1" >>"$record"
  exit "$1"
}
fail() {
  echo "ctrain: $1" >&2
  end 72
}

# Ranks that each believe to be alone train N wrong models without an error: stop instead.
[ "$WORLD_SIZE" = 2 ] || fail "mpirun started $WORLD_SIZE ranks, the plan has 2"

launch=(
  python
  train.py
)

trap : TERM # the program gets the signal too; wait for it, so that its exit code is still recorded
"${launch[@]}"
end $?
