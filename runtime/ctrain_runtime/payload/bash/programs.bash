#!/bin/bash
# Signals for what a step runs, past the shells that have started it: a shell that waits for a program dies of SIGTERM at
# once, and the program's container and its time to save end with it. So the program gets the signal; its shells are
# stopped until it has ended, and get the signal then, so that they start nothing more. Needs `child`, `passed` and `to_all`.
# shellcheck disable=SC2154  # steps.bash and signals.bash set them

READERS=' tee cat sed awk gawk mawk grep tail head ts tr ' # end by themselves when their input does
WRAPPERS=' starter starter-suid appinit sinit timeout time ' # of engines and others: pass signals on to what they run
# Starters of ranks that do not leave these their time to save: deepspeed and accelerate die of SIGTERM, deepspeed's part
# on each node ends its ranks one after the other, mpirun kills them a second later, horovodrun after five. They end with
# what they have started.
STARTERS=' deepspeed deepspeed.pt ds deepspeed.launcher.runner deepspeed.launcher.launch'
STARTERS+=' accelerate accelerate-launch accelerate.commands.launch horovodrun horovod.runner.launch'
STARTERS+=' mpirun mpiexec orterun mpirun.openmpi mpiexec.openmpi '
TRACKER='from multiprocessing.resource_tracker import' # ignores SIGTERM, and ends with who has started it
OTHERS_PATIENCE=20 TRAP_PATIENCE=10                         # tenths of a second
START_PATIENCE=500                                          # looks, 20 ms apart

children_of() { # PID: sets kids; threads have children of their own
  local path more
  kids=()
  for path in "/proc/$1/task/"*/children; do
    read -r -a more <"$path"
    kids+=("${more[@]}")
  done
} 2>/dev/null
look_at() { # PID: sets name, and words of its command line
  name='' words=()
  read -r name <"/proc/$1/comm"
  mapfile -d '' -t words <"/proc/$1/cmdline"
} 2>/dev/null
is_starter() { # by the name of its program, or of what Python runs: python PATH/deepspeed, python -m deepspeed
  local word=${words[0]-}
  if [[ ${word##*/} == python* ]]; then
    for word in "${words[@]:1}"; do [[ $word == -* ]] || break; done
  fi
  [[ $STARTERS == *" ${word##*/} "* || $word == 'from multiprocessing.spawn import'* ]] # by which horovodrun starts shells
}
find_programs() { # PID [shells]: adds what runs below it to programs, shells and others; of an engine only shells.
  # Sets `beginning` if a process of the engine has no children: it will become the program, and loses signals until then.
  local kid kids name words before=${#programs[@]}
  children_of "$1"
  if [ "${2-}" ] && ((!${#kids[@]})); then beginning=yes; fi
  for kid in "${kids[@]}"; do
    look_at "$kid"
    if [[ ${words[0]##*/} =~ ^-?(ba|da|a|k|mk|z)?sh$ ]]; then # of a script that is executed, too
      before=${#programs[@]}
      find_programs "$kid"
      if ((${#programs[@]} > before)); then shells+=("$kid"); else others+=("$kid"); fi
    elif [[ $WRAPPERS == *" $name "* ]]; then
      before=${#programs[@]}
      find_programs "$kid" shells
      ((${#programs[@]} > before)) || programs+=("$kid")
    elif is_starter; then
      before=${#programs[@]}
      find_programs "$kid"
      ((${#programs[@]} > before)) || programs+=("$kid")
    elif [ "${2-}" ]; then
      : # serves the image
    elif [[ $READERS == *" $name "* || ${words[1]-} == */rendezvous.py || ${words[*]} == *$TRACKER* ]]; then
      others+=("$kid")
    else
      programs+=("$kid")
    fi
  done
}
states() { # PID...: prints a letter for each process that exists (proc(5), stat)
  local pid stat
  for pid; do
    stat=''
    read -r stat <"/proc/$pid/stat"
    stat=${stat##*) }
    printf %s "${stat:0:1}"
  done
} 2>/dev/null
any_runs() { # PID...
  [[ $(states "$@") == *[!ZX]* ]]
}
signals_of() { # PID FIELD: prints a set of signals in /proc/PID/status as a number
  local key value
  while read -r key value; do
    [ "$key" != "$2:" ] || echo $((16#$value))
  done <"/proc/$1/status"
} 2>/dev/null
has_own_answer() { # PID: whether a shell has a trap for SIGTERM. With one for EXIT it catches all (SIGILL), and ends
  local caught
  caught=$(signals_of "$1" SigCgt)
  ((caught & 1 << 14 && !(caught & 1 << 3)))
}
any_got_a_signal() { # PID...: that are stopped
  local pid
  for pid; do (($(signals_of "$pid" ShdPnd) == 0)) || return 0; done
  return 1
} 2>/dev/null
end_programs() { # some shells trap SIGTERM: what those send to the programs, which are stopped meanwhile, is enough
  local pid waiting=() trapping=() tries=0
  for pid in "${shells[@]}"; do
    if has_own_answer "$pid"; then trapping+=("$pid"); else waiting+=("$pid"); fi
  done
  ((!${#waiting[@]})) || kill -STOP "${waiting[@]}"
  if ((${#trapping[@]})); then
    kill -STOP "${programs[@]}"
    # A signal that comes with SIGSTOP would be taken first.
    until [[ $(states "${programs[@]}") != *[!TZX]* ]] || ((++tries > TRAP_PATIENCE)); do sleep 0.1; done
    tries=0
    kill -TERM "${trapping[@]}"
    until any_got_a_signal "${programs[@]}" || ((++tries > TRAP_PATIENCE)); do sleep 0.1; done
    ((tries <= TRAP_PATIENCE)) || kill -TERM "${programs[@]}"
    kill -CONT "${programs[@]}"
  else
    kill -TERM "${programs[@]}"
  fi
  ((!${#waiting[@]})) || end_shells
} 2>/dev/null
end_shells() { # when what they wait for has ended, and what reads its output has had a moment
  (
    local tries=0
    trap '' TERM INT HUP USR1 USR2
    while kill -0 "$$" && any_runs "${programs[@]}"; do sleep 0.05; done
    while ((++tries < OTHERS_PATIENCE)) && any_runs "${others[@]}"; do sleep 0.1; done
    kill -TERM "${waiting[@]}"
    kill -CONT "${waiting[@]}"
  ) 6>&- 8>&- >/dev/null 2>&1 &
  disown "$!"
}
signal_programs() { # SIGNAL
  local programs shells others beginning tries=0
  [ -n "$child" ] || return
  # shellcheck disable=SC2034  # read by steps.bash
  passed=$1
  while ((tries++ < START_PATIENCE)); do
    programs=() shells=() others=() beginning=''
    find_programs "$child"
    if ((${#programs[@]} + ${#others[@]})) && [ -z "$beginning" ]; then break; fi
    any_runs "$child" || break
    sleep 0.02
  done
  ((${#programs[@]})) || { programs=("${others[@]}") others=(); }
  ((${#programs[@]})) || return
  if [ "$1" = TERM ]; then end_programs; else kill -s "$1" "${programs[@]}" 2>/dev/null; fi
}
wait_for_survivors() { # of a signal to the whole group, which has ended the shell alone; $$ leads the group
  local path stat fields left=$to_all
  while [ "$left" ]; do
    left=''
    for path in /proc/[0-9]*/stat; do
      stat=''
      read -r stat <"$path"
      read -r -a fields <<<"${stat##*) }" # state, parent, group ... (proc(5))
      if [ "${fields[2]-}" != "$$" ] || [[ ${fields[0]} == [ZX] ]]; then continue; fi
      [ "${stat%% *}" = "$$" ] || [ "${fields[1]}" = "$$" ] || left=yes
    done
    [ -z "$left" ] || sleep 0.1
  done
} 2>/dev/null
