"""What was made from a store's contents: module files and the catalogue, which are out of date after each change.

STORE/ctrain-outputs.json    {"/apps/modules": {"command": "ctrain store modules ...", "fingerprint": "9f2c..."}}
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from ctrain_runtime.errors import StoreError
from ctrain_runtime.store import StoreContents

FILE = "ctrain-outputs.json"


def fingerprint(contents: StoreContents) -> str:
    """Changes with each change of the versions and channels of a store."""
    facts = [(image.path.name, image.manifest.digest, image.channels) for image in contents.images]
    problems = list(map(str, (*contents.damaged, *contents.dangling)))
    return hashlib.sha256(json.dumps([facts, problems]).encode()).hexdigest()


def read_outputs(root: Path) -> dict[str, dict[str, str]]:
    """Path of a file or directory -> the command that made it, and the contents' fingerprint. Raises StoreError."""
    path = root / FILE
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
        return {output: {key: str(facts[key]) for key in ("command", "fingerprint")} for output, facts in made.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "Remove it, then write module files and catalogue again"
        raise StoreError(f"cannot read {path}: {error!r}", hint) from error


def find_stale(root: Path, contents: StoreContents) -> list[tuple[str, str]]:
    """Those that exist and were made from other contents, each with its command. Raises StoreError."""
    now = fingerprint(contents)
    made = read_outputs(root).items()
    return [(path, facts["command"]) for path, facts in made if facts["fingerprint"] != now and Path(path).exists()]
