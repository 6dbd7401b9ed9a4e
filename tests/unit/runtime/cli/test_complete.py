"""Which words are offered at the end of a command line. Real shells: tests/integration/test_completion.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_runtime.cli import complete
from ctrain_runtime.cli.main import COMPLETE, RUNTIME_VERBS, Verb, main
from ctrain_runtime.run import parent_directories
from samples.sample_images import write_image, write_store

VERBS = (*RUNTIME_VERBS, *BUILD_VERBS)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    channels = {"pytorch_prod": "pytorch_24.12-hd-py3-r1.sif", "pytorch_dev": "pytorch_24.12-hd-py3-r2.sif"}
    cpu = {"name": "pytorch-cpu", "release": 1}
    root = write_store(tmp_path / "store", {"release": 1}, {"release": 2}, cpu, channels=channels)
    (root / "retired").mkdir()
    write_image(root / "retired", release=7)
    monkeypatch.setenv("CTRAIN_STORE", str(root))
    return root


def words(line: str) -> str:
    """What is offered for a command line whose last word the shell takes for one."""
    return " ".join(complete.words(VERBS, f"ctrain {line}", line.rpartition(" ")[2]))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ru", "run runs"),
        ("--v", "--version"),
        ("no", ""),
        ("run --no", "--nodelist --nodes --notify"),
        ("run --nodes 2 --im", "--image"),
        ("run --nodes ", ""),
        ("run light", "lightning"),
        ("run --nodes 2 light", "lightning"),
        ("run --json light", "lightning"),
        ("run resnet50 res", ""),
        ("run --site n", "neuron"),
        ("run --site=n", "--site=neuron"),
        ("site sh", "show"),
        ("site show n", "neuron"),
        ("site check --j", "--json"),
        ("run --image ", "pytorch pytorch-cpu pytorch:dev pytorch:prod"),
        ("run --image pytorch-", "pytorch-cpu"),
        ("run --image pytorch:", "pytorch:24.12-hd-r1 pytorch:24.12-hd-r2 pytorch:dev pytorch:prod"),
        ("run --image=pytorch:p", "--image=pytorch:prod"),
        ("run --image pytorch --i", "--image --independent"),
        ("run --data ", ""),
        ("run --data=", ""),
        ("run --json=", ""),
        ("run --nonsense=", ""),
        ("run -- --im", ""),
        ("run --image x -- res", ""),
        ("images s", "show"),
        ("images show pytorch-", "pytorch-cpu"),
        ("images diff pytorch:dev pytorch:p", "pytorch:prod"),
        ("store pro", "promote"),
        ("store --nonsense pro", "promote"),
        ("store nonsense ", ""),
        ("store promote ", "pytorch pytorch-cpu"),
        ("store promote pytorch ", "24.12-hd-r1 24.12-hd-r2 dev prod"),
        ("store promote pytorch-cpu ", "24.12-hd-r1 prod"),
        ("store promote pytorch 24.12-hd-r1 ", "dev prod"),
        ("store promote pytorch 24.12-hd-r1 prod ", ""),
        ("store retire pytorch:24.12-hd-r1 pytorch-", "pytorch-cpu:24.12-hd-r1"),
        ("store restore ", "pytorch:24.12-hd-r7"),
        ("store remove ", "pytorch-cpu:24.12-hd-r1 pytorch:24.12-hd-r1 pytorch:24.12-hd-r2 pytorch:24.12-hd-r7"),
        (
            "store withdraw pytorch:24.12-hd-r7 pytorch:24.12-hd-r",
            "pytorch:24.12-hd-r1 pytorch:24.12-hd-r2 pytorch:24.12-hd-r7",
        ),
        ("store rollback pytorch ", "dev prod"),
        ("store verify pytorch pytorch-", "pytorch-cpu"),
        ("store verify pytorch-cpu:", "pytorch-cpu:24.12-hd-r1"),
        ("publish pytorch-cpu --channel d", "dev"),
        ("upstream py", ""),  # its images are not those of a store
        ("completion b", "bash"),
        ("help exit", "exit-codes"),
    ],
)
def test_words(line: str, expected: str) -> None:
    assert words(line) == expected


@pytest.mark.parametrize("line", ["run --store {} --image pytorch-", "store du --store {} --js", "images --store {} s"])
def test_the_store_that_the_line_names(line: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTRAIN_STORE", "/nowhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (str(store), "~/store", "$HOME/store", "'~/store'"):
        assert words(line.format(name)) in ("pytorch-cpu", "--json", "show")


def test_the_stores_of_a_site(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CTRAIN_STORE")
    (tmp_path / "here.yaml").write_text(f"name: here\nscheduler: local\nstores: ['{store}']\n")
    assert words("run --site ./here.yaml --image pytorch-") == "pytorch-cpu"
    monkeypatch.setenv("CTRAIN_SITE", "./here.yaml")
    assert words("run --image pytorch-") == "pytorch-cpu"


@pytest.mark.parametrize(
    ("line", "part", "expected"),
    [
        ("run --image pytorch:pr", "pr", "prod"),  # bash ends words at `:`
        ("run --image pytorch:", "", "24.12-hd-r1 24.12-hd-r2 dev prod"),
        ("run --image=pytorch:pr", "pr", "prod"),
        ('run --image "pytorch:pr', "pytorch:pr", "pytorch:prod"),
        ("run --image 'pytorch:pr", "pytorch:pr", "pytorch:prod"),
        ("run --name 'a b' --image pytorch-", "pytorch-", "pytorch-cpu"),
        (r"run --name a\ b --image pytorch-", "pytorch-", "pytorch-cpu"),
    ],
)
def test_quotes_and_ends_of_words(line: str, part: str, expected: str) -> None:
    assert " ".join(complete.words(VERBS, f"ctrain {line}", part)) == expected


def test_what_a_shell_would_run_is_never_offered(store: Path) -> None:
    for name in ("$(x)", "a b", "`x`", "a;b", "*", "é"):
        write_image(store, name=name)
    assert words("run --image ") == "pytorch pytorch-cpu pytorch:dev pytorch:prod"


@pytest.mark.parametrize("line", ["run --image ", "run --store /nowhere --image ", "run --site ./bad.yaml --image "])
def test_what_is_broken_is_no_business_of_the_prompt(
    line: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.yaml").write_text("{")
    (store / "ctrain-store.json").write_text("{")
    assert main(VERBS, [COMPLETE, f"ctrain {line}", ""]) == 0
    assert capsys.readouterr() == ("", "")


def test_one_damaged_version_hides_no_other(store: Path) -> None:
    (store / "pytorch_24.12-hd-py3-r1.json").write_text("{")
    assert words("images show pytorch:") == "pytorch:24.12-hd-r2 pytorch:dev"


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_offers_its_options(verb: Verb) -> None:
    assert "--help" in words(f"{verb.name} --").split()


def test_the_hidden_word_is_told_to_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(VERBS, []) == 0
    assert COMPLETE not in capsys.readouterr().out
    assert COMPLETE not in words("_") + words("")
    assert main(VERBS, [COMPLETE]) == 64


def test_runs_of_all_directories_by_name(tmp_path: Path) -> None:
    for run in ("ctrain-runs/digits-1", "other/gpt-1", "other/not-a-run"):
        (tmp_path / run).mkdir(parents=True)
        if "not" not in run:
            (tmp_path / run / "plan.json").touch()
    parent_directories.remember(tmp_path / "other")
    assert words("attach ") == "digits-1 gpt-1 last"
    assert words("logs --rank 3 d") == "digits-1"
    assert words("wait last g") == words("run --resume g") == words("runs rm g") == "gpt-1"
    assert words("status --runs other ") == "gpt-1 last"
    assert words("runs ") == "gc rm"
    assert words("st") == "status store"
