#!/bin/bash -p
# For digits-1, copies a file to the disk of this node. A node that cannot do that is named, and does without.
trap '' USR1 USR2
run=/scratch/kim/ctrain/digits-1
. "$run/ctrain.bash" || exit 71
identify_slurm_task 4448
copy_to_disk /apps/ctrain/pytorch_24.12-hd-py3-r3.sif 5 9f2c41d0a7e3.sif '/local disk' 10 slurm_hosts
