"""What was made from a store's contents: module files and the catalogue, which are out of date after each change.

STORE/ctrain-outputs.json    {"/apps/modules": {"kind": "modules", "fingerprint": "9f2c...", "store": "/apps/ctrain"}}
"""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctrain_runtime.errors import StoreError
from ctrain_runtime.store.store import PublishedImage, StoreContents, is_gone

FILE = "ctrain-outputs.json"
MODULES, CATALOGUE = "modules", "catalogue"


@dataclass(frozen=True)
class Output:
    """Module files or the catalogue at `path`, with a fingerprint of the contents that they show.

    `store`: the path by which the store is found in them; "" if an earlier ctrain made them.
    """

    path: Path
    kind: str
    fingerprint: str
    store: str = ""

    def is_moved(self) -> bool:
        """Whether the store was moved since: nothing is where it was."""
        return bool(self.store) and is_gone(Path(self.store))

    def names(self, root: Path) -> bool:
        """Whether its path of the store still leads to the one at `root`: of a symlink there are two."""
        try:
            return bool(self.store) and Path(self.store).samefile(root)
        except OSError:
            return False

    def command(self, root: Path) -> str:
        """The command that makes it again."""
        where = ["--output", str(self.path)] if self.kind == MODULES else []
        return shlex.join(["ctrain", "store", self.kind, "--store", str(root.absolute()), *where])


def fingerprint(contents: StoreContents) -> str:
    """Changes with each change of the versions and channels of a store."""
    facts = [(image.path.name, image.manifest.digest, image.channels, *_noted(image)) for image in contents.images]
    problems = list(map(str, (*contents.damaged, *contents.dangling)))
    return hashlib.sha256(json.dumps([facts, problems]).encode()).hexdigest()


def _noted(image: PublishedImage) -> tuple[str, ...]:
    """What was noted of a version since it was published, as far as users see it; () for nothing."""
    scanned = (f"{image.scan.verdict} {image.scan.when}",) if image.scan else ()
    return (*scanned, *((str(image.deprecation),) if image.deprecation else ()))


def read_outputs(root: Path) -> list[Output]:
    """What was made from the store at `root`. Raises StoreError."""
    path = root / FILE
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
        return [_read(root, output, facts) for output, facts in made.items()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "Remove it, then write module files and catalogue again"
        raise StoreError(f"cannot read {path}: {error!r}", hint) from error


def _read(root: Path, output: str, facts: dict[str, Any]) -> Output:
    kind = str(facts["kind"])
    path = root.absolute() / Path(output).name if kind == CATALOGUE else Path(output)  # it moves with the store
    return Output(path, kind, str(facts["fingerprint"]), str(facts.get("store", "")))


def as_json(made: list[Output]) -> str:
    """The text of the file."""
    facts = {
        str(output.path): {"kind": output.kind, "fingerprint": output.fingerprint, "store": output.store}
        for output in made
    }
    return json.dumps(facts, indent=2) + "\n"


def find_stale(root: Path, contents: StoreContents) -> list[Output]:
    """Those that exist and were made from other contents, or where the store was before. Raises StoreError."""
    now = fingerprint(contents)
    made = (output for output in read_outputs(root) if output.path.exists())
    return [output for output in made if output.fingerprint != now or output.is_moved()]
