from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_builder import definition, files
from ctrain_builder.files import SourceFile
from ctrain_runtime.errors import BuildError


@pytest.fixture
def listing(project: Path) -> tuple[SourceFile, ...]:
    (project / "examples/x/sub/data.txt").chmod(0o700)
    read = definition.read("upper", project / "definitions/upper/upper.def")
    return files.listing(definition.render(read, {"PARENT": "base"}), project)


def test_files_are_staged_with_modes_of_their_own(listing: tuple[SourceFile, ...], tmp_path: Path) -> None:
    files.stage(listing, tmp_path / "staged")
    found = {path.relative_to(tmp_path / "staged"): path for path in (tmp_path / "staged").rglob("*") if path.is_file()}
    assert {str(name): path.stat().st_mode & 0o777 for name, path in found.items()} == {
        "examples/x/train.py": 0o644,
        "examples/x/sub/data.txt": 0o755,
    }
    assert found[Path("examples/x/train.py")].read_text() == "print(1)\n"


def test_a_file_that_changed_after_it_was_planned_is_refused(
    listing: tuple[SourceFile, ...], project: Path, tmp_path: Path
) -> None:
    (project / "examples/x/train.py").write_text("print(2)\n")
    with pytest.raises(BuildError, match=r"train\.py has changed since the build began"):
        files.stage(listing, tmp_path / "staged")
