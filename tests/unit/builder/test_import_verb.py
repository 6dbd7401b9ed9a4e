"""`ctrain import`: which file is what, where it goes, what is said and with which exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.definitions.image_spec import find_spec
from ctrain_builder.imports.kind import Kind, image_name, kind_of
from ctrain_runtime.cli.main import main


def ctrain(*arguments: str) -> int:
    return main(BUILD_VERBS, ["import", *arguments])


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "lab").mkdir()
    monkeypatch.chdir(tmp_path / "lab")
    Path("Dockerfile").write_text("FROM python:3.11-slim\nEXPOSE 80\nRUN pip install numpy\n")
    return tmp_path / "lab"


@pytest.mark.parametrize(
    ("name", "text", "kind", "image"),
    [
        ("Dockerfile", "", Kind.DOCKERFILE, "lab"),
        ("Containerfile.gpu", "", Kind.DOCKERFILE, "lab-gpu"),
        ("My_Train.Dockerfile", "", Kind.DOCKERFILE, "my-train"),
        ("Singularity.v2", "", Kind.RECIPE, "lab-v2"),
        ("x.def", "", Kind.RECIPE, "x"),
        ("mine", "ARG A\nfrom x\n", Kind.DOCKERFILE, "mine"),
        ("mine", "Bootstrap: docker\nFrom: x", Kind.RECIPE, "mine"),
        ("uv.lock", "", Kind.UV_LOCK, "uv-lock"),
        ("env.yaml", "", Kind.ENVIRONMENT, "env-yaml"),
        ("requirements-dev.txt", "", Kind.REQUIREMENTS, "requirements-dev-txt"),
    ],
)
def test_a_file_is_known_by_its_name_or_its_text(name: str, text: str, kind: Kind, image: str) -> None:
    assert kind_of(Path(name), text) is kind
    assert image_name(Path(name)) == image


def test_the_entry_that_is_printed_makes_the_definition_an_image(capsys: pytest.CaptureFixture[str]) -> None:
    assert ctrain("Dockerfile") == 0
    out = capsys.readouterr().out
    assert out.startswith("written: definitions/lab/lab.def\n\nto know:\n  line 2: EXPOSE 80\n    containers have the")
    assert out.endswith("\n\nthen: ctrain build lab --plan\n")
    assert "not carried over" not in out
    entry = out[out.index("  lab:\n") : out.index("\n\nthen:")]
    Path("definitions/images.yaml").write_text(f"images:\n{entry}\n")
    spec = find_spec(Path("definitions").resolve(), "lab")
    assert (spec.tag, spec.tag_argument, [part.name for part in spec.chain]) == ("3.11-slim", "TAG", ["lab"])


def test_a_place_that_cannot_be_written_to(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    assert ctrain("Dockerfile", "-o", "file/definitions/lab/lab.def") == 64
    error = capsys.readouterr().err
    assert error.startswith("ctrain: cannot write /") and error.endswith("directory. Name another file: -o OUT\n")


def test_a_context_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert ctrain("Dockerfile", "--context", "lab") == 64
    hint = "Name the one that COPY copies from"
    assert capsys.readouterr().err == f"ctrain: --context lab is not a directory. {hint}\n"
    assert not Path("definitions").exists()


def test_on_an_image_of_the_catalog_it_is_the_last_of_its_chain(capsys: pytest.CaptureFixture[str]) -> None:
    assert ctrain("Dockerfile", "--on", "pytorch-ngc:22.03") == 0
    out = capsys.readouterr().out
    Path("definitions/images.yaml").write_text("images:\n" + out[out.index("  lab:\n") : out.index("\n\nthen:")] + "\n")
    mine, below = (find_spec(Path("definitions").resolve(), name, "22.03") for name in ("lab", "pytorch-ngc"))
    assert [part.name for part in mine.chain] == [*(part.name for part in below.chain), "lab"]
    assert (mine.variant, mine.horovod, mine.tag_argument) == (below.variant, below.horovod, below.tag_argument)


def test_lines_that_are_not_carried_over_have_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    Path("Dockerfile").write_text("FROM a:1 AS b\nFROM c:1\nCOPY --from=b /x /y\n")
    assert ctrain("Dockerfile", "--json") == 82
    out, error = capsys.readouterr()
    assert error == "ctrain: 1 line of Dockerfile not carried over. They are listed above, each with what to do\n"
    first, end = json.JSONDecoder().raw_decode(out)
    assert first["output"] == str(Path("definitions/lab/lab.def").absolute())
    assert [(one["line"], one["lost"]) for one in first["findings"]] == [(1, False), (3, True)]
    assert json.loads(out[end:])["exit_code"] == 82


def test_nothing_that_exists_is_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    assert ctrain("Dockerfile") == 0
    before = Path("definitions/lab/lab.def").read_text()
    Path("Dockerfile").write_text("FROM other\n")
    assert ctrain("Dockerfile") == 64
    assert "lab.def exists already, and is not overwritten. Name another file: -o OUT" in capsys.readouterr().err
    assert Path("definitions/lab/lab.def").read_text() == before
    assert ctrain("Dockerfile", "-o", "definitions/two/two.def") == 0


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("nix",), 64, "cannot read nix: No such file"),
        ((".",), 64, "cannot read .: Is a directory"),
        (("odd",), 64, "odd is none of: Dockerfile, Singularity recipe"),
        (("binary",), 66, "binary is not a text file"),
        (
            ("Dockerfile", "-o", "x.def"),
            64,
            "-o x.def is not the place of a definition. For example: -o definitions/lab/lab.def",
        ),
        (("Dockerfile", "--on", "nix"), 64, "has no image 'nix'"),
        (("Dockerfile", "--on", "store:"), 66, "is neither a published image nor a SIF file"),
        (("requirements.txt",), 64, "packages are added to a published image. Name it: --on IMAGE"),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...], code: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("odd").write_text("hello\n")
    Path("binary").write_bytes(b"\xff\xfe")
    Path("requirements.txt").write_text("rich\n")
    assert ctrain(*arguments) == code
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1, error
    assert not Path("definitions").exists()


def test_lists_of_packages_become_layers(capsys: pytest.CaptureFixture[str]) -> None:
    Path("requirements.txt").write_text("rich\n")
    assert ctrain("requirements.txt", "--on", "pytorch:prod") == 0
    assert "ctrain layer build requirements.txt --on pytorch:prod -o requirements.sqsh\n" in capsys.readouterr().out
    Path("environment.yml").write_text("dependencies: [numpy=1.26, cudnn,\nnccl]\n")
    assert ctrain("environment.yml", "--on", "pytorch") == 82
    out = capsys.readouterr().out
    assert "written: environment-requirements.txt\n" in out
    assert "not carried over:\n  line 1: cudnn\n  line 2: nccl\n    pip has no such package." in out
    assert out.count("pip has no such package") == 1, "an exported environment has dozens of such lines"
    assert "ctrain layer build environment-requirements.txt --on pytorch -o environment.sqsh\n" in out
    assert Path("environment-requirements.txt").read_text() == (
        "# From environment.yml, by ctrain import.\nnumpy==1.26.*\n"
    )


def test_a_list_of_what_the_image_has_needs_no_layer(capsys: pytest.CaptureFixture[str]) -> None:
    Path("environment.yml").write_text("dependencies: [python=3.11, pytorch]\n")
    assert ctrain("environment.yml", "--on", "pytorch") == 0
    assert capsys.readouterr().out.endswith("\n\nno packages are left: no layer is needed\n")
    assert not Path("environment-requirements.txt").exists()
