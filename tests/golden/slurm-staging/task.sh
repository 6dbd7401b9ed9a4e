#!/bin/bash -p
# One rank of digits-1, started by srun.
run=/scratch/kim/ctrain/digits-1
node=$(uname -n) # not HOSTNAME: srun hands down that of the first node
node=${node%%.*}
note() { # WHAT [MORE]: an event of this node; appends of one host do not get lost, on NFS neither
  local now=${EPOCHREALTIME/[^0-9]/.} # some locales write a comma
  now=${now:-$(date +%s.%N)}
  printf '{"time": %s, "stage": "run", "node": "%s", "what": "%s"%s}\n' \
    "${now:-null}" "$node" "$1" "${2:+, $2}" >>"$run/nodes/$NODE_RANK.jsonl"
}
refuse() { # CODE MESSAGE
  echo "ctrain: $2" >&2
  note refused "\"rank\": ${RANK:-null}, \"code\": $1, \"message\": \"$2\""
  exit "$1"
}
binds=()
task=${SLURM_PROCID:?} tasks=${SLURM_NTASKS:?} local_task=${SLURM_LOCALID:?} NODE_RANK=${SLURM_NODEID:?}
hosts=${SLURM_STEP_NODELIST:?}
while [[ ${hosts%%,*} == *\[* ]]; do
  rest=${hosts#*\[}
  hosts=${hosts%%\[*}${rest%%[],-]*}${rest#*\]}
done
export MASTER_ADDR=${hosts%%,*}
export MASTER_PORT=$((61000 + (SLURM_JOB_ID + SLURM_STEP_ID + 4448) % 4536))
export RANK=$task WORLD_SIZE=$tasks LOCAL_RANK=$local_task NODE_RANK
export OMPI_COMM_WORLD_RANK=$RANK OMPI_COMM_WORLD_SIZE=$WORLD_SIZE
export OMPI_COMM_WORLD_LOCAL_RANK=$LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE=8
exec >"$run/logs/rank$RANK.log" 2>&1
[ "$WORLD_SIZE" = 16 ] ||
  refuse 72 "srun started $WORLD_SIZE ranks, but the plan has 16"
[ -n "${PMIX_RANK:-}" ] || refuse 72 "srun started this rank without PMIx: MPI would run with world size 1"
# PMIx keeps its sockets in a directory of this step, known only here.
[ -z "${PMIX_SERVER_TMPDIR:-}" ] || binds+=("$PMIX_SERVER_TMPDIR")
scan=''
scan_world() { # who joins the world of the run: see docs/runs.md
  local python hosts
  exec </dev/null >/dev/null 2>&1 4<> <(:) # nobody writes to it
  read -r -t 1 -u 4
  mapfile -t hosts < <(scontrol show hostnames "$SLURM_STEP_NODELIST")
  for python in /usr/bin/python3 /usr/libexec/platform-python python3 ''; do
    ! "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 6))' || break
  done
  [ "$python" ] || return
  exec "$python" -I "$run/scan.py" "$run" mpi "$NODE_RANK" 2 8 \
    "${hosts[@]}"
}
if [ "$local_task" = 0 ] && [ "${1-}" != preflight ]; then
  scan_world &
  scan=$!
fi
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
  # shellcheck disable=SC2034  # read by the scripts that include this
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
exec 6<> <(:) # carries exit codes
child='' ending='' passed='' begun=''
signal_children() { # SIGNAL PID; fails if it has none
  local kids=()
  read -r -a kids <"/proc/$2/task/$2/children"
  ((${#kids[@]})) && kill -s "$1" "${kids[@]}"
} 2>/dev/null
to_all='' # whether SIGTERM came to everything that the step runs
start_witness() {
  ( # bash alone: the image may have no programs for it. Its name keeps it from those who look for a script
    printf witness >"/proc/$BASHPID/comm"
    trap - TERM
    trap '' INT QUIT HUP USR1 USR2
    exec <> <(:) >/dev/null 6>&- 8>&- # it waits at a pipe that stays empty
    [ -z "${PMI_FD-}" ] || eval "exec $PMI_FD>&-"
    while kill -0 "$$"; do read -r -t 1; done
  ) 2>/dev/null &
  witness=$!
  disown "$witness" # else bash reports its end
}
end_witness() { # until it has gone: one that has just started holds what this script has open, as the lock on the home
  local parent='' tries=0
  read -r _ _ _ parent _ <"/proc/$witness/stat"
  [ "$parent" = "$$" ] || return # it was ended, and another process may have its number
  kill -KILL "$witness"
  while kill -0 "$witness" && ((++tries < 100)); do sleep 0.01; done
} 2>/dev/null
pass_term() { # torchrun signals the group of a rank, some schedulers all processes of a task: then the program has it
  read -r -t 0.2 <> <(:)
  if kill -0 "${witness:-0}" 2>/dev/null; then signal_programs TERM; else to_all=yes; fi
}
is_over() { # whether what was started has ended
  [ "$begun" ] && ! kill -0 "$child" 2>/dev/null
}
signal_step() { # SIGNAL
  local tries=0
  [ -n "$child" ] || return
  passed=$1
  until signal_children "$1" "$child" || ((++tries > 50)); do sleep 0.02; done
}
run_step() { # COMMAND...
  code=143
  [ -z "$ending" ] || return # a signal that came before
  start_witness
  ( # without bash's own message about a command that was killed
    trap - INT; trap : TERM; trap '' USR1 USR2; exec 5>&2 2>/dev/null
    echo 137 >&6 # until it is known: what reports may be killed itself
    "$@" 2>&5 5>&- 6>&-
    echo "$?" >&6
  ) &
  child=$! begun=yes
  [ -z "$ending" ] || [ "$passed" = TERM ] || signal_step TERM
  while kill -0 "$child" 2>/dev/null; do wait "$child"; done 2>/dev/null # a signal ends `wait` early
  while read -t 0 -u 6 && read -r -u 6 code; do :; done # without any, a signal to all came before the command
  end_witness
  wait_for_survivors
  child=''
}
signalled() { # SIGNAL
  is_over || note signalled "\"rank\": ${RANK:-null}, \"signal\": \"$1\""
}
end_step() {
  [ -z "$ending" ] || return
  signalled TERM
  ending=yes
  pass_term
}
trap end_step TERM
trap 'signalled USR1; signal_programs USR1' USR1
trap 'signalled USR2; signal_programs USR2' USR2
base=${TMPDIR:-/tmp} # the submitting host's may be missing here; and engines read ':' and ',' as separators
[[ $base == /* && -d $base && -w $base && $base != *[:,\\\"[:cntrl:]]* ]] || base=/tmp
home=$base/ctrain-$UID-$node.887be2b4ed78 # a node's own, where TMPDIR is shared: locks on NFS may be local
remove_unused() { # DIRECTORY: unless another process holds it
  (exec 7<"$1" && flock -n -x 7 && rm -rf "$1") 2>/dev/null
}
for old in "$base/ctrain-$UID-$node."*; do # what runs left behind that were killed
  [ "$old" = "$home" ] || [ -L "$old" ] || [ ! -O "$old" ] || remove_unused "$old"
done
tries=0
until [ "$home" -ef /dev/fd/8 ]; do # again while the last user of it removes it
  if mkdir -m 700 "$home" 2>/dev/null || { [ -d "$home" ] && [ -O "$home" ] && [ ! -L "$home" ]; }; then
    { exec 8<"$home"; } 2>/dev/null && { ! flock -n -x 8 || rm -f "$home"/.cache/torch_extensions/*/lock; } && flock -s 8
  elif ((++tries > 50)); then
    refuse 73 "cannot create a home in $base on $node"
  fi
done
extensions_key=34188dc9f49596e0
KEEP_DAYS=30
made=$home/.cache/torch_extensions # TORCH_EXTENSIONS_DIR, inside
find_kept() { # sets kept, the place of what was compiled for this image on such a node; fails if there can be none
  local cache=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}} sum
  [[ $cache == /* && $extensions_key ]] || return
  read -r sum _ < <(
    { grep -m 1 -E '^(flags|Features)' /proc/cpuinfo && grep -h '^Model:' /proc/driver/nvidia/gpus/*/information; } | cksum
  )
  kept=$cache/ctrain/extensions/$extensions_key-$sum
  [ ! -L "$kept" ] && { [ ! -e "$kept" ] || [ -O "$kept" ]; }
} 2>/dev/null
take_extensions() { # the first rank of a node does it; the others wait
  local part=$home/.extensions
  { find_kept && [ -d "$kept" ]; } || return 0
  {
    flock 9
    [ ! -e "$made" ] || return 0
    touch "$kept"
    rm -rf "$part"
    cp -a "$kept" "$part" && mkdir -p "${made%/*}" && mv -T "$part" "$made"
  } 9>"$home/.extensions.lock"
} 2>/dev/null
keep_extensions() { # of a run that ended well, by its last rank on the node
  local directory name new
  find_kept || return 0
  find "${kept%/*}" -mindepth 1 -maxdepth 1 -mtime "+$KEEP_DAYS" -exec rm -rf {} +
  find "$kept" -mindepth 1 -maxdepth 1 -name '.*' -mtime +1 -exec rm -rf {} + # of killed ones
  for directory in "$made"/*/; do
    directory=${directory%/} name=${directory##*/}
    { [ -e "$directory/$name.so" ] && [ ! -e "$directory/lock" ]; } || continue # a rank was killed
    ! cmp -s "$directory/$name.so" "$kept/$name/$name.so" || continue
    mkdir -p "${kept%/*}" && { mkdir -m 700 "$kept" || [ -O "$kept" ]; } || return 0
    new=$kept/.$name.$node.$$
    if cp -a "$directory" "$new"; then # another node may do the same: the first wins
      mv -T "$kept/$name" "$new.old"
      mv -T "$new" "$kept/$name"
    fi
    rm -rf "$new" "$new.old"
  done
} 2>/dev/null
leave() {
  exec 8<&-
  (exec 7<"$home" && flock -n -x 7 && { [ "$code" != 0 ] || keep_extensions; rm -rf "$home"; }) 2>/dev/null
}
take_extensions
export LOCAL_WORLD_SIZE=8 OMP_NUM_THREADS=8
unset "${!APPTAINER@}" "${!SINGULARITY@}"
for name in "${!SLURM_@}" "${!PMIX_@}" "${!PMI_@}" RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT OMP_NUM_THREADS CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES TERM ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES GPU_DEVICE_ORDINAL ZE_AFFINITY_MASK OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE; do
  [ -z "${!name+set}" ] || export "APPTAINERENV_$name=${!name}"
done
unset BASH_ENV ENV LD_LIBRARY_PATH LD_PRELOAD
without=() # exported functions, and names like APPTAINERENV_A.B, which bash hands on but cannot unset
while IFS='=' read -r -d '' name _; do
  [[ $name =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || without+=(-u "$name")
done <"/proc/$$/environ"
export APPTAINERENV_BASH_ENV=''
export APPTAINERENV_CTRAIN_RUN_DIR=/scratch/kim/ctrain/digits-1
export APPTAINERENV_ENV=''
export APPTAINERENV_MPIR_CVAR_CH4_CMA_ENABLE=0
export APPTAINERENV_OMPI_MCA_btl_vader_single_copy_mechanism=none
export APPTAINERENV_OMPI_MCA_smsc='^cma'
export APPTAINERENV_PMIX_MCA_gds=hash
export APPTAINERENV_PMIX_MCA_psec=native
export APPTAINERENV_PYTHONNOUSERSITE=1
export APPTAINERENV_PYTHONUNBUFFERED=1
export APPTAINERENV_TORCHINDUCTOR_CACHE_DIR=/home/ctrain/.cache/torchinductor
export APPTAINERENV_TORCH_EXTENSIONS_DIR=/home/ctrain/.cache/torch_extensions
export APPTAINERENV_UCX_POSIX_USE_PROC_LINK=n
export APPTAINERENV_UCX_TLS='^cma'
file=/apps/ctrain/pytorch_24.12-hd-py3-r3.sif
directory='/local disk'/ctrain-images-$UID
image=$file
copy=$directory/9f2c41d0a7e3.sif # complete: it got this name when its digest was checked
if [ -O "$directory" ] && [ ! -L "$directory" ] && [ "$(stat -c %s "$copy" 2>/dev/null)" = 5 ] &&
  { exec {in_use}<"$copy"; } 2>/dev/null && flock -s -n "$in_use"; then
  touch -c "$copy"
  image=$copy
fi
launch=(
  /usr/bin/apptainer
  --quiet
  exec
  --cleanenv
  --no-mount
  cwd
  --pwd
  /opt/ctrain/examples/digits
  --no-eval
  --nv
  --bind
  /scratch/kim/ctrain/digits-1:/scratch/kim/ctrain/digits-1:rw
)
[ "${#without[@]}" = 0 ] || launch=(env "${without[@]}" "${launch[@]}")
for bind in "${binds[@]}"; do launch+=(--bind "$bind"); done
launch+=(--home "$home:/home/ctrain" "$image")
launch+=(/bin/sh -c '{ read -r line </proc/driver/nvidia/version; } 2>/dev/null && for word in $line; do case $word in [1-9][0-9][0-9].*)
  case $((${word%%.*} < 525)):${LD_LIBRARY_PATH-} in
    1:*) first="/usr/local/cuda/compat/lib.real /usr/local/cuda/compat/lib /usr/local/cuda/compat" ;;
    0:*/usr/local/cuda/compat*) first=/.singularity.d/libs ;;
    *) first= ;;
  esac
  for libraries in $first; do
    [ ! -e "$libraries/libcuda.so.1" ] ||
      { export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"; break; }
  done; break ;; esac; done; { read -r key </.singularity.d/ctrain-layer; } 2>/dev/null; [ "$key" = k1 ] || { printf '"'"'%s\n'"'"' '"'"'ctrain: this engine ignores the layers of the image (overlay is off, or Singularity lacks set-uid root)'"'"' >&2; printf '"'"'%s\n'"'"' "{\"rank\": ${RANK:-null}, "'"'"'"what": "refused", "stage": "run", "code": 73, "message": "this engine ignores the layers of the image (overlay is off, or Singularity lacks set-uid root)"}'"'"' >>"$CTRAIN_RUN_DIR/nodes/$NODE_RANK.jsonl"; exit 73; }; command -v python >/dev/null || { printf '"'"'%s\n'"'"' '"'"'ctrain: command not found in the image: python'"'"' >&2; printf '"'"'%s\n'"'"' "{\"rank\": ${RANK:-null}, "'"'"'"what": "refused", "stage": "run", "code": 127, "message": "command not found in the image: python"}'"'"' >>"$CTRAIN_RUN_DIR/nodes/$NODE_RANK.jsonl"; exit 127; }; exec "$@"' ctrain python train.py)
find_memory_group() { # sets group, the cgroup's directory, and kills, the file that counts
  local controllers path
  group='' kills=''
  while IFS=: read -r _ controllers path; do
    case ,$controllers, in
      *,memory,*)
        group=/sys/fs/cgroup/memory${path%/} kills=memory.oom_control
        return
        ;;
      ,,) group=/sys/fs/cgroup${path%/} kills=memory.events ;;
    esac
  done </proc/self/cgroup
} 2>/dev/null
count_memory_kills() { # sets killed
  local name value
  killed=0
  while read -r name value _; do
    [ "$name" != oom_kill ] || killed=$value
  done <"$group/$kills"
} 2>/dev/null
find_memory_limit() { # sets memory_limit in bytes, 0 without one
  local directory=$group name value
  memory_limit=0
  while read -r name value; do
    [ "$name" != hierarchical_memory_limit ] || ((${#value} > 18)) || memory_limit=$value
  done <"$group/memory.stat"
  [ "$kills" = memory.events ] || return 0
  while [[ $directory == /sys/fs/cgroup/* ]]; do
    if read -r value <"$directory/memory.max" && [[ $value =~ ^[0-9]+$ ]]; then
      ((memory_limit && memory_limit <= value)) || memory_limit=$value
    fi
    directory=${directory%/*}
  done
} 2>/dev/null
find_memory_group
count_memory_kills
killed_before=$killed
note started "\"rank\": $RANK"
run_step "${launch[@]}"
count_memory_kills
memory=''
if [ "$code" != 0 ] && ((killed > killed_before)); then
  find_memory_limit
  memory=", \"memory_limit\": $memory_limit"
fi
if [ "$scan" ]; then
  parent=''
  read -r _ _ _ parent _ <"/proc/$scan/stat"
  [ "$parent" != "$$" ] || kill "$scan"
  wait "$scan"
  [ "$?" != 81 ] || code=81
fi 2>/dev/null
leave
note ended "\"rank\": $RANK, \"code\": $code$memory"
exit "$code"
