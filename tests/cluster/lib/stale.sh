# shellcheck shell=bash
# Caches as those of NFS: login node and nodes each see the homes through a mount of their own, which remembers sizes and
# names, also missing ones, for some seconds. Listings of directories are always fresh.

readonly STALE_MOUNT=$STATE/login-home
readonly STALE_FILE=$STATE/etc/stale # its seconds; none: no caches

stale_seconds() {
    cat "$STALE_FILE" 2>/dev/null || printf '0\n'
}

# The login node's; every login session shows it in place of the homes.
mount_stale_home() {
    local seconds=$1
    ((seconds)) || return 0
    require_commands "Run: $HERE/install" bindfs
    printf '%s\n' "$seconds" >"$STALE_FILE"
    install -d -m 755 "$STALE_MOUNT"
    detached "$STATE/log/bindfs.out" "$HERE/stale-mount" "$seconds" "$STATE/home" "$STALE_MOUNT" ||
        die "bindfs does not start: $(tail -n 1 "$STATE/log/bindfs.out")"
}

unmount_stale_home() {
    unmount_below "$STALE_MOUNT"
    kill_own bindfs "$STALE_MOUNT"
    [[ ! -d $STALE_MOUNT ]] || rmdir "$STALE_MOUNT"
}
