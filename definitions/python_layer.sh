#!/bin/sh
# Sourced by the %post of a layer that compiles Python packages on an image with PyTorch: settings and functions.
# shellcheck source=/dev/null
if [ -f /mnt/build-env.sh ]; then . /mnt/build-env.sh; fi
# %post does not get the image's environment, which says where NGC's compiler, MPI and CUDA are.
# shellcheck source=/dev/null
for part in /.singularity.d/env/*.sh; do . "$part"; done
# NGC's BASH_ENV would start a driver check in every shell of the build.
unset BASH_ENV
export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_CACHE_DIR=1

package_directory() { # PACKAGE
    python3 -c "import importlib.util as u; print(*u.find_spec('$1').submodule_search_locations)"
}

version_of() { # PACKAGE
    python3 -c "from importlib.metadata import version; print(version('$1'))"
}

# NAME==VERSION, or NAME alone where the constraint file of NGC's image (from 25.03 on) has the version.
constrained() { # NAME==VERSION
    if grep -Eiqs "^$(echo "${1%%==*}" | tr - .) *[=<>~!]" "${PIP_CONSTRAINT:-/dev/null}"; then
        echo "${1%%==*}"
    else
        echo "$1"
    fi
}

# A package that the parent has stays as it is: NGC's set was tested together. Pins are the newest versions that both
# Python 3.8 (in 22.03) and 3.13 have.
install_missing() { # NAME==VERSION...
    for pin in "$@"; do
        python3 -m pip show --quiet "${pin%%==*}" || python3 -m pip install --no-deps "$(constrained "$pin")"
    done
}

torch_before=$(version_of torch)
check_torch() {
    if [ "$(version_of torch)" != "$torch_before" ]; then
        echo "torch changed from $torch_before to $(version_of torch)" >&2
        exit 1
    fi
}
