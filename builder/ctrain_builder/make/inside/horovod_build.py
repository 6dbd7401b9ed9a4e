"""Checks that `horovodrun --check-build` lists what a training job needs."""

from __future__ import annotations

import subprocess

WANTED = ("PyTorch", "MPI", "Gloo")

command = ["horovodrun", "--check-build"]  # the one on the image's PATH is what is tested
report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
print(report)
missing = [name for name in WANTED if f"[X] {name}" not in report]
if missing:
    raise SystemExit(f"Horovod was built without {', '.join(missing)}")
