"""Checks that Horovod was built with exactly the features that are its arguments."""

from __future__ import annotations

import re
import subprocess
import sys

command = ["horovodrun", "--check-build"]  # the one on the image's PATH is what is tested
report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
print(report)
found, wanted = set(re.findall(r"\[X\] (\S+)", report)), set(sys.argv[1:])
# Horovod 0.28.1 names PyTorch even where it was built for TensorFlow alone.
if found - ({"PyTorch"} - wanted) != wanted:
    raise SystemExit(f"Horovod was built with {' '.join(sorted(found))}, not with {' '.join(sorted(wanted))}")
