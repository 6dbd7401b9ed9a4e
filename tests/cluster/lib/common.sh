# shellcheck shell=bash
# Messages, exit codes and small helpers shared by every file here.

# Automake's code for "skipped": make can tell "this machine cannot" from "this is broken".
readonly EXIT_CANNOT=77

die() {
    printf 'cluster: %s\n' "$*" >&2
    exit 1
}

cannot() {
    printf 'cluster: %s\n' "$1" >&2
    printf 'cluster: still possible here: unit tests, and ctrain run --site local\n' >&2
    exit "$EXIT_CANNOT"
}

require_root() {
    [[ $EUID -eq 0 ]] || cannot "not root: namespaces, mounts and users need it. Run this as root."
}

# require_commands HINT COMMAND...
require_commands() {
    local hint=$1 command
    shift
    for command in "$@"; do
        command -v "$command" >/dev/null || die "$command is not on PATH. $hint"
    done
}

# The first number that no line of FILE (/etc/subuid or /etc/subgid) covers, and none after it.
next_sub_id() {
    awk -F: 'BEGIN { next_id = 100000 } NF == 3 && $2 + $3 > next_id { next_id = $2 + $3 } END { print next_id }' "$1"
}

# Gives USER one range of 65536 subordinate ids of each kind, unless the user has one already.
grant_sub_ids() {
    local user=$1 kind file first
    for kind in uid gid; do
        file=/etc/sub$kind
        if [[ -e $file ]] && grep -q "^$user:" "$file"; then
            continue
        fi
        touch "$file"
        first=$(next_sub_id "$file")
        usermod "--add-sub${kind}s" "$first-$((first + 65535))" "$user"
    done
}

# Runs COMMAND with its output in $LOG_FILE, and shows the end of that only if it fails.
logged() {
    "$@" >>"$LOG_FILE" 2>&1 && return
    tail -n 15 "$LOG_FILE" >&2
    die "failed: $*. The whole output: $LOG_FILE"
}

# Unmounts what is mounted at DIRECTORY and below it. As the kernel lists it: a mount whose server died can't be looked at.
unmount_below() {
    local mounts
    readarray -t mounts < <(findmnt --kernel --raw --noheadings --output TARGET |
        awk -v top="$1" '$0 == top || index($0, top "/") == 1' | tac)
    ((${#mounts[@]} == 0)) || umount --lazy "${mounts[@]}"
}

# wait_until SECONDS COMMAND...: polls COMMAND until it succeeds.
wait_until() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < deadline)) || return 1
        sleep 0.1
    done
}
