"""Which tests of an image run again after a change, with the real engine and a tiny image."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from samples import tiny

CHECKOUT = Path(__file__).parents[2]
CTRAIN = str(CHECKOUT / ".venv" / "bin" / "ctrain")
IMAGES = """\
images:
  small:
    chain: [base, tools, watch, code]
    stack: s
    tag: "1.0"
    tag_argument: VERSION
"""
BASE = """\
Bootstrap: localimage
From: {tiny}

%arguments
    VERSION=1.0

%post
    mkdir -p /usr/lib/things /opt/base

%test
    # ctrain: independent of upper layers
    test ! -e /usr/lib/things/broken

%labels
    version {{{{ VERSION }}}}
"""
TOOLS = """\
Bootstrap: localimage
From: {{ PARENT }}

%post
    echo tools > /usr/lib/things/tools

%test
    # ctrain: independent of upper layers
    test "$(cat /usr/lib/things/tools)" = tools
    test ! -e /usr/lib/things/broken
"""
WATCH = """\
Bootstrap: localimage
From: {{ PARENT }}

%test
    find /opt > /dev/null
"""
CODE = """\
Bootstrap: localimage
From: {{ PARENT }}

%files
    examples /opt/code

%post
    chmod -R a+rX /opt/code

%test
    # ctrain: independent of upper layers
    test "$(cat /opt/code/word)" != wrong
"""
ALL = {"layers mounted", *(f"%test of {name}" for name in ("base", "tools", "watch", "code"))}
# It has passed on its layer, and what lies above adds nothing that it sees; base has a layer above that may break it.
NEW = ALL - {"%test of tools"}
PASSED, UNCHANGED = "passed", "passed (unchanged)"


class Project:
    """Definitions and a cache."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("definitions/images.yaml", IMAGES)
        self.write("definitions/base/base.def", BASE.format(tiny=tiny.sif(root / "tiny.sif", tiny.SHELL)))
        for name, text in {"tools": TOOLS, "watch": WATCH, "code": CODE}.items():
            self.write(f"definitions/{name}/{name}.def", text)
        self.write("examples/word", "one\n")

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def ctrain(self, *argv: str, checkout: Path = CHECKOUT) -> subprocess.CompletedProcess[str]:
        places = ["--definitions", str(self.root / "definitions"), "--cache", str(self.root / "cache")]
        environment = {**os.environ, "PYTHONPATH": f"{checkout / 'runtime'}:{checkout / 'builder'}"}
        return subprocess.run([CTRAIN, *argv, *places], env=environment, capture_output=True, text=True)

    def build(self, *options: str, checkout: Path = CHECKOUT) -> dict[str, str]:
        """Test -> outcome of a build that succeeds."""
        done = self.ctrain("build", "small", *options, checkout=checkout)
        assert done.returncode == 0, done.stdout + done.stderr
        return outcomes(done.stdout.splitlines())

    @property
    def manifest(self) -> list[str]:
        """The tests that the image's manifest records."""
        text = (self.root / "cache/images/small_1.0-s.json").read_text()
        return [test["name"] for test in json.loads(text)["tests"] if test["passed"]]


def outcomes(lines: Sequence[str]) -> dict[str, str]:
    found = (line.split(maxsplit=1)[1] for line in lines if line.startswith("test "))
    rows = (line.split("  ") for line in found)
    return {row[0].strip(): next(cell.strip() for cell in row[1:] if cell.strip()) for row in rows}


def built(lines: Sequence[str]) -> list[str]:
    """The layers that were built."""
    return [line.split()[1] for line in lines if line.startswith("layer ") and " built " in line]


def rerun(found: dict[str, str]) -> set[str]:
    assert found.keys() == ALL
    assert set(found.values()) <= {PASSED, UNCHANGED}
    return {name for name, outcome in found.items() if outcome == PASSED}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("unchanged"))
    assert rerun(project.build()) == NEW
    return project


def test_after_a_change_of_code_only_tests_that_can_see_it_run(project: Project) -> None:
    """%test of watch declares nothing, so it may look at everything."""
    project.write("examples/word", "two\n")
    assert rerun(project.build()) == {"layers mounted", "%test of code", "%test of watch"}
    assert sorted(project.manifest) == sorted(ALL)
    project.write("examples/word", "one\n")  # the layer is cached, and the results are
    assert rerun(project.build()) == {"layers mounted"}


def test_another_checkout_runs_no_test_again(project: Project, tmp_path: Path) -> None:
    for root in ("builder", "runtime", "definitions", "examples"):
        shutil.copytree(CHECKOUT / root, tmp_path / root, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    assert project.build(checkout=tmp_path) == {}, "it is up to date"
    project.write("examples/word", "three\n")
    assert rerun(project.build(checkout=tmp_path)) == {"layers mounted", "%test of code", "%test of watch"}
    project.write("examples/word", "one\n")
    assert rerun(project.build()) == {"layers mounted"}


def test_a_changed_expectation_is_tested_and_the_image_not_published_before(project: Project) -> None:
    store = str(project.root / "declared")
    assert subprocess.run([CTRAIN, "store", "init", store]).returncode == 0
    project.write("definitions/images.yaml", IMAGES + '    tags: {"1.0": {python: "9.9"}}\n')
    refused = project.ctrain("publish", "small", "--store", store)
    assert (refused.returncode, "Run: ctrain test small:1.0" in refused.stderr) == (78, True), refused.stderr
    for verb in ("build", "test"):
        done = project.ctrain(verb, "small")
        assert done.returncode == 78, done.stdout + done.stderr
        assert "test 'as declared' of image small 1.0 failed" in done.stderr
    project.write("definitions/images.yaml", IMAGES)
    project.build()
    assert project.ctrain("publish", "small", "--store", store).returncode == 0


def test_a_layer_that_changes_what_lies_below_it_is_not_trusted(project: Project) -> None:
    """Declared independence is not enough: here the topmost layer breaks what the tests of lower ones check."""
    definition = CODE.replace("chmod", "touch /usr/lib/things/broken\n    chmod")
    project.write("definitions/code/code.def", definition)
    done = project.ctrain("build", "small")
    assert done.returncode == 78, done.stdout + done.stderr
    assert "of image small 1.0 failed; first failing layer: code" in done.stderr
    refused = project.ctrain("publish", "small", "--store", str(project.root / "store"))
    assert refused.returncode == 78
    assert "small 1.0 has not passed its tests. Run: ctrain test small:1.0" in refused.stderr
    project.write("definitions/code/code.def", CODE)


@pytest.mark.parametrize(
    "line",
    [
        "echo new > /etc/new",
        "mkdir /usr/lib/things/new",
        "echo new > /opt/base/new",
        "rm -r /opt/base",
        "chmod 700 /usr/lib/things",
        "ln -s /opt/code /usr/lib/things/link",
    ],
)
def test_layers_that_are_not_private(project: Project, line: str) -> None:
    project.write("definitions/code/code.def", CODE.replace("chmod", f"{line}\n    chmod"))
    assert rerun(project.build()) >= {"%test of base", "%test of tools"}


def test_an_environment_is_seen_by_every_test(project: Project) -> None:
    project.write("definitions/code/code.def", f"{CODE}\n%environment\n    export WORD=new\n")
    assert rerun(project.build()) == ALL


def test_a_changed_test_runs_again(project: Project) -> None:
    project.write("definitions/code/code.def", CODE.replace("!= wrong", "!= bad"))
    assert rerun(project.build()) == {"layers mounted", "%test of code", "%test of watch"}
    project.write("definitions/code/code.def", CODE)


def test_a_failure_is_not_remembered(project: Project) -> None:
    project.write("examples/word", "wrong\n")
    for _ in range(2):
        done = project.ctrain("build", "small")
        assert done.returncode == 78, done.stdout + done.stderr
        assert "test '%test of code' of image small 1.0 failed; first failing layer: code" in done.stderr
    project.write("examples/word", "one\n")
    project.build()


def test_tests_can_run_later(project: Project) -> None:
    project.write("examples/word", "later\n")
    assert project.build("--tests", "later") == {}
    store = str(project.root / "later")
    refused = project.ctrain("publish", "small", "--store", store)
    assert (refused.returncode, "Run: ctrain test small:1.0" in refused.stderr) == (78, True)
    tested = project.ctrain("test", "small")
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert rerun(outcomes(tested.stdout.splitlines())) == {"layers mounted", "%test of code", "%test of watch"}
    assert subprocess.run([CTRAIN, "store", "init", store]).returncode == 0
    published = project.ctrain("publish", "small", "--store", store)
    assert published.returncode == 0, published.stderr
    assert rerun(outcomes(project.ctrain("test", "small", "--rerun").stdout.splitlines())) == ALL
    project.write("examples/word", "newer\n")
    other = project.ctrain("test", "small")
    assert other.returncode == 78
    assert "was built from other definitions" in other.stderr


def test_layers_are_built_again_on_request_and_tested_if_they_differ(project: Project) -> None:
    project.write("examples/word", "one\n")
    tools = TOOLS.replace("%test", "    date +%s.%N > /usr/lib/things/time\n\n%test")
    project.write("definitions/tools/tools.def", tools)
    project.build()
    lines = project.ctrain("build", "small", "--rebuild=tools").stdout.splitlines()
    assert built(lines) == ["tools", "watch", "code"]
    assert rerun(outcomes(lines)) == NEW, "a layer of the same key has another content"
    time = r"\d+(\.\d)? s"
    assert re.search(rf" is built and tested in {time} \(layers {time}, image {time}, tests {time}\): ", lines[-1]), (
        lines
    )
    assert "up to date" in project.ctrain("build", "small").stdout
    lines = project.ctrain("build", "small", "--rebuild=code").stdout.splitlines()
    assert built(lines) == ["code"]
    assert "image" not in [line.split()[0] for line in lines], "the same bytes make the same image"
    project.write("definitions/tools/tools.def", TOOLS)
