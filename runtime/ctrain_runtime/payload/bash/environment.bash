#!/bin/bash
# The environment of a container, its GPUs, and what of the node's own goes into it.
# shellcheck disable=SC2154  # variables of other parts

ct_binds=()   # what only the node knows
ct_without=() # options of env(1) for variables that bash cannot unset
load_modules() { # ENGINE MODULE...: by which the engine is on PATH, if it is not; in a login shell, of which PATH is kept
  # shellcheck disable=SC2016  # for another shell
  local path load='for m; do case $m in /*) module use "$m" ;; *) module load "$m" ;; esac; done >&2; printf "\n%s" "$PATH"'
  ! command -v "$1" >/dev/null || return 0
  path=$(/bin/bash -lc "$load" ctrain "${@:2}") && export PATH=$PATH:${path##*$'\n'}
}
need_engine() { # ENGINE
  command -v "$1" >/dev/null ||
    refuse 73 "the engine is not on PATH on $node, nor do the modules of the site file load it"
}
pass_variables() { # PREFIX NAME...: variables that are set here pass into the container by PREFIX. Nothing else does:
  # the caller's settings of the engine are unset, and --cleanenv does the rest.
  local name
  unset "${!APPTAINER@}" "${!SINGULARITY@}"
  for name in "${@:2}"; do
    [ -z "${!name+set}" ] || export "$1$name=${!name}"
  done
  unset BASH_ENV ENV LD_LIBRARY_PATH LD_PRELOAD # read by every bash and loader on the way into the container
  while IFS='=' read -r -d '' name _; do # exported functions, and names like APPTAINERENV_A.B: bash hands these on
    [[ $name =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || ct_without+=(-u "$name")
  done <"/proc/$$/environ"
}
order_gpus() { # VARIABLE NUMBERS_VARIABLE HAS_ALL NUMBER...: puts the visible GPUs into the order of the site, as far as the
  # job has them. It stays as it is where it holds anything else than numbers of the node's GPUs (UUIDs, MIG) and the
  # scheduler does not tell these, and where it is not set although the job may have only some of the GPUs.
  local devices=${!1-$3} list=${2:+${!2-}} number numbers ordered=() i
  IFS=, read -r -a numbers <<<"${list:-$devices}"
  IFS=, read -r -a devices <<<"$devices"
  for number in "${@:4}"; do
    for i in "${!devices[@]}"; do [ "${numbers[i]-}" != "$number" ] || ordered+=("${devices[i]}"); done
  done
  if ((${#ordered[@]} && ${#ordered[@]} == ${#devices[@]} && ${#devices[@]} == ${#numbers[@]})); then
    printf -v devices '%s,' "${ordered[@]}"
    export "$1=${devices%,}"
  fi
}
take_gpus() { # RANKS EVERY VARIABLE...: leaves a task its share of the node's GPUs; tasks beyond their number share them
  local name devices share first every=$2
  for name in "${@:3}"; do
    IFS=, read -r -a devices <<<"${!name-$every}"
    ((${#devices[@]})) || continue
    share=$((${#devices[@]} / $1))
    ((share)) || share=1
    first=$((local_task * share % ${#devices[@]}))
    printf -v devices '%s,' "${devices[@]:first:share}"
    export "$name=${devices%,}"
  done
}
add_host_libraries() { # PATTERN...: files of the node whose libraries the image needs; last on its LD_LIBRARY_PATH
  local pattern file libraries=''
  for pattern; do
    for file in $pattern; do # without quotes: a pattern
      if [ -f "$file" ]; then libraries+=,$file; else echo "ctrain: host library $file not found on $node" >&2; fi
    done
  done
  [ -z "$libraries" ] || launch+=(--containlibs "${libraries#,}") # a hidden option of all engines, which OLCF documents
}
enter() { # HOME IMAGE: completes the array launch, the engine's argv, up to the image
  local bind
  image=$2
  [ "${#ct_without[@]}" = 0 ] || launch=(env "${ct_without[@]}" "${launch[@]}")
  for bind in "${ct_binds[@]}"; do launch+=(--bind "$bind"); done
  launch+=(--home "$ct_home:$1" "$image")
}
