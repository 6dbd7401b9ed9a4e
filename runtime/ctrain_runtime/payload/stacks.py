"""Prepares each Python of a rank to write where its threads are when signal 51 comes, so that a rank that hangs can be
asked without any rights (docs/hangs.md). It writes to a file in memory, which the watch of the node reads: no
file is left, and a process that has closed it is not signalled. Then the image's own sitecustomize runs, if there is
one.

ctrain copies this file to the node's disk, and puts that directory first on PYTHONPATH. Any Python may start it, also
an old one: hence the plain code.
"""

import os
import sys

SIGNAL = 51  # of the real-time ones, which frameworks leave alone; watch.py sends it
LOWEST_DESCRIPTOR = 200  # programs may count on low numbers

try:
    import faulthandler
    import fcntl

    create = getattr(os, "memfd_create", None)  # since Python 3.8
    if create:
        low = create("ctrain-stacks")
        faulthandler.register(SIGNAL, file=fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, LOWEST_DESCRIPTOR), all_threads=True)
        os.close(low)
except (ImportError, AttributeError, OSError, RuntimeError, ValueError):
    pass  # an old Python, or a low limit of open files: the program runs all the same

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
own = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize  # noqa: F401  # the one that this one hides
except ImportError as error:
    if getattr(error, "name", "sitecustomize") != "sitecustomize":
        raise
    if own:
        sys.modules["sitecustomize"] = own
