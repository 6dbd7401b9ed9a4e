# shellcheck shell=bash
# The ordinary user that jobs run as, and that user's access to FUSE.

readonly RESEARCHER=researcher
readonly RESEARCHER_HOME=$STATE/home/$RESEARCHER

researcher_home() {
    getent passwd "$RESEARCHER" | cut -d: -f6
}

create_researcher() {
    local home
    home=$(researcher_home) || true
    if [[ -z $home ]]; then
        useradd --no-log-init --no-create-home --home-dir "$RESEARCHER_HOME" --shell /bin/bash "$RESEARCHER" ||
            die "user $RESEARCHER could not be created (above)."
    elif [[ $home != "$RESEARCHER_HOME" ]]; then
        die "user $RESEARCHER exists with home $home, so it is not this cluster's. Remove it, or use another machine."
    fi
    grant_sub_ids "$RESEARCHER"
    install -d -m 755 "$STATE/home"
    install -d -m 755 -o "$RESEARCHER" -g "$RESEARCHER" "$RESEARCHER_HOME"
}

# Only a user with the home that create_researcher gives is ours to remove.
remove_researcher() {
    local home
    home=$(researcher_home) || true
    [[ $home == "$RESEARCHER_HOME" ]] || return 0
    pkill -KILL -U "$RESEARCHER" || true
    wait_until 10 no_process_of_researcher || die "processes of $RESEARCHER do not end: $(pgrep -U "$RESEARCHER" | xargs)"
    userdel "$RESEARCHER"
}

no_process_of_researcher() {
    ! pgrep -U "$RESEARCHER" >/dev/null
}

open_fuse() {
    [[ -e $STATE/fuse.mode ]] || stat --format %a /dev/fuse >"$STATE/fuse.mode"
    chmod 666 /dev/fuse
}

restore_fuse() {
    [[ -s $STATE/fuse.mode ]] || return 0
    chmod "$(<"$STATE/fuse.mode")" /dev/fuse
}
