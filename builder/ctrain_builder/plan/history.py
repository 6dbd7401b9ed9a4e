"""What git knows of the definitions: when they were changed last, and what they were at another commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ctrain_builder.definitions import image_spec
from ctrain_builder.definitions.image_spec import ImageSpec
from ctrain_builder.plan import build_plan
from ctrain_builder.plan.build_plan import FALLBACK_EPOCH, BuildPlan
from ctrain_runtime.base import command
from ctrain_runtime.errors import CtrainError, UsageError

_ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")


def epochs(environ: Mapping[str, str]) -> Callable[[Sequence[Path]], int]:
    """A function that gives the time, in seconds since 1970, which a layer made from some paths bears.

    That is SOURCE_DATE_EPOCH, or else the time of the last commit that touched the paths, or else a constant.
    Raises UsageError.
    """
    given = environ.get("SOURCE_DATE_EPOCH", "")
    if given and not given.isdecimal():
        raise UsageError(f"SOURCE_DATE_EPOCH must be a number of seconds since 1970, not {given!r}")
    known: dict[tuple[Path, ...], int] = {}

    def epoch(paths: Sequence[Path]) -> int:
        where = tuple(path.absolute() for path in paths)
        if where not in known:
            known[where] = int(given) if given else _commit_time(where)
        return known[where]

    return epoch


def _commit_time(paths: Sequence[Path]) -> int:
    try:
        output = _git(["log", "-1", "--format=%ct", "--", *map(str, paths)], paths[0].parent)
    except CtrainError:  # no git, or no repository
        return FALLBACK_EPOCH
    return int(output) if output.strip() else FALLBACK_EPOCH


def plans_at(
    revision: str,
    directory: Path,
    stems: Collection[str],
    given: Mapping[str, str],
    make: Callable[[ImageSpec], BuildPlan],
    work: Path,
) -> dict[str, BuildPlan]:
    """The plans of images as the definitions in `directory` were at a commit, by file stem; those that were not there
    then are left out. Raises UsageError.

    `stems` are the images that matter; `work` is an empty directory: files that the plans name are gone when it is.
    """
    directory = directory.resolve()
    commit = _commit(directory.parent, revision)
    tree = work / "tree"
    tree.mkdir()
    try:
        commit.copy([directory.name], tree)
        every = (
            _with_parent_in(directory.parent, spec)
            for spec in image_spec.all_specs(tree / commit.prefix / directory.name)
        )
        specs = [spec for spec in every if spec.file_stem in stems]
        commit.copy({str(source) for spec in specs for source in build_plan.sources(spec, given)}, tree)
        return {spec.file_stem: make(spec) for spec in specs}
    except CtrainError as error:
        hint = "Choose another commit, or name the images to build"
        raise UsageError(f"cannot plan the definitions of {revision}: {error.message}", hint) from error


def _with_parent_in(root: Path, spec: ImageSpec) -> ImageSpec:
    """`spec` with a parent that is a file of the project found below `root`: images are not in git."""
    parent = Path(spec.parent)
    if not parent.is_relative_to(spec.source_root):
        return spec
    return replace(spec, parent=str(root / parent.relative_to(spec.source_root)))


@dataclass(frozen=True)
class _Commit:
    """A commit in the repository `store` (a .git directory); `prefix` is where the project is in it: "" or "a/b/"."""

    store: str
    prefix: str
    digest: str

    def copy(self, names: Iterable[str], tree: Path) -> None:
        """Check out files and directories of the project below `tree`, leaving the repository's own index and work tree
        alone."""
        paths = [f":(top,literal){self.prefix}{name}" for name in names]
        if paths:
            options = ("--work-tree", str(tree), "-c", "core.hooksPath=/dev/null", "checkout", "--quiet", self.digest)
            index = {"GIT_INDEX_FILE": str(tree.with_name("index"))}
            _git(["--git-dir", self.store, *options, "--", *paths], tree, index)


def _commit(root: Path, revision: str) -> _Commit:
    try:
        store, prefix = _git(["rev-parse", "--absolute-git-dir", "--show-prefix"], root).split("\n")[:2]
    except CtrainError as error:
        raise UsageError(f"{root} is not in a readable git repository: {error.message}") from error
    try:
        digest = _git(["rev-parse", "--quiet", "--verify", f"{revision}^{{commit}}"], root).strip()
    except CtrainError as error:
        hint = "If it is a shallow clone, run: git fetch --unshallow"
        raise UsageError(f"commit {revision!r} not found in the repository {store}", hint) from error
    return _Commit(store, prefix, digest)


def _git(argv: Sequence[str], directory: Path, extra: Mapping[str, str] = {}) -> str:  # read only
    """What git says in a directory. Variables that point it elsewhere, as hooks have them, are left out."""
    environment = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    return command.run(["git", *argv], cwd=directory, env={**environment, **extra}).stdout
