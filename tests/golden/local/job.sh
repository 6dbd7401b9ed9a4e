#!/bin/bash -p
# Run digits-1: prepares, starts the tasks, and writes how it ended, whoever watches.
run=/scratch/kim/ctrain/digits-1
. "$run/ctrain.bash" || exit 71
begin_job "$(uname -n):$$:$(cut -d ' ' -f 22 /proc/$$/stat)"
set_rendezvous 127.0.0.1 4448
ct_grace=10 ct_asked_grace=30
pass_signals_to_tasks
ct_judge=(1 2 rank 0 report)
run_job tasks 0 1 task.sh
