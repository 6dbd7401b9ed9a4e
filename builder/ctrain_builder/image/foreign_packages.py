"""The packages of an image that ctrain did not build, as it tells itself: only data, bounded and checked."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ctrain_builder import inside
from ctrain_builder.image.describe import Packages
from ctrain_runtime.base import config
from ctrain_runtime.engines import apptainer
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import ConfigError, EngineError
from ctrain_runtime.images import foreign

_EXAMINE = 'python3 -c "import importlib.metadata" 2>/dev/null || exit 0; exec python3 -c "$1"'
_PRINT = "\nimport json\nprint()\nprint(json.dumps(everything()))\n"
_KINDS = ("deb", "pypi")
_LICENCE = re.compile(r"[^\w .,+()/-]", re.ASCII)  # what is not in the name of a licence
_WORD = re.compile(r"[\w.+:~!-]{1,200}", re.ASCII)


def collect(image: Path, engine: Engine, *, as_root: bool) -> dict[str, Any]:
    """As inside/packages.py finds them, in a container without network and files of the host; {} without Python 3.8.

    Raises EngineError if they cannot be learned.
    """
    program = Path(inside.__file__).with_name("packages.py").read_text(encoding="utf-8") + _PRINT
    argv = [*apptainer.isolated_exec_argv(engine, as_root=as_root), str(image), "/bin/sh", "-c", _EXAMINE, "ctrain"]
    answer = foreign.last_object(foreign.output([*argv, program]).splitlines())
    try:
        packages = config.load(Packages, answer, f"image {image}")
    except ConfigError as error:  # its python3 is its own
        raise EngineError(error.message) from error
    if not packages.deb and not packages.pypi:
        return {}
    return {
        "system": {key: value for key, value in packages.system.items() if _are_words(key, value)},
        "deb": [asdict(one) for one in packages.deb if _are_words(one.package, one.version, one.architecture)],
        "pypi": {name: version for name, version in packages.pypi.items() if _are_words(name, version)},
        "licenses": {
            kind: {name: [_LICENCE.sub("", text) for text in texts] for name, texts in of.items() if _are_words(name)}
            for kind, of in packages.licenses.items()
            if kind in _KINDS
        },
    }


def _are_words(*texts: str) -> bool:
    return all(map(_WORD.fullmatch, texts))
