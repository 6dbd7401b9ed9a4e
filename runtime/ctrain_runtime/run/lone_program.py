"""Whether a program's text leaves no doubt that several ranks of it would each train a model of its own.

It imports torch, and else only modules that are known to connect nothing, as do its local modules; and nothing in them
has the name of what connects ranks, tells them apart, or imports by a text that only the run knows; nor does one read
variables by such a text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

MAX_BYTES = 1 << 20
MAX_FILES = 200
# Of the standard library and of others; any module that is not here is a doubt.
HARMLESS = {
    *("__future__", "abc", "argparse", "bisect", "collections", "contextlib", "copy", "csv", "dataclasses"),
    *("datetime", "decimal", "enum", "functools", "glob", "gzip", "hashlib", "heapq", "inspect", "io"),
    *("itertools", "json", "locale", "logging", "math", "numbers", "operator", "os", "pathlib", "pickle"),
    *("pprint", "queue", "random", "re", "shutil", "statistics", "string", "struct", "sys", "tarfile"),
    *("tempfile", "textwrap", "time", "timeit", "traceback", "types", "typing", "unicodedata", "urllib"),
    *("uuid", "warnings", "zipfile", "zlib", "PIL", "cv2", "einops", "h5py", "imageio", "matplotlib", "numpy"),
    *("packaging", "pandas", "scipy", "seaborn", "skimage", "sklearn", "tensorboard", "tensorboardX"),
    *("termcolor", "torch", "torchaudio", "torchinfo", "torchsummary", "torchtext", "torchvision", "tqdm"),
    *("typing_extensions", "yaml"),
}
# Parts of names, and of texts without spaces. A program that knows its rank, by whatever variable, names it; other
# libraries that connect ranks are not harmless.
_DOUBT = re.compile(
    r"distributed|parallel|multiprocessing|fsdp|nccl|gloo|rank|world_?size|procid|localid|nodeid|task_?id|hostname"
    r"|load_library|cpp_extension|nodenum|array_index|^(ompi|pmix?|pals)_|^hub$|^exec[lv]|^spawn|^fork|^system$|^popen|^uname$",
    re.IGNORECASE,
)
_ENVIRONMENT = {"environ", "environb", "getenv", "getenvb"}
_BUILTINS = ("eval", "exec", "compile", "__import__")  # whose texts only the run knows


def trains_alone(program: Path) -> bool:
    """Whether each rank of a Python program would train alone, without any doubt."""
    pending, seen, imports_torch = [program], set[Path](), False
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        tree = parse(path)
        if tree is None or len(seen) > MAX_FILES or any(map(_is_doubtful, ast.walk(tree))) or _reads_variables(tree):
            return False
        for module in imported_modules(tree):
            local = _local(module, path.parent, program.parent)
            if not local and module.strip(".") and module.lstrip(".").partition(".")[0] not in HARMLESS:
                return False
            pending += local
            imports_torch = imports_torch or (not local and module.partition(".")[0] == "torch")
    return imports_torch


def parse(path: Path) -> Optional[ast.AST]:
    """The program in a file; None if it cannot be read, or is not Python of this version."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_doubtful(node: ast.AST) -> bool:
    """Whether a name or a text may have to do with ranks."""
    if isinstance(node, ast.Name) and node.id in _BUILTINS:
        return True
    values = (getattr(node, field, None) for field in ("id", "attr", "name", "module", "arg", "value"))
    words = (word for value in values if isinstance(value, str) and " " not in value for word in value.split("."))
    return any(map(_DOUBT.search, words))


def _reads_variables(tree: ast.AST) -> bool:
    """Whether it reads variables by names that its text does not have: all of os.environ, or one that the run names."""
    plain: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            plain.add(id(node.value))
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant):
            plain.update(map(id, node.comparators))
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            plain.add(id(node.func))
            if isinstance(node.func, ast.Attribute):
                plain.add(id(node.func.value))
    for node in ast.walk(tree):
        renamed = node.name if isinstance(node, ast.alias) and node.asname else ""
        if id(node) not in plain and _ENVIRONMENT & {getattr(node, "id", ""), getattr(node, "attr", ""), renamed}:
            return True
    return False


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """The modules that are imported anywhere, relative ones with their dots; of `from a import b` both a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield base
            yield from (f"{base}{'' if base.endswith('.') else '.'}{alias.name}" for alias in node.names)


def _local(module: str, here: Path, top: Path) -> list[Path]:
    """The files of a module of the project: those of its packages, too."""
    name = module.lstrip(".")
    level = len(module) - len(name)
    base = here if level else top
    for _ in range(level - 1):
        base = base.parent
    local, parts = [], [part for part in name.split(".") if part]
    for at in range(len(parts) + 1):
        path = base.joinpath(*parts[:at])
        files = [path / "__init__.py", *([path.with_suffix(".py")] if at else [])]
        local += [file for file in files if file.is_file() and (at or level)]
    return local
