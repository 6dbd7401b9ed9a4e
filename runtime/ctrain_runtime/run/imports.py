"""What a job's program imports, by its text: read, not run, and not followed into other files."""

from __future__ import annotations

import re
from pathlib import Path

from ctrain_runtime import job
from ctrain_runtime.plan.launcher_choice import LIBRARIES, Imports

MAX_BYTES = 1 << 20
# The names after `import` in a line; an import that is indented may be one of several ways to run.
_IMPORT = re.compile(r"^([ \t]*)(?:from[ \t]+([\w.]+)[ \t]+import\b|import[ \t]+([\w., \t]+))", re.MULTILINE)


def read_imports(planned: job.Job) -> Imports:
    """The imports of the job's program; none if that is no Python file which can be read here."""
    script = job.script_of(planned.command)
    if not script.endswith(".py") or not (planned.directory or Path(script).is_absolute()):
        return Imports()
    try:
        with ((planned.directory or Path()) / script).open(encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_BYTES)
    except OSError:  # it may be a file of the image
        return Imports()
    found, required = set(), set()
    for indent, module, modules in _IMPORT.findall(text):
        names = {name.split()[0].partition(".")[0] for name in (module or modules).split(",") if name.strip()}
        found |= names
        required |= names if not indent else set()
    return Imports(Path(script).name, frozenset(found & set(LIBRARIES)), frozenset(required & set(LIBRARIES)))
