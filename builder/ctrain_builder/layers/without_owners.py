"""Starts a program for which changes of owners succeed without effect: without_owners.py PROGRAM ARGUMENT... as root.

Layers of NVIDIA's images hold owners such as 1776653678, which no user namespace of an engine maps: there root's chown
fails (EINVAL), and with it the unpacking (seen with Apptainer 1.4.5). An ordinary user's engine ignores owners by
itself. Images hold root's files alone in any case: mksquashfs sees to that.

A filter of system calls (man 2 seccomp) does it, which children inherit. It is no protection: programs of other
architectures are left alone.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

# The architecture as the kernel's filters name it (linux/audit.h); chown, fchown, lchown, fchownat (asm/unistd.h)
CALLS = {
    "x86_64": (0xC000003E, (92, 93, 94, 260)),
    "aarch64": (0xC00000B7, (54, 55)),
    "ppc64le": (0xC0000015, (16, 95, 181, 289)),
}
# linux/bpf_common.h, linux/seccomp.h, linux/prctl.h
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO_0 = 0x7FFF0000, 0x00050000
_CALL_AT, _ARCHITECTURE_AT = 0, 4
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def instructions(machine: str) -> list[tuple[int, int, int, int]]:
    """The filter: code, how many to skip if true, if false, value."""
    architecture, calls = CALLS[machine]
    count = len(calls)
    return [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 0, count + 1, architecture),
        (_LOAD, 0, 0, _CALL_AT),
        *((_EQUAL, count - number, 0, call) for number, call in enumerate(calls)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERRNO_0),
    ]


def ignore_owners() -> None:
    """Let changes of owners have no effect in this process and its children. Raises OSError."""
    if platform.machine() not in CALLS:
        return  # images whose owners are mapped are unpacked all the same
    code = b"".join(struct.pack("HBBI", *one) for one in instructions(platform.machine()))
    program = _Program(len(code) // 8, code)
    library = ctypes.CDLL(None, use_errno=True)
    # Without CAP_SYS_ADMIN, which root may lack in a container, the kernel wants the second promise first.
    for promise in (False, True):
        if promise:
            library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if library.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) == 0:
            return
    raise OSError(ctypes.get_errno(), f"cannot filter system calls ({os.strerror(ctypes.get_errno())})")


if __name__ == "__main__":
    try:
        ignore_owners()
    except OSError as error:  # a kernel without seccomp; most images have no such owners
        print(
            f"{error.strerror}: owners that this machine does not map cannot be unpacked", file=sys.stderr, flush=True
        )
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606  # what this file is for
