"""The shape of the project: who imports whom, what is a package, where links lead, which hosts are named."""

from __future__ import annotations

import ast
import builtins
import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import pytest
from importlinter.api import read_configuration

CHECKOUT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = (CHECKOUT / "builder", CHECKOUT / "runtime")
ALLOWED_HOSTS = {"nvcr.io"}  # a registry of images: definitions/pytorch-ngc starts from it
URL_HOST = re.compile(r"https?://(?:[^/@\s]*@)?([a-z][a-z0-9-]*(?:\.[a-z0-9-]+)+)")
SCHEDULERS_WORDS = re.compile(
    r"(?i)\b(slurm\w*|s(batch|run|queue|info|control|cancel)|pbs\w*|q(sub|stat|del)|pbsnodes)\b"
)
NAME = re.compile(r"`[A-Za-z_][\w.]*`|\b(?:[A-Z][a-z]+){2,}\b")
PROPER_NAMES = ("JavaScript", "LicenseRef", "localflock")
RAISED = re.compile(r"\bRaises?\b[^.]*")
LINK = re.compile(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)")


def test_import_contracts_hold() -> None:
    lint = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, SOURCE_ROOTS))}
    done = subprocess.run(lint, cwd=CHECKOUT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("root", SOURCE_ROOTS, ids=lambda root: root.name)
def test_the_layers_contract_names_every_module(root: Path) -> None:
    (package,) = root.glob("ctrain_*/")
    contracts = read_configuration(str(CHECKOUT / "pyproject.toml"))["contracts_options"]
    (contract,) = [contract for contract in contracts if contract.get("containers") == [package.name]]
    named = [module.strip() for layer in contract["layers"] for module in layer.split("|")]
    modules = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert sorted(named) == sorted(modules - {"__init__"})
    assert contract["exhaustive"] == "True"  # so that lint-imports alone reports a module in no layer, too


@pytest.mark.parametrize("root", SOURCE_ROOTS, ids=lambda root: root.name)
def test_a_source_root_is_no_package(root: Path) -> None:
    # `python -m pytest` puts the checkout on the path, and this fails: use bare `pytest`.
    assert find_spec(root.name) is None


@pytest.mark.parametrize("root", SOURCE_ROOTS, ids=lambda root: root.name)
def test_every_folder_with_modules_is_a_package(root: Path) -> None:
    folders = {path.parent for path in root.rglob("*.py")}
    assert folders
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_links_of_the_documentation_resolve(project_files: list[PurePosixPath]) -> None:
    pages = [path for path in project_files if path.suffix == ".md"]
    assert pages
    broken = [f"{page}: {link}" for page in pages for link in broken_links(CHECKOUT / page)]
    assert broken == []


def test_no_file_names_a_package_registry(project_files: list[PurePosixPath]) -> None:
    """Mirrors are the building machine's own; a host that is written down works on one machine only."""
    hosts = sorted(registry_hosts() - ALLOWED_HOSTS)
    assert hosts
    named = re.compile("|".join(rf"(?<![\w.-]){re.escape(host)}(?![\w-])" for host in hosts))
    texts = ((path, (CHECKOUT / path).read_text(encoding="utf-8", errors="replace")) for path in project_files)
    suspect = ((path, text) for path, text in texts if any(host in text for host in hosts))  # a pattern takes seconds
    found = [f"{path}: {match[0]}" for path, text in suspect for match in named.finditer(text)]
    assert found == []


def test_only_a_schedulers_own_code_has_its_words() -> None:
    """In strings: comments and docstrings may explain. What stands for itself: a command that users type; and
    batch_script reads what users wrote for a scheduler, which need not be on this machine."""
    package, found = CHECKOUT / "runtime/ctrain_runtime", []
    for path in sorted(package.rglob("*.py")):
        module = path.relative_to(package).as_posix()
        if re.match(r"schedulers/\w+/|batch_script/", module) or not SCHEDULERS_WORDS.search(path.read_text()):
            continue
        for text in strings(path):
            code = re.sub(r"(?m)(^|\s)#.*", "", text)  # comments of scripts
            found += [f"{module}: {match[0]}" for match in SCHEDULERS_WORDS.finditer(code)]
    assert found == ["launchers/starters.py: srun", "schedulers/__init__.py: slurm", "schedulers/__init__.py: pbs"]


def test_docstrings_raise_only_what_exists() -> None:
    paths = [path for root in SOURCE_ROOTS for path in root.rglob("*.py")]
    nodes = [node for path in paths for node in statements(parse(path))]
    sentences = [text for node in nodes for text in RAISED.findall(docstring(node))]
    raised = {name for text in sentences for name in re.findall(r"\b(?:[A-Z][a-z]+){2,}\b|\b\w+Error\b", text)}
    assert {"CtrainError", "FileExistsError"} <= raised
    others = raised - {node.name for node in nodes if isinstance(node, ast.ClassDef)} - {*dir(builtins)}
    using = [path for path in paths if any(f".{name}" in path.read_text(encoding="utf-8") for name in others)]
    walked = (node for path in using for node in ast.walk(parse(path)))
    attributes = {node.attr for node in walked if isinstance(node, ast.Attribute)}  # such as subprocess.TimeoutExpired
    assert sorted(others - attributes) == []


def test_docstrings_of_the_builder_name_only_what_exists() -> None:
    """In backquotes, or written as a class is: LayerContent."""
    files = [path for root in SOURCE_ROOTS for path in root.rglob("*") if path.suffix in (".py", ".bash", ".sh")]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    known = {word for path in files for word in path.with_suffix("").parts} | {*dir(builtins), *PROPER_NAMES}
    documented: list[tuple[str, str]] = []
    for path, text in texts.items():
        nodes = statements(parse(path)) if path.suffix == ".py" else ()
        docstrings = [found for node in nodes if (found := docstring(node))]
        for found in docstrings:
            text = text.replace(found, "")
        known |= set(re.findall(r"\w+", re.sub(r"#.*", "", text)))
        if path.is_relative_to(CHECKOUT / "builder"):
            documented += [(path.name, found) for found in docstrings]
    names = [(file, name) for file, text in documented for name in NAME.findall(text)]
    assert len(names) > 500
    assert [(file, name) for file, name in names if not {*name.strip("`").split(".")} <= known] == []


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """A module and all statements in it: a tenth of its nodes."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, ast.excepthandler)):
            yield from statements(child)


def docstring(node: ast.AST) -> str:
    """The docstring as it is written; "" if there is none."""
    documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
    return (ast.get_docstring(node, clean=False) or "") if documented else ""


def strings(path: Path) -> Iterator[str]:
    """The strings in a module but for its docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = tuple(ast.walk(parse(path)))
    docstrings = {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def broken_links(page: Path) -> Iterator[str]:
    for match in LINK.finditer(page.read_text(encoding="utf-8")):
        path, anchor = match.groups()
        if ":" in path:
            continue  # another site's
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield match[0]


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def registry_hosts() -> set[str]:
    """The hosts that apt and pip of this machine fetch from, and pip's built-in default, which its help names."""
    apt = Path("/etc/apt")
    sources = [apt / "sources.list", *(apt / "sources.list.d").glob("*")]
    texts = [path.read_text(encoding="utf-8") for path in sources if path.is_file()]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    for arguments in (["install", "--help"], ["config", "list"]):
        wide = {**os.environ, "COLUMNS": "1000"}  # a wrapped line would cut an address in two
        said = subprocess.run([*pip, *arguments], env=wide, capture_output=True, text=True, check=True)
        texts.append(said.stdout)
    return {host for text in texts for host in URL_HOST.findall(text)}
