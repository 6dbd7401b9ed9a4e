# shellcheck shell=bash
# The compute nodes: one set of namespaces each, joined to the login node by a bridge.

readonly HEALTHY='idle|mixed|allocated|completing'
readonly START_SECONDS=30

# The bridge's alias names its owner: a second state folder must not take the first one's network away.
require_no_other_cluster() {
    local owner
    owner=$(cat "/sys/class/net/$BRIDGE/ifalias" 2>/dev/null) || return 0
    [[ -z $owner || $owner == "$STATE" ]] ||
        die "this machine runs the cluster of $owner. First run: CTRAIN_CLUSTER_DIR=$owner $HERE/cluster down"
}

create_bridge() {
    ip link add name "$BRIDGE" type bridge
    ip link set "$BRIDGE" alias "$STATE"
    ip address add "$LOGIN_ADDRESS/24" dev "$BRIDGE"
    ip link set "$BRIDGE" up
}

# The kernel may be removing the same link just then, with the namespace that held its other end.
remove_link() {
    [[ ! -e /sys/class/net/$1 ]] || ip link delete "$1" 2>/dev/null || [[ ! -e /sys/class/net/$1 ]]
}

# The node's PID namespace makes it one thing to kill: with its init, everything on it ends, mounts and links too.
start_node() {
    local name=$1 namespaces=(--net --uts --ipc --mount --pid) controllers=()
    # In a subshell, which may move to other cgroups.
    (
        if cgroups_used; then
            enter_node_cgroups "$name"
            namespaces+=(--cgroup)
            controllers=("${CGROUP_CONTROLLERS[@]}")
        fi
        exec setsid --fork unshare "${namespaces[@]}" --fork --kill-child=KILL --mount-proc \
            "$HERE/node-init" "$name" "$(node_address "$name")/24" "$BRIDGE" "$STATE" "${controllers[@]}"
    ) </dev/null >"$STATE/log/$name.out" 2>&1 3</proc/self/ns/net 9>&-
}

stop_node() {
    kill_own node-init "$1" "$STATE"
    remove_cgroups "$1"
    # The kernel removes the link of a dead namespace in its own time; a restart must not meet it.
    remove_link "ct-$1"
}

# Needs no list of nodes: the state folder may be incomplete or gone.
stop_all_nodes() {
    local link
    kill_own node-init "$STATE"
    remove_cgroups
    for link in /sys/class/net/ct-*; do
        remove_link "$(basename "$link")"
    done
    remove_link "$BRIDGE"
}

every_node_runs() {
    local name
    for name in $(node_names); do
        ! none_running node-init "$name" "$STATE" || return 1
    done
}

# Prints "NAME STATE" a node, as Slurm sees them.
node_states() {
    sinfo --noheader --Node --format='%N %T' | sort -u
}

unhealthy() {
    grep -vE " ($HEALTHY)\$"
}

every_node_is_healthy() {
    local states
    states=$(node_states 2>/dev/null) && [[ -n $states ]] && ! unhealthy <<<"$states" >/dev/null
}

wait_for_nodes() {
    wait_until "$START_SECONDS" every_node_is_healthy && return
    explain_missing_nodes >&2
    die "not all nodes came up in $START_SECONDS s. Logs: $STATE/log. Clean up with: $HERE/cluster down"
}

explain_missing_nodes() {
    local name
    slurmctld_runs || tail -n 15 "$STATE/log/slurmctld.log"
    for name in $(node_states | unhealthy | cut -d ' ' -f 1); do
        tail -n 15 "$STATE/log/$name".*
    done
}

# A restarted node keeps its old state until its slurmd registers; only this tells before from after.
slurmd_start_time() {
    scontrol --oneliner show node "$1" | grep -o 'SlurmdStartTime=[^ ]*'
}

slurmd_started_after() {
    [[ $(slurmd_start_time "$1") != "$2" ]] && node_states | grep -qE "^$1 ($HEALTHY)\$"
}

start_node_and_wait() {
    local name=$1 before
    before=$(slurmd_start_time "$name")
    start_node "$name"
    wait_until "$START_SECONDS" slurmd_started_after "$name" "$before" && return
    tail -n 15 "$STATE/log/$name".* >&2
    die "$name did not come up in $START_SECONDS s. Logs: $STATE/log"
}
