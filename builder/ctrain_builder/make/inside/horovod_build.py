"""Checks that `horovodrun --check-build` lists what a training job needs."""

from __future__ import annotations

import subprocess

WANTED = ("PyTorch", "MPI", "Gloo")

report = subprocess.run(["horovodrun", "--check-build"], capture_output=True, text=True, check=True).stdout  # noqa: S607
print(report)
missing = [name for name in WANTED if f"[X] {name}" not in report]
if missing:
    raise SystemExit(f"Horovod was built without {', '.join(missing)}")
