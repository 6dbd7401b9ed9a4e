#!/bin/bash
# How scripts outlive signals and pass them on to their steps (steps.bash): SIGTERM once, however often it is sent, and each
# signal recorded as long as what was started has not ended by itself.
# shellcheck disable=SC2034,SC2154  # variables of other parts

pass_signals() { # RECORD END WARN: commands that record a signal, pass on SIGTERM, and SIGUSR1 and SIGUSR2
  exec 6<> <(:) # carries exit codes
  ct_record_signal=$1 ct_end_command=$2 ct_warn_command=$3
  trap end_step TERM
  trap 'warn_step USR1' USR1
  trap 'warn_step USR2' USR2
}
end_step() { # a signal to all may have ended the program before this script, on a busy machine, gets it. Bash runs a trap
  # within itself when its signal comes again: whether this is the first is asked and noted in one command
  ((!ct_ends++)) || return 0
  if ! is_over || reached_all; then "$ct_record_signal" TERM; fi
  ending=yes
  "$ct_end_command"
}
warn_step() { # SIGNAL
  is_over || "$ct_record_signal" "$1"
  "$ct_warn_command" "$1"
}
pass_signals_to_tasks() { # of job.sh; end_tasks is its scheduler's
  pass_signals record_job_signal end_tasks signal_step
  trap end_step INT
}
record_job_signal() { # SIGNAL
  job_event run signalled "\"signal\": \"$1\""
}
end_tasks() {
  signal_step TERM
}

# Many schedulers signal nothing but the script of a task: Slurm with proctrack/cgroup sends only SIGKILL to all that a task
# has started (its source, proctrack_cgroup.c). Some programs expect SIGUSR1 or SIGUSR2 before their time is over; they are
# ignored by default, because the engine's own processes would die of them. Signals reach programs past the shells that
# have started them (programs.bash).
pass_signals_to_program() { # [END [WARN]]: of task.sh and rank.sh
  ct_ignores_warnings=yes ct_has_witness=yes
  pass_signals record_rank_signal "${1:-pass_term}" "${2:-signal_programs}"
}
record_rank_signal() { # SIGNAL
  node_event signalled "\"rank\": ${RANK:-null}, \"signal\": \"$1\""
}
pass_signals_on_terminal() { # an interactive shell ignores SIGTERM, and hands SIGHUP on to its jobs (man bash, SIGNALS)
  ct_ignores_warnings=yes ct_is_interactive=yes
  pass_signals : : signal_step
  trap 'ending=yes; signal_step HUP' TERM HUP
  trap : INT QUIT # from the terminal: the shell's alone
}

# The witness: a process that sleeps beside a step, and that only a signal to the whole group, session or tree of the script
# ends.
to_all='' # whether SIGTERM came to everything that the step runs
start_witness() {
  ( # bash alone: the image may have no programs for it. Its name keeps it from those who look for a script
    printf witness >"/proc/$BASHPID/comm"
    trap - TERM
    trap '' INT QUIT HUP USR1 USR2
    exec >/dev/null 6>&- 8>&- # before the process below, which may end late, and would hold the home
    exec <> <(:)              # it waits at a pipe that stays empty
    [ -z "${PMI_FD-}" ] || eval "exec $PMI_FD>&-"
    while kill -0 "$$"; do read -r -t 1; done
  ) 2>/dev/null &
  witness=$!
  disown "$witness" # else bash reports its end
}
end_witness() { # until it has gone: one that has just started holds what this script has open, as the lock on the home
  local pid=$witness parent='' tries=0
  witness='' # its end tells no more
  read -r _ _ _ parent _ <"/proc/$pid/stat"
  [ "$parent" = "$$" ] || return # it was ended, and another process may have its number
  kill -KILL "$pid"
  while kill -0 "$pid" && ((++tries < 100)); do sleep 0.01; done
} 2>/dev/null
pass_term() { # torchrun signals the group of a rank, some schedulers all processes of a task: then the program has it
  read -r -t 0.2 <> <(:)
  if reached_all; then to_all=yes; else signal_programs TERM; fi
}
reached_all() { # whether SIGTERM came to everything that the step runs, as far as its witness can tell
  [ "${witness-}" ] && has_sigterm "$witness"
}
has_sigterm() { # PID: whether it has ended a process, or will as soon as a busy machine lets it run
  local pending
  pending=$(signals_of "$1" ShdPnd)
  ((${pending:-0} & 1 << 14)) || [[ $(states "$1") != [!ZX] ]]
}
