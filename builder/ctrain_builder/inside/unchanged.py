"""Prints what the upper layers of an image must leave as it is, or checks that it is so.

unchanged.py           of a base: versions, and a digest over the files of its framework, as one JSON object
unchanged.py JSON      of an image on that base: ends with 1, and says what differs
"""

from __future__ import annotations

import hashlib
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import versions

FRAMEWORKS = ("torch", "tensorflow")
KEPT = ("python", *FRAMEWORKS, "cuda", "nccl", "mpi")  # versions


def main(arguments: list[str]) -> None:
    now = versions.collect()
    for name in FRAMEWORKS:
        spec = find_spec(name)
        if spec and spec.submodule_search_locations:
            now[f"files of {name}"] = digest(Path(spec.submodule_search_locations[0]))
    if not arguments:
        print(json.dumps(now))
        return
    before = json.loads(arguments[0])
    kept = [name for name in before if name in KEPT or name.startswith("files of ")]
    changed = [f"{name}: {before[name]} -> {now.get(name)}" for name in kept if before[name] != now.get(name)]
    if changed:
        raise SystemExit("changed since the base:\n" + "\n".join(changed))


def digest(directory: Path) -> str:
    """A SHA-256 over names and contents of all files below the directory, but for compiled Python code."""
    whole = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.parent.name != "__pycache__":
            whole.update(f"{path.relative_to(directory)}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as opened:
                while part := opened.read(1 << 20):
                    whole.update(part)
    return whole.hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
