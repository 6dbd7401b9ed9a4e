# shellcheck shell=bash
# Names, addresses and the files that the daemons read.

readonly BRIDGE=ctrain0
readonly NETWORK=10.213.77
LOGIN=$(hostname --short)
readonly LOGIN
readonly LOGIN_ADDRESS=$NETWORK.1
# The fourth byte of nodeNN is FIRST_HOST + NN; the login node is .1.
readonly FIRST_HOST=10

node_name() {
    printf 'node%02d' "$1"
}

# node_address nodeNN. 10# because "08" is no octal number.
node_address() {
    printf '%s.%d' "$NETWORK" $((FIRST_HOST + 10#${1#node}))
}

node_names() {
    local dir
    for dir in "$STATE"/nodes/*; do
        if [[ -d $dir ]]; then basename "$dir"; fi
    done
}

write_slurm_conf() {
    local count=$1 text
    text=$(<"$HERE/conf/slurm.conf.in")
    text=${text//@STATE@/$STATE}
    text=${text//@LOGIN@/$LOGIN}
    text=${text//@LOGIN_ADDRESS@/$LOGIN_ADDRESS}
    text=${text//@NODES@/node[01-$(printf %02d "$count")]}
    text=${text//@NODE_ADDRESSES@/$NETWORK.[$((FIRST_HOST + 1))-$((FIRST_HOST + count))]}
    printf '%s\n' "$text" >"$SLURM_CONF"
    cp "$HERE"/conf/*.conf "$STATE/etc/"
}

write_hosts() {
    local name
    printf '127.0.0.1 localhost\n%s %s\n' "$LOGIN_ADDRESS" "$LOGIN"
    for name in $(node_names); do
        printf '%s %s\n' "$(node_address "$name")" "$name"
    done
}

write_config() {
    local count=$1 i name
    install -d -m 755 "$STATE/etc" "$STATE/log" "$STATE/run" "$STATE/spool/slurmctld" "$STATE/nodes"
    for ((i = 1; i <= count; i++)); do
        name=$(node_name "$i")
        install -d -m 755 "$STATE/spool/$name" "$STATE/nodes/$name"
        install -d -m 1777 "$STATE/nodes/$name/tmp"
    done
    write_slurm_conf "$count"
    write_hosts >"$STATE/hosts"
}
