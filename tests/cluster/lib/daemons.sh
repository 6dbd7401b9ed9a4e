# shellcheck shell=bash
# Processes of this cluster: the daemons of the login node, and how to find what we started.

# own_pids COMMAND ARGUMENT...: processes named COMMAND that were given each ARGUMENT, or NAME=VALUE as a variable.
# No pid file: those lie after a crash, while every process of ours carries the state folder in one of the two.
own_pids() {
    local command=$1 pid argument arguments
    shift
    for pid in $(pgrep -x "$command"); do
        # A process may end while we look at it.
        arguments=$(cat "/proc/$pid/"{cmdline,environ} 2>/dev/null | tr '\0' '\n') || continue
        for argument in "$@"; do
            grep -qxF -- "$argument" <<<"$arguments" || continue 2
        done
        printf '%s\n' "$pid"
    done
}

# kill_own COMMAND ARGUMENT...
kill_own() {
    local pids
    mapfile -t pids < <(own_pids "$@")
    ((${#pids[@]})) || return 0
    kill -KILL "${pids[@]}" 2>/dev/null || true
    wait_until 10 none_running "$@" || die "processes of $1 do not end: $(own_pids "$@" | xargs)"
}

none_running() {
    [[ -z $(own_pids "$@") ]]
}

start_munged() {
    local dir=$STATE/munge
    install -d -m 755 "$dir"
    (umask 077 && head --bytes=128 /dev/urandom >"$dir/munge.key")
    detached "$STATE/log/munged.out" munged --key-file="$dir/munge.key" --socket="$dir/munge.socket" \
        --pid-file="$dir/munged.pid" --log-file="$dir/munged.log" --seed-file="$dir/munged.seed" ||
        die "munged does not start: $(tail -n 1 "$STATE/log/munged.out")"
}

start_slurmctld() {
    detached "$STATE/log/slurmctld.out" slurmctld -f "$SLURM_CONF" ||
        die "slurmctld does not start: $(tail -n 1 "$STATE/log/slurmctld.out")"
    # A slurmd that finds nobody to register with tries again only after seconds.
    wait_until 30 slurmctld_answers || die "slurmctld does not answer: $(tail -n 1 "$STATE/log/slurmctld.log")"
}

slurmctld_answers() {
    scontrol ping >/dev/null 2>&1
}

# detached LOG COMMAND...: for commands that become daemons. They must hold neither the caller's pipe nor the lock.
detached() {
    local log=$1
    shift
    "$@" </dev/null >"$log" 2>&1 9>&-
}

slurmctld_runs() {
    ! none_running slurmctld "$SLURM_CONF"
}

stop_login_daemons() {
    kill_own slurmctld "$SLURM_CONF"
    stop_accounting
    kill_own munged "--socket=$STATE/munge/munge.socket"
}
