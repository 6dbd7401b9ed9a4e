# shellcheck shell=bash
# Can this machine run the cluster at all? One clear line when it cannot.

require_namespaces() {
    unshare --user --map-root-user true 2>/dev/null ||
        cannot "no user namespaces (see sysctl user.max_user_namespaces): Apptainer cannot start containers."
    unshare --net --uts --ipc --mount --pid --fork true 2>/dev/null ||
        cannot "no network, UTS, IPC, mount or PID namespaces: the nodes cannot be kept apart."
}

# Tried inside a throw-away network namespace, so that nothing is left of it.
require_virtual_network() {
    unshare --net bash -c 'ip link add name probe0 type bridge && ip link add name probe1 type veth' 2>/dev/null ||
        cannot "no bridge or veth devices: the nodes cannot be connected. Try: modprobe bridge veth"
}

require_filesystems() {
    local name
    for name in overlay squashfs fuse; do
        # A module that is not loaded yet is not listed either.
        grep -qw "$name" /proc/filesystems || modprobe --quiet "$name" 2>/dev/null ||
            cannot "the kernel has no $name file system: Apptainer cannot mount images."
    done
    [[ -c /dev/fuse ]] || cannot "/dev/fuse is missing: Apptainer cannot mount images for ordinary users."
}

require_usable_state_dir() {
    # slurm.conf has no quoting, and a socket's path must fit into 108 bytes.
    [[ $STATE =~ ^[A-Za-z0-9/._-]{2,80}$ ]] ||
        die "CTRAIN_CLUSTER_DIR=$STATE is too long, or has a character other than letters, digits and /._-"
    # Every node has its own /tmp and /dev/shm, which would hide a state folder in there from slurmd.
    case $STATE/ in
        /tmp/* | /dev/shm/*) die "CTRAIN_CLUSTER_DIR=$STATE is inside a folder that each node replaces. Choose another." ;;
    esac
}

preflight() {
    require_root
    require_commands "Run: $HERE/install" munged slurmctld slurmd srun apptainer squashfuse newuidmap ip nsenter
    require_namespaces
    require_virtual_network
    require_filesystems
    require_usable_state_dir
}
