#!/bin/sh
# Sourced by the %post of a layer that compiles Python packages on an image with PyTorch: settings and functions.
# `work` is the directory of this file and of python_packages.py.
# %post does not get the image's environment, which says where NGC's compiler, MPI and CUDA are.
# shellcheck source=/dev/null
for part in /.singularity.d/env/*.sh; do . "$part"; done
# Last: where packages come from is the building machine's business, not the image's.
# shellcheck source=/dev/null
if [ -f /mnt/build-env.sh ]; then . /mnt/build-env.sh; fi
# NGC's BASH_ENV would start a driver check in every shell of the build.
unset BASH_ENV
export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

package_directory() { # PACKAGE
    python3 -c "import importlib.util as u; print(*u.find_spec('$1').submodule_search_locations)"
}

version_of() { # PACKAGE
    python3 -c "from importlib.metadata import version; print(version('$1'))"
}

# Whether the image has packages of such versions ("torch>=2.6", "python>=3.11"); whether it has them, or its constraint
# file lets pip install them.
image_has() { ask has "$@"; }       # REQUIREMENT...
image_allows() { ask allows "$@"; } # REQUIREMENT...
ask() {
    answer=0
    # shellcheck disable=SC2154  # whoever sources this has set it
    python3 "$work/python_packages.py" "$@" || answer=$?
    case $answer in
        0) return 0 ;;
        10) return 1 ;;
        *) exit 1 ;;
    esac
}

# A package that the image has stays as it is, since NGC's set was tested together, unless one that is installed here, or
# the one whose source is in DIRECTORY, needs another version.
install_missing() { # [--for DIRECTORY] [--without NAME]... NAME==VERSION...
    python3 "$work/python_packages.py" install "$@"
}

# NAME==VERSION, or NAME alone where the constraint file of NGC's image (from 25.03 on) has another version.
constrained() { # NAME==VERSION
    python3 "$work/python_packages.py" pin "$1"
}

# Make files in the new DIRECTORY by a command. `ctrain build` keeps them for the next build in which the same programs have
# run, and where they count for the same packages: mirrors can have newer ones.
compile_once() { # DIRECTORY COMMAND...
    name_kept "$1"
    make_once "$@"
}

# The same as a job beside what follows; the packages are those of now.
compile_beside() { # DIRECTORY COMMAND...
    name_kept "$1"
    make_once "$@" &
}

name_kept() { # DIRECTORY
    packages=$({ dpkg-query --show || true; python3 -m pip list --format freeze; } | sha256sum)
    kept=/mnt/compiled/$(basename "$1")-${packages%% *}
}

make_once() { # DIRECTORY COMMAND...
    directory=$1
    shift
    if [ -d "$kept" ]; then
        echo "$(basename "$directory"): compiled before, taken from the cache"
        cp -r "$kept" "$directory"
        return
    fi
    mkdir "$directory"
    # Not the layer's time, which changes with its tests. What Python compiled of the image would be missing next time.
    (export SOURCE_DATE_EPOCH=315619200 PYTHONDONTWRITEBYTECODE=1; "$@")
    if [ -d /mnt/compiled ]; then
        rm -rf "${kept%-*}"-*
        cp -r "$directory" "$kept"
    fi
}

# Compile mpi4py beside what follows, and install it, where the image has none. From source, to be linked with the image's
# own MPI. Cython is not left in the image, so no constraint holds for it.
start_mpi4py() { # VERSION
    mpi4py=
    if ! image_has mpi4py; then
        compile_beside "$work/mpi4py" compile_mpi4py "$(constrained "mpi4py==$1")"
        mpi4py=$!
    fi
}

finish_mpi4py() {
    if [ -n "$mpi4py" ]; then
        wait "$mpi4py"
        install_wheel "$work/mpi4py" mpi4py
    fi
}

compile_mpi4py() { # REQUIREMENT
    PIP_CONSTRAINT='' python3 -m pip install --no-deps --target "$work/cython" cython==3.2.9
    PYTHONPATH="$work/cython" CFLAGS=-g0 python3 -m pip wheel --no-deps --no-build-isolation --no-binary mpi4py \
        --wheel-dir "$work/mpi4py" "$1"
}

# By its name, so that pip does not note a path that is gone; from nowhere else.
install_wheel() { # DIRECTORY NAME
    PIP_CONSTRAINT='' PIP_NO_INDEX=1 PIP_FIND_LINKS="$1" python3 -m pip install --no-deps --force-reinstall "$2"
}

# The C++ standard for which torch compiles extensions, as 17.
torch_standard() {
    grep -o 'std=c++[0-9]*' "$(package_directory torch)/utils/cpp_extension.py" | grep -o '[0-9]*$' | sort -n | tail -n 1
}

cmake_at_least() { # VERSION
    present=$(cmake --version | sed -n 's/^cmake version //p')
    [ "$(printf '%s\n' "$1" "${present:-0}" | sort -V | head -n 1)" = "$1" ]
}

torch_before=$(version_of torch)
check_torch() {
    if [ "$(version_of torch)" != "$torch_before" ]; then
        echo "torch changed from $torch_before to $(version_of torch)" >&2
        exit 1
    fi
}
