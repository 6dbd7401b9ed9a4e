# shellcheck shell=bash
# Holding jobs to their memory and GPUs, where the kernel lets it: cgroup v1, a subtree and a namespace a node.
# Debian 12's Slurm uses v2 only as a child of systemd, which is not there in a container.

readonly CGROUP_ROOT=/sys/fs/cgroup
# What proctrack/cgroup and the Constrain lines of conf/cgroup.conf need.
readonly CGROUP_CONTROLLERS=(freezer memory devices)
readonly CGROUP_PARENT=ctrain-cluster

cgroups_work() {
    local controller probe
    for controller in "${CGROUP_CONTROLLERS[@]}"; do
        probe=$CGROUP_ROOT/$controller/$CGROUP_PARENT/probe
        { mkdir -p "$probe" && rmdir "$probe"; } 2>/dev/null || return 1
    done
    unshare --cgroup --mount bash -c "mount -t tmpfs tmpfs $CGROUP_ROOT && mount -t cgroup -o memory memory $CGROUP_ROOT" 2>/dev/null
}

# What this cluster was started with: a node that is switched on again must be as it was.
cgroups_used() {
    grep -q '^ProctrackType=proctrack/cgroup' "$SLURM_CONF"
}

# Moves the caller, so that the namespace it makes next has the node's own subtrees as its roots.
enter_node_cgroups() {
    local controller dir
    for controller in "${CGROUP_CONTROLLERS[@]}"; do
        dir=$CGROUP_ROOT/$controller/$CGROUP_PARENT/$1
        mkdir -p "$dir"
        printf '%s\n' "$BASHPID" >"$dir/cgroup.procs"
    done
}

# remove_cgroups [NODE]: of one node, or all of them. Their processes have ended.
remove_cgroups() {
    local dir
    for dir in "$CGROUP_ROOT"/*/"$CGROUP_PARENT${1:+/$1}"; do
        [[ ! -d $dir ]] || wait_until 10 remove_cgroup_tree "$dir" || die "cgroup $dir is still in use."
    done
}

# The kernel lets go of a dead process's cgroup in its own time.
remove_cgroup_tree() {
    find "$1" -depth -type d -exec rmdir {} + 2>/dev/null
}
