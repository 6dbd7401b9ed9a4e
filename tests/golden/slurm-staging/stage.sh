#!/bin/bash -p
# For digits-1, copies a file to the disk of this node. A node that cannot do that is named, and does without.
trap '' USR1 USR2
run=/scratch/kim/ctrain/digits-1
task=${SLURM_PROCID:?} tasks=${SLURM_NTASKS:?} local_task=${SLURM_LOCALID:?} NODE_RANK=${SLURM_NODEID:?}
hosts=${SLURM_STEP_NODELIST:?}
while [[ ${hosts%%,*} == *\[* ]]; do
  rest=${hosts#*\[}
  hosts=${hosts%%\[*}${rest%%[],-]*}${rest#*\]}
done
export MASTER_ADDR=${hosts%%,*}
export MASTER_PORT=$((61000 + (SLURM_JOB_ID + SLURM_STEP_ID + 4448) % 4536))
file=/apps/ctrain/pytorch_24.12-hd-py3-r3.sif
directory='/local disk'/ctrain-images-$UID
[ "$task" != 0 ] || echo "copying $file to $directory on each node"
if [ -O "$directory" ] && [ ! -L "$directory" ]; then # a copy in use is locked
  find "$directory" -maxdepth 1 -type f -mtime +7 -exec flock -n {} rm -f {} \;
fi
mapfile -t hosts < <(scontrol show hostnames "$SLURM_STEP_NODELIST")
before='' port=0
[ "$task" = 0 ] || before=${hosts[task - 1]}:$MASTER_PORT
((task + 1 >= ${#hosts[@]})) || port=$MASTER_PORT
for python in /usr/bin/python3 /usr/libexec/platform-python python3 ''; do
  ! "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 6))' 2>/dev/null || break
done
[ "$python" ] || {
  echo "ctrain: $file not copied to $(uname -n): no Python 3.6 or later there. Ranks there read the shared file" >&2
  exit 1
}
exec "$python" -I "$run/relay.py" "$file" 5 9f2c41d0a7e3.sif "$directory" \
  "$run/.stage" 10 "$before" "$port"
