"""What a job's program imports, by its text and that of the modules beside it: read, not run."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from ctrain_runtime import job
from ctrain_runtime.plan.launcher_choice import LIBRARIES, Imports
from ctrain_runtime.run.lone_program import trains_alone

MAX_BYTES = 1 << 20
# An import that is indented may be one of several ways to run.
_IMPORT = re.compile(r"^([ \t]*)(?:from[ \t]+([\w.]+)[ \t]+import\b|import[ \t]+([\w., \t]+))", re.MULTILINE)

_NAME = r"""["'](?:RANK|WORLD_SIZE|LOCAL_RANK)["']"""
_NEEDS_RANK = re.compile(rf"\binit_process_group\(|environ\[\s*{_NAME}\s*\](?!\s*=[^=])")
# Whether there is one: "RANK" in os.environ, get("RANK"), get("RANK", -1), getenv("WORLD_SIZE", "1").
_ASKS_FOR_RANK = re.compile(
    rf"""{_NAME}\s+(?:not\s+)?in\s+(?:os\.)?environ"""
    rf"""|(?:environ\.get|getenv)\(\s*{_NAME}\s*(?:,\s*(?:None|["']?(?:-1|1)?["']?)\s*)?\)"""
    r"""|\bis_torchelastic_launched\("""
)


def read_imports(planned: job.Job) -> Imports:
    """The imports of the job's program; none if that is no Python file which can be read here."""
    script = job.script_of(planned.command)
    if not script.endswith(".py") or not (planned.directory or Path(script).is_absolute()):
        return Imports()
    path = (planned.directory or Path()) / script
    required, optional, text = _modules(path)
    texts = [text]
    beside: dict[bool, set[str]] = {True: set(required), False: set(optional)}  # by whether they are required
    for module in required | optional:
        for file in (path.with_name(f"{module}.py"), path.parent / module / "__init__.py"):
            always, perhaps, text = _modules(file)
            texts.append(text)
            beside[module in required] |= always
            beside[False] |= perhaps
    libraries = frozenset(LIBRARIES)
    needs_rank = any(map(_NEEDS_RANK.search, texts)) and not any(map(_ASKS_FOR_RANK.search, texts))
    every = libraries & (beside[True] | beside[False])
    alone = every == {"torch"} and not needs_rank and trains_alone(path)
    return Imports(path.name, every, libraries & beside[True], needs_rank, alone)


def _modules(path: Path) -> tuple[set[str], set[str], str]:
    """The top-level modules that a file imports: always, and perhaps; and its text. Files that cannot be read import
    nothing."""
    text, required, optional = "", set[str](), set[str]()
    with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        text = file.read(MAX_BYTES)
    for indent, module, modules in _IMPORT.findall(text):
        names = {name.split()[0].partition(".")[0] for name in (module or modules).split(",") if name.strip()}
        (optional if indent else required).update(names - {""})
    return required, optional, text
