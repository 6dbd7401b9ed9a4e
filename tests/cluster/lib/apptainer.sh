# shellcheck shell=bash
# Apptainer on Debian 12, which has no package of it: sid's package, run on sid's libc from a private folder.

readonly SID_DIR=$CACHE_DIR/sid
readonly PRIVATE_LIBS=/usr/local/lib/apptainer-libs
readonly MULTIARCH=x86_64-linux-gnu
readonly KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
# What apptainer's programs link to and bookworm has too old; libgcc goes along because libc loads it by name.
readonly SID_PACKAGES=(apptainer libc6 libseccomp2 libsqlite3-0 libgcc-s1)

apptainer_works() {
    command -v apptainer >/dev/null && apptainer --version >/dev/null 2>&1
}

# The machine's own mirror, as apt itself understands its sources (either file format, any host).
debian_mirror() {
    local mirror
    # shellcheck disable=SC2016  # $(REPO_URI) is a field of apt's format, not a shell expansion
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | sort -u | head -n 1)
    [[ -n $mirror ]] || die "no Debian mirror in this machine's apt sources. Add one, or set CTRAIN_DEBIAN_MIRROR."
    printf '%s\n' "$mirror"
}

# An apt with its own lists and cache: sid is never a source of this machine, and apt still checks signatures.
sid_apt() {
    local tool=$1
    shift
    "$tool" -q \
        -o Dir::Etc::sourcelist="$SID_DIR/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
        -o Dir::State::lists="$SID_DIR/lists" -o Dir::Cache="$SID_DIR/cache" \
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o Acquire::GzipIndexes=true \
        -o APT::Sandbox::User=root -o APT::Update::Post-Invoke-Success= "$@"
}

download_sid_packages() {
    local mirror=${CTRAIN_DEBIAN_MIRROR:-}
    [[ -n $mirror ]] || mirror=$(debian_mirror)
    mkdir -p "$SID_DIR/lists/partial" "$SID_DIR/cache/archives/partial" "$SID_DIR/debs"
    printf 'deb [signed-by=%s] %s sid main\n' "$KEYRING" "$mirror" >"$SID_DIR/sources.list"
    logged sid_apt apt-get update
    cd "$SID_DIR/debs"
    # A file already here with the right hash is not fetched again.
    logged sid_apt apt-get download "${SID_PACKAGES[@]}"
    cd - >/dev/null
}

# sid_package_files NAME...: the files of exactly the versions in the index, whatever older ones lie in the cache.
sid_package_files() {
    sid_apt apt-get download --print-uris "$@" | awk -v dir="$SID_DIR/debs" '/^\x27/ { print dir "/" $2 }'
}

unpack_private_libs() {
    local stage=$1 deb
    while read -r deb; do
        dpkg-deb --extract "$deb" "$stage/libs"
    done < <(sid_package_files "${SID_PACKAGES[@]:1}")
    mkdir -p "$PRIVATE_LIBS"
    # Libraries only: libc's gconv and audit modules are loaded by programs that we do not run here.
    find "$stage/libs/usr/lib/$MULTIARCH" -maxdepth 1 -name '*.so*' -exec cp -a -t "$PRIVATE_LIBS" {} +
}

use_private_libs() {
    patchelf --set-interpreter "$PRIVATE_LIBS/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$PRIVATE_LIBS" "$@"
}

install_apptainer() {
    local stage=$SID_DIR/stage
    download_sid_packages
    rm -rf "$stage"
    mkdir -p "$stage/libs" "$stage/tree"
    unpack_private_libs "$stage"
    dpkg-deb --extract "$(sid_package_files apptainer)" "$stage/tree"
    use_private_libs "$stage/tree/usr/bin/apptainer" "$stage/tree/usr/lib/$MULTIARCH/apptainer/bin/starter"
    # The command itself goes last and by rename, so that whoever finds it on PATH finds a complete installation.
    mv "$stage/tree/usr/bin/apptainer" "$stage/apptainer"
    tar --create --directory "$stage/tree" --exclude ./usr/share/man . |
        tar --extract --directory / --no-overwrite-dir --keep-directory-symlink
    install -m 755 "$stage/apptainer" /usr/bin/.apptainer.new
    mv /usr/bin/.apptainer.new /usr/bin/apptainer
    rm -rf "$stage"
    apptainer_works || die "apptainer is installed but does not run. See: apptainer --version"
}
