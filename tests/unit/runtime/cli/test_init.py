from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.starting_points import templates

Out = pytest.CaptureFixture[str]


def init(*arguments: str) -> int:
    return main(RUNTIME_VERBS, ["init", *arguments])


@pytest.mark.parametrize(
    ("kind", "path", "following"),
    [
        ("job", "job.yaml", "ctrain run . --dry-run"),
        ("site", "site.yaml", "ctrain site check ./site.yaml"),
        ("layer", "layer.txt", "ctrain layer build ./layer.txt --on pytorch:prod -o layer.sqsh"),
        (
            "definition",
            "definitions/my-image/my-image.def",
            "list it in definitions/images.yaml, as its first lines show; then: ctrain build my-image --plan",
        ),
    ],
)
def test_a_starting_point_and_the_next_step(kind: str, path: str, following: str, tmp_path: Path, capsys: Out) -> None:
    assert init(kind) == 0
    assert capsys.readouterr().out == f"wrote {path}\nread it and change it; then: {following}\n"
    assert (tmp_path / path).read_text() == templates.read(kind)
    assert init(kind) == 66
    assert capsys.readouterr().err == f"ctrain: cannot write {path}: File exists. Write another file: -o FILE\n"


def test_a_definition_has_the_name_of_its_file(tmp_path: Path, capsys: Out) -> None:
    assert init("definition", "-o", "definitions/lab/lab.def") == 0
    assert capsys.readouterr().out.endswith("ctrain build lab --plan\n")
    text = (tmp_path / "definitions/lab/lab.def").read_text()
    assert "my-image" not in text and "    chain: [lab] #" in text


def test_a_job_for_a_program_is_written_beside_it(tmp_path: Path, capsys: Out) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/train.py").write_text("from mpi4py import MPI\n")
    assert init("job", "--from", "mine/train.py") == 0
    assert capsys.readouterr().out == "wrote mine/job.yaml\nread it and change it; then: ctrain run ./mine --dry-run\n"
    assert "\nlauncher: mpi    # train.py imports mpi4py\n" in (tmp_path / "mine/job.yaml").read_text()
    assert init("job", "--from", "mine/train.py", "-o", "job.yaml") == 0
    assert "\ncommand: [python, mine/train.py]\n" in (tmp_path / "job.yaml").read_text()


def test_a_job_that_ctrain_run_would_not_find_is_not_written(tmp_path: Path, capsys: Out) -> None:
    (tmp_path / "mine").mkdir()
    for output, instead in (("x.yaml", "job.yaml"), ("new/x.yaml", "new/job.yaml"), ("mine", "mine/job.yaml")):
        assert init("job", "-o", output) == 64
        rule = f"--output {output}: a job is a directory with a job.yaml. As in: -o {instead}"
        assert capsys.readouterr().err == f"ctrain: {rule}\n"
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


@pytest.mark.parametrize("output", ["lab.def", "definitions/lab.def", "definitions/Lab/Lab.def", "lab/lab.txt"])
def test_a_definition_that_ctrain_build_would_not_find_is_not_written(output: str, tmp_path: Path, capsys: Out) -> None:
    assert init("definition", "-o", output) == 64
    rule = f"--output {output}: a definition is NAME/NAME.def, of small letters, digits and -"
    assert capsys.readouterr().err == f"ctrain: {rule}. As in: -o definitions/lab/lab.def\n"
    assert list(tmp_path.iterdir()) == []


def test_the_next_step_can_be_pasted(capsys: Out) -> None:
    assert init("job", "-o", "my job/job.yaml") == 0
    assert capsys.readouterr().out.endswith("; then: ctrain run './my job' --dry-run\n")
    assert init("layer", "-o", "my layer.txt") == 0
    assert "ctrain layer build './my layer.txt' --on pytorch:prod -o 'my layer'.sqsh\n" in capsys.readouterr().out


def test_what_cannot_be_written_is_refused(tmp_path: Path, capsys: Out) -> None:
    assert init("site", "--from", "train.py") == 64
    assert capsys.readouterr().err == (
        "ctrain: --from is for jobs, not for a site. Use: ctrain init job --from PROGRAM\n"
    )
    assert init("jbo") == 64
    assert "Did you mean 'job'?" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
