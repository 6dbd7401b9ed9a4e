"""Lists of packages as requirements files of pip, from which user layers are built: uv.lock, environment.yml of conda.

The image's own packages (torch, MPI ...) stay out: a layer only adds to its image.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import yaml

from ctrain_builder.imports.findings import Finding
from ctrain_builder.layers.user_layer import IMAGE_PACKAGES
from ctrain_runtime.errors import ConfigError

# Names of conda that PyPI has under another; and what is no package of PyPI at all.
_RENAMED = {
    "dask-core": "dask",
    "matplotlib-base": "matplotlib",
    "msgpack-python": "msgpack",
    "opencv": "opencv-python-headless",
    "py-opencv": "opencv-python-headless",
    "py-xgboost": "xgboost",
    "pyqt": "pyqt5",
    "pytables": "tables",
    "python-graphviz": "graphviz",
    "python-tzdata": "tzdata",
    "ruamel_yaml": "ruamel.yaml",
    "tensorboard-base": "tensorboard",
}
_INTERPRETER = {"python": "Python", "pip": "pip"}
_IMAGES_OWN = (*IMAGE_PACKAGES, "pytorch", "pytorch-cpu", "pytorch-gpu", "tensorflow-gpu", "tensorflow-cpu")
_NOT_PYTHON = re.compile(
    r"_.*|lib(?!rosa|cst|sass|tmux).*|.*[_-](linux-64|linux-aarch64|devel|dev|static)|(gcc|gxx|gfortran|clang)([_-].*|xx)?"
    r"|(c|cxx|fortran)-compiler|compilers|binutils.*|ld_impl.*|sysroot.*|kernel-headers.*|make|automake|autoconf|pkg-config|ninja-base"
    r"|cuda.*|cudatoolkit.*|cudnn|nccl|magma.*|pytorch-(cuda|mutex)|mkl|mkl-service|mkl_.*|openblas|blas|lapack|intel-openmp"
    r"|openmpi.*|mpich.*|mpi|ucx|hdf5|netcdf4?-?c?|fftw|gsl|boost(-cpp)?|eigen|openssl|ca-certificates|zlib|zstd|bzip2|xz|lz4-c|snappy"
    r"|readline|ncurses|tk|tzdata|sqlite|lcms2|lerc|numpy-base|ffmpeg|x264|lame|openh264|gmp|mpfr|nettle|gnutls|libx.*|xorg-.*|freetype|jpeg|giflib|openjpeg|icu"
    r"|git|git-lfs|curl|wget|tmux|nodejs|openjdk|r-.*|conda.*|mamba|python_abi|qt(-main)?|glib|gst.*|expat|dbus|pcre2?|yaml"
)
_EDITABLE = re.compile(r"(-e|--editable)[ =]\s*")
_DIRECTORY = re.compile(r"\.{0,2}/|\.{1,2}(\[|$)")
_SPEC = re.compile(r"(?:[\w./-]+::)?([A-Za-z0-9_][\w.-]*)\s*(?:\[[^]]*\])?\s*(.*)")


@dataclass(frozen=True)
class Requirements:
    """The lines of a requirements file, and what is to be told of the list that they come from."""

    lines: tuple[str, ...]
    findings: tuple[Finding, ...]


def of_environment(text: str, where: str) -> Requirements:
    """The packages of a conda environment that pip has; the others are findings. Raises ConfigError."""
    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{where} is not a YAML file") from error
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    listed = next((value for key, value in pairs if key.value == "dependencies"), None)
    if not isinstance(listed, yaml.SequenceNode):
        raise ConfigError(f"{where} has no list `dependencies`", "Name conda's environment.yml")
    lines: list[str] = []
    findings: list[Finding] = []
    for node in listed.value:
        for line, finding in _of_node(node):
            lines += line
            findings += finding
    return Requirements(tuple(lines), tuple(findings))


def _of_node(node: yaml.Node) -> Iterator[tuple[list[str], list[Finding]]]:
    """A package of conda, or the list of those that conda gives to pip."""
    if isinstance(node, yaml.ScalarNode):
        yield _of_package(str(node.value), node.start_mark.line + 1)
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        for one in value.value if key.value == "pip" and isinstance(value, yaml.SequenceNode) else ():
            if isinstance(one, yaml.ScalarNode):
                yield _of_pip(str(one.value), one.start_mark.line + 1)


def _of_pip(text: str, line: int) -> tuple[list[str], list[Finding]]:
    text = text.strip()
    if is_images_own(re.split(r"[^\w.-]", text, maxsplit=1)[0]):
        return [], [image_has(text, line)]
    wanted = _EDITABLE.sub("", text)
    if _DIRECTORY.match(wanted) and not wanted.endswith(".whl"):
        todo = "Build a wheel of it (pip wheel --no-deps DIR), and name that"
        return [], [Finding(line, text, "builds of layers see no directories of yours", todo)]
    linked = wanted != text
    return [wanted], [Finding(line, text, "it is installed, not linked to its source", lost=False)] if linked else []


def _of_package(text: str, line: int) -> tuple[list[str], list[Finding]]:
    match = _SPEC.fullmatch(text.strip())
    name = match[1].lower() if match else ""
    if match is None:
        return [], [Finding(line, text, "it is not the name of a package")]
    if name in _INTERPRETER:
        return [], [Finding(line, text, f"the {_INTERPRETER[name]} is that of the image", lost=False)]
    if is_images_own(name):
        return [], [image_has(text, line)]
    if _NOT_PYTHON.fullmatch(name):
        todo = "If the image lacks it, install it in %post of a definition"
        return [], [Finding(line, text, "pip has no such package", todo)]
    version = _version(match[2])
    if version is None:
        return [], [Finding(line, text, "pip knows no such condition", "Add the package to the requirements by hand")]
    return [f"{_RENAMED.get(name, name)}{version}"], []


def _version(text: str) -> str | None:
    """A condition of conda as one of pip: `=1.2` and `1.2.*` mean any 1.2; None for what pip cannot say."""
    parts = []
    for part in filter(None, re.split(r"\s*,\s*", text.strip())):
        match = re.fullmatch(r"(==|=|>=|<=|>|<|!=|~=)?\s*([\w.+!-]+?)(\.?\*)?(?:[= ][\w.*]+)?", part)
        if not match:
            return None
        operator, version, star = match[1] or "==", match[2], match[3]
        exact = re.fullmatch(r"=?[^=]+[= ][\w.*]+", part) or (operator == "==" and not star)
        if operator == "=":
            operator, star = "==", "" if exact else ".*"
        parts.append(f"{operator}{version}{'.*' if star and operator in ('==', '!=') else ''}")
    return ",".join(parts)


def is_images_own(name: str) -> bool:
    return name.lower().replace("_", "-") in _IMAGES_OWN


def image_has(text: str, line: int) -> Finding:
    return Finding(line, text, "the image's own counts: a layer never replaces it", lost=False)


def requirements_text(lines: Sequence[str], origin: str) -> str:
    return "\n".join([f"# From {origin}, by ctrain import.", *lines]) + "\n"
