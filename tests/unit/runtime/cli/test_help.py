from __future__ import annotations

import json
from pathlib import Path

import pytest

from ctrain_runtime.cli.help import topics
from ctrain_runtime.cli.main import RUNTIME_VERBS, main


def explain(capsys: pytest.CaptureFixture[str], *topic: str) -> str:
    assert main(RUNTIME_VERBS, ["help", *topic]) == 0
    return capsys.readouterr().out


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.split(None, 1) for line in explain(capsys, "exit-codes").splitlines()[1:]]
    codes = [int(code) for code, _ in lines]
    assert codes == sorted(set(codes))
    assert {64, 68, 72, 129, 130, 137, 143} <= set(codes)
    assert all(meaning for _, meaning in lines)


def test_schemas_are_named_as_editors_take_them(capsys: pytest.CaptureFixture[str]) -> None:
    _, *lines = explain(capsys, "schemas").splitlines()
    paths = [Path(line.partition("  # yaml-language-server: $schema=")[2]) for line in lines]
    assert [path.name for path in paths] == ["images.json", "job.json", "project.json", "site.json"]
    assert all("properties" in json.loads(path.read_text()) for path in paths)


def test_without_a_topic_all_are_listed(capsys: pytest.CaptureFixture[str], checkout: Path) -> None:
    listed = explain(capsys)
    rows = dict(line.split(None, 1) for line in listed.partition("\n\n")[0].splitlines())
    assert rows["exit-codes"] == "Exit codes"
    assert rows["jobs"] == "Jobs"
    assert set(rows) - {"TOPIC", "exit-codes", "schemas"} == {page.stem for page in checkout.glob("docs/*.md")}
    assert listed.endswith(f"Commands are topics, too: {', '.join(verb.name for verb in RUNTIME_VERBS)}\n")


@pytest.mark.parametrize("topic", ["jobs", "jobs.md", "layers"])
def test_a_page_of_the_documentation(topic: str, capsys: pytest.CaptureFixture[str], checkout: Path) -> None:
    page = checkout / "docs" / f"{topic.replace('.md', '')}.md"
    assert explain(capsys, topic) == page.read_text(encoding="utf-8")


def test_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(capsys, "run").startswith("usage: ctrain run [OPTIONS]")


@pytest.mark.parametrize("topic", ["images", "images.md"])
def test_a_command_that_has_a_page_of_its_name(topic: str, capsys: pytest.CaptureFixture[str], checkout: Path) -> None:
    shown = explain(capsys, topic)
    assert shown.startswith("usage: ctrain images [-h]")
    assert shown.endswith("\n\n" + (checkout / "docs/images.md").read_text(encoding="utf-8"))


def test_no_topic_is_listed_twice() -> None:
    names = topics(RUNTIME_VERBS)
    assert len(names) == len(set(names))
    assert not [name for name in names if name.endswith(".md")]


@pytest.mark.parametrize("topic", topics(RUNTIME_VERBS))
def test_every_topic_is_explained(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(explain(capsys, topic)) > 100


@pytest.mark.parametrize(
    ("topic", "question"), [("jbos", "Did you mean 'jobs'? "), ("rnu", "Did you mean 'run'? "), ("/etc/passwd", "")]
)
def test_an_unknown_topic(topic: str, question: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(RUNTIME_VERBS, ["help", topic]) == 64
    assert capsys.readouterr().err == f"ctrain: unknown topic {topic!r}. {question}List the topics with: ctrain help\n"
