from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_builder.definitions import definition, files
from ctrain_builder.definitions.files import SourceFile
from ctrain_runtime.errors import BuildError, ConfigError


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


def _listed(project: Path) -> list[str]:
    read = definition.read("upper", project / "definitions/upper/upper.def")
    return [str(file.relative) for file in files.listing(definition.render(read, {"PARENT": "base"}), project)]


def test_links_within_the_project_are_followed(project: Path) -> None:
    (project / "shared").mkdir()
    (project / "shared/one.txt").write_text("1")
    (project / "examples/x/link.txt").symlink_to("../../shared/one.txt")
    (project / "examples/x/folder").symlink_to(project / "shared")
    assert _listed(project) == [
        *("examples/x/folder/one.txt", "examples/x/link.txt", "examples/x/sub/data.txt", "examples/x/train.py")
    ]


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("/etc/passwd", "%files names examples/x, but examples/x/link is a link out of the project"),
        ("/etc", "but examples/x/link is a link out of the project"),
        ("../../../outside", "but examples/x/link is a link out of the project"),
        ("..", "but examples/x/link is a link to a directory that contains it"),
        (".", "but examples/x/link is a link to a directory that contains it"),
        ("link", "link is not a regular file"),
        ("nothing", "link is not a regular file"),
    ],
)
def test_links_that_lead_out_of_the_project_or_nowhere_are_refused(project: Path, target: str, complaint: str) -> None:
    (project.parent / "outside").write_text("a secret")
    (project / "examples/x/link").symlink_to(target)
    with pytest.raises(ConfigError) as caught:
        _listed(project)
    assert complaint in caught.value.message


def test_a_folder_of_the_project_that_is_a_link_itself(project: Path, tmp_path: Path) -> None:
    (project / "examples").rename(tmp_path / "elsewhere")
    (project / "examples").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="examples/x is a link out of the project"):
        _listed(project)


def test_a_file_that_becomes_a_link_after_it_was_planned_is_not_read(
    listing: tuple[SourceFile, ...], project: Path, tmp_path: Path
) -> None:
    (tmp_path / "same").write_bytes((project / "examples/x/train.py").read_bytes())
    (project / "examples/x/train.py").unlink()
    (project / "examples/x/train.py").symlink_to(tmp_path / "same")
    with pytest.raises(BuildError, match="must be a regular file"):
        files.stage(listing, tmp_path / "staged")


def test_passwords_and_the_history_of_a_project_are_left_out_unless_they_are_named(project: Path) -> None:
    for name in (".env", "sub/.env", ".git/config", "sub/.git", ".env.example", ".gitignore"):
        (project / "examples/x" / name).parent.mkdir(exist_ok=True)
        (project / "examples/x" / name).write_text("TOKEN=x")
    kept = ["examples/x/.env.example", "examples/x/.gitignore", "examples/x/sub/data.txt", "examples/x/train.py"]
    assert _listed(project) == kept
    definition_file = project / "definitions/upper/upper.def"
    definition_file.write_text(definition_file.read_text().replace("examples/x /opt/x", "examples/x/.env /opt/x/.env"))
    assert _listed(project) == ["examples/x/.env"]


def test_what_an_ignore_file_lists_is_left_out_unless_it_is_named(project: Path) -> None:
    for name in ("run.log", "sub/run.log", "outputs/1.pt", "sub/outputs/1.pt", "notes.txt", "sub/notes.txt"):
        (project / "examples/x" / name).parent.mkdir(exist_ok=True)
        (project / "examples/x" / name).write_text("x")
    ignore = project / "definitions" / files.IGNORE_FILE
    ignore.write_text("# what runs leave\n*.log\n\noutputs/\n/examples/*/notes.txt\n")
    assert _listed(project) == ["examples/x/sub/data.txt", "examples/x/train.py"]
    ignore.write_text("examples/x/sub\n*.pt\n")
    assert _listed(project) == ["examples/x/notes.txt", "examples/x/run.log", "examples/x/train.py"]
    definition_file = project / "definitions/upper/upper.def"
    definition_file.write_text(definition_file.read_text().replace("examples/x /opt/x", "examples/x/sub /opt/x"))
    assert _listed(project) == [f"examples/x/sub/{name}" for name in ("data.txt", "notes.txt", "run.log")]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"*.log\n!x.log\n", r"patterns with '!' are not supported\. What %files names"),
        (b"\xff", "cannot read .*ignore"),
    ],
)
def test_an_ignore_file_that_cannot_be_honoured(project: Path, content: bytes, complaint: str) -> None:
    (project / "definitions" / files.IGNORE_FILE).write_bytes(content)
    with pytest.raises(ConfigError, match=complaint):
        _listed(project)
