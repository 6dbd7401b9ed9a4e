"""What the %post of a layer has compiled is there when it runs again, in real builds of a tiny image."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from samples import tiny

CTRAIN = str(Path(__file__).parents[2] / ".venv" / "bin" / "ctrain")
IMAGES = """\
images:
  small:
    chain: [base, tools, code]
    stack: s
    tag: "1.0"
    tag_argument: VERSION
"""
BASE = "Bootstrap: localimage\nFrom: {tiny}\n\n%arguments\n    VERSION=1.0\n\n%post\n    : {{{{ VERSION }}}}\n"
# What it "compiles" is different each time.
TOOLS = """\
Bootstrap: localimage
From: {{ PARENT }}

%post
    kept=/mnt/compiled/thing/deep
    if [ ! -e "$kept" ]; then
        mkdir -p "$kept"
        cat /proc/sys/kernel/random/uuid > "$kept/thing"
        chmod 751 "$kept/thing"
    fi
    cp "$kept/thing" /opt/thing

%test
"""
CODE = "Bootstrap: localimage\nFrom: {{ PARENT }}\n\n%post\n    true\n"


@pytest.fixture
def definitions(tmp_path: Path) -> Path:
    folder = tmp_path / "definitions"
    for name, text in (("base", BASE.format(tiny=tiny.sif(tmp_path / "tiny.sif", tiny.SHELL))), ("code", CODE)):
        (folder / name).mkdir(parents=True)
        (folder / name / f"{name}.def").write_text(text)
    (folder / "tools").mkdir()
    (folder / "images.yaml").write_text(IMAGES)
    return folder


def build(definitions: Path, test: str) -> bytes:
    """What is in the layer that the %test belongs to: it is a new one each time."""
    (definitions / "tools/tools.def").write_text(f"{TOOLS}    {test}\n")
    cache = definitions.parent / "cache"
    places = ["--definitions", str(definitions), "--cache", str(cache)]
    done = subprocess.run([CTRAIN, "build", "small", "--tests", "later", *places], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    layers = sorted((cache / "layers").glob("*.sqsh"), key=lambda path: path.stat().st_mtime_ns)
    found = [subprocess.run(["unsquashfs", "-cat", path, "opt/thing"], capture_output=True).stdout for path in layers]
    return [text for text in found if text][-1]


def test_what_a_layer_has_compiled_is_not_compiled_again_when_its_test_has_changed(definitions: Path) -> None:
    first = build(definitions, "test -s /opt/thing")
    assert len(first) == 37
    assert build(definitions, 'test "$(stat -c %a /opt/thing)" = 751') == first
    argv = [CTRAIN, "cache", "list", "--json", "--cache", str(definitions.parent / "cache")]
    listed = json.loads(subprocess.run(argv, check=True, capture_output=True).stdout)["entries"]
    kept = [(entry["name"], entry["images"]) for entry in listed if entry["kind"] == "compiled"]
    assert kept == [("tools", ["small_1.0-s"])]
