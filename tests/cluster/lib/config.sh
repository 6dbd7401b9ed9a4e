# shellcheck shell=bash
# Names, addresses and the files that the daemons read.

readonly BRIDGE=ctrain0
readonly NETWORK=10.213.77
LOGIN=$(hostname --short)
readonly LOGIN
readonly LOGIN_ADDRESS=$NETWORK.1
# The fourth byte of nodeNN is FIRST_HOST + NN; the login node is .1.
readonly FIRST_HOST=10
# Nodes of other kinds than nodeNN, always there, and their fourth byte.
readonly -A OTHER_NODES=([skl01]=2 [a100nv01]=3)

# 10# because "08" is no octal number.
node_address() {
    printf '%s.%d' "$NETWORK" "${OTHER_NODES[$1]:-$((FIRST_HOST + 10#${1#node}))}"
}

node_names() {
    local dir
    for dir in "$STATE"/nodes/*; do
        if [[ -d $dir ]]; then basename "$dir"; fi
    done
}

# write_daemon_config NODES: fills in the words between @ signs of conf/*.in.
write_daemon_config() {
    local count=$1 file text word name
    local -A words=(
        [STATE]=$STATE [LOGIN]=$LOGIN [LOGIN_ADDRESS]=$LOGIN_ADDRESS
        [NODES]=node[01-$(printf %02d "$count")]
        [NODE_ADDRESSES]=$NETWORK.[$((FIRST_HOST + 1))-$((FIRST_HOST + count))]
        [PROCTRACK]=proctrack/cgroup [TASK_PLUGINS]=task/affinity,task/cgroup
    )
    for name in "${!OTHER_NODES[@]}"; do
        words[ADDRESS:$name]=$(node_address "$name")
    done
    if ! cgroups_work; then
        say "no cgroup v1 here: nothing keeps jobs from memory and GPUs that they did not ask for"
        words[PROCTRACK]=proctrack/linuxproc words[TASK_PLUGINS]=task/affinity
    fi
    cp "$HERE"/conf/*.conf "$STATE/etc/"
    for file in "$HERE"/conf/*.in; do
        text=$(<"$file")
        for word in "${!words[@]}"; do
            text=${text//@$word@/${words[$word]}}
        done
        printf '%s\n' "$text" >"$STATE/etc/$(basename "$file" .in)"
    done
    # slurmdbd refuses a file that others can read.
    chmod 600 "$STATE/etc/slurmdbd.conf"
}

write_hosts() {
    local name
    printf '127.0.0.1 localhost\n%s %s\n' "$LOGIN_ADDRESS" "$LOGIN"
    for name in $(node_names); do
        printf '%s %s\n' "$(node_address "$name")" "$name"
    done
}

write_config() {
    local count=$1 name names=("${!OTHER_NODES[@]}")
    mapfile -t -O "${#names[@]}" names < <(printf 'node%02d\n' $(seq "$count"))
    install -d -m 755 "$STATE/etc" "$STATE/log" "$STATE/run" "$STATE/spool/slurmctld" "$STATE/nodes"
    for name in "${names[@]}"; do
        install -d -m 755 "$STATE/spool/$name" "$STATE/nodes/$name"
        install -d -m 1777 "$STATE/nodes/$name/tmp"
    done
    write_daemon_config "$count"
    write_hosts >"$STATE/hosts"
}
