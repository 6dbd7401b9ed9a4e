"""What every example keeps to, as far as it shows without PyTorch; tests/integration/test_examples.py runs them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ctrain_runtime import job

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MOST_LINES = {"resnet50": 550}  # with its pictures' pipeline, live numbers and the data set to try it on
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/job.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_described_short_and_ends_through_the_shared_helper(name: str) -> None:
    found = job.find(name)
    assert (found.workdir, found.images) == (f"/opt/ctrain/examples/{name}", ("pytorch", "pytorch-cpu"))
    assert (EXAMPLES / name / "README.md").read_text().startswith(f"# {name}\n")
    assert f"[{name}]({name}/README.md)" in (EXAMPLES / "README.md").read_text()
    programs = {path.name: path.read_text() for path in sorted((EXAMPLES / name).glob("*.py"))}
    lines = sum(text.count("\n") for text in programs.values())
    assert lines <= MOST_LINES.get(name, 350), "a reader should hold it in the head"
    assert job.script_of(found.command) in programs
    for program, text in programs.items():
        ast.parse(text, program, feature_version=(3, 8))  # NVIDIA's 22.03
        if "from example import" in text and "__main__" in text:
            assert text.endswith('if __name__ == "__main__":\n    finish(main)\n')
