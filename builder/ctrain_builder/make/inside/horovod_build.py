"""Checks that Horovod was built with exactly the features that are its arguments."""

from __future__ import annotations

import re
import subprocess
import sys

command = ["horovodrun", "--check-build"]  # the one on the image's PATH is what is tested
report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
print(report)
found = set(re.findall(r"\[X\] (\S+)", report))
if found != set(sys.argv[1:]):
    raise SystemExit(f"Horovod was built with {' '.join(sorted(found))}, not with {' '.join(sorted(sys.argv[1:]))}")
