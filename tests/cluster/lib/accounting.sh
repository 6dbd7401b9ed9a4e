# shellcheck shell=bash
# What sacct answers from: slurmdbd on a MariaDB of our own, which lives in the state folder and nowhere else.

readonly DATABASE_DIR=$STATE/database
readonly DATABASE_SOCKET=$DATABASE_DIR/socket
readonly DBD_PORT=6819
# It may forget: nothing is synced to disk, and memory is kept small.
readonly DATABASE_OPTIONS=(
    --no-defaults --user=root --datadir="$DATABASE_DIR/data" --tmpdir="$DATABASE_DIR" --socket="$DATABASE_SOCKET"
    --pid-file="$DATABASE_DIR/pid" --skip-networking --skip-grant-tables
    --innodb-buffer-pool-size=32M --innodb-log-file-size=4M --innodb-flush-log-at-trx-commit=0 --innodb-flush-method=nosync
    --debug-no-sync
)

start_accounting() {
    create_database
    detached "$STATE/log/mariadbd.out" setsid --fork mariadbd "${DATABASE_OPTIONS[@]}"
    wait_until 30 test -S "$DATABASE_SOCKET" || die "mariadbd does not start: $(tail -n 1 "$STATE/log/mariadbd.out")"
    MYSQL_UNIX_PORT=$DATABASE_SOCKET detached "$STATE/log/slurmdbd.out" slurmdbd ||
        die "slurmdbd does not start: $(tail -n 1 "$STATE/log/slurmdbd.out")"
    wait_until 30 slurmdbd_listens || die "slurmdbd does not answer: $(tail -n 1 "$STATE/log/slurmdbd.log")"
}

# mariadb-install-db would do the same, but needs the client's packages.
create_database() {
    install -d -m 700 "$DATABASE_DIR" "$DATABASE_DIR/data" "$DATABASE_DIR/data/mysql"
    { echo 'use mysql;' && cat /usr/share/mysql/mysql_system_tables.sql; } |
        mariadbd "${DATABASE_OPTIONS[@]}" --bootstrap >"$STATE/log/mariadbd.bootstrap" 2>&1 ||
        die "the accounting database cannot be created: $(tail -n 1 "$STATE/log/mariadbd.bootstrap")"
}

slurmdbd_listens() {
    [[ -n $(ss --no-header --listening --tcp "sport = $DBD_PORT") ]]
}

accounting_runs() {
    ! none_running slurmdbd "SLURM_CONF=$SLURM_CONF" && ! none_running mariadbd "--socket=$DATABASE_SOCKET"
}

stop_accounting() {
    kill_own slurmdbd "SLURM_CONF=$SLURM_CONF"
    kill_own mariadbd "--socket=$DATABASE_SOCKET"
}
