"""The walk through a store, docs/store-rules.md: each of its commands is run, and prints what the page shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.files import manifest_writer
from ctrain_builder.files.manifest_writer import utc_now
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.store.manifest import ADOPTED_LABEL, BASE_BUILT_LABEL, Manifest, read_manifest
from ctrain_runtime.store.sif import SBOM
from samples.sample_images import sbom, sif
from samples.shop import Shop

PAGE = Path(__file__).parents[3] / "docs/store-rules.md"
FILE = re.compile(r"`(/\S+)`:\n+```yaml\n(.*?)```", re.DOTALL)
STEP = re.compile(r"```\n(\$ .*?)```", re.DOTALL)
MANUAL = [PAGE.with_name(f"{name}.md") for name in ("store", "store-sync", "signatures", "modules", "store-policy")]
BLOCKS = [block for page in MANUAL for block in re.split(r"(?m)^```.*$", page.read_text(encoding="utf-8"))[1::2]]
COMMAND = re.compile(r"(?m)^(?:\w*\$ +)?(ctrain .*?)(?:  .*)?$")
# What needs an engine, a registry or a build, and the tests that run it.
ELSEWHERE = {
    r"ctrain publish\b": ("unit/builder/test_publish_verb.py", '"publish"'),
    r"ctrain store adopt\b": ("integration/test_adopt.py", '"adopt"'),
    r"ctrain store sign\b.* --all-signed-by": ("integration/test_signatures.py", '"--all-signed-by"'),
    r"ctrain store sign\b": ("integration/test_signatures.py", '"sign"'),
    r"ctrain store verify --signatures": ("integration/test_signatures.py", '"--signatures"'),
    r"ctrain store sync .*oras://": ("integration/sync/test_versions.py", 'f"oras://'),
    r"ctrain run\b": ("integration/test_adopt.py", '"run"'),
}


@pytest.fixture
def site(
    tmp_path: Path,
    make_manifest: Callable[..., Manifest],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """The store at apps/ctrain of the page: two versions of pytorch, the first in prod, and an adopted one; and another
    store, which is to be its mirror. The scanner is a stand-in."""
    (tmp_path / "apps").mkdir()
    (tmp_path / "media").mkdir()
    for folder in ("apps", "far"):
        shop = Shop(tmp_path / folder, make_manifest, capsys)
        (tmp_path / folder / "store").rename(tmp_path / folder / "ctrain")
    shop.root = tmp_path / "apps/ctrain"
    facts = {"name": "pytorch", "tag": "24.12", "stack": "hd", "labels": {BASE_BUILT_LABEL: utc_now()}}
    for number, channel in ((1, "prod"), (2, "")):
        image = sif(data=b"squashfs %d" % number, more=[(SBOM, sbom(torch="2.13.0"))])
        shop.publish(image, channel, **facts)
    shop.publish(sif(data=b"old", more=[(SBOM, sbom())]), **{**facts, "tag": "22.03", "labels": {}})
    adopt(shop)
    (tmp_path / "bin").mkdir()
    scanner = tmp_path / "bin/grype"
    scanner.write_text('#!/bin/sh\n[ -s "${1#sbom:}" ] && echo "0 vulnerabilities"\n')
    scanner.chmod(0o755)
    monkeypatch.setenv("CTRAIN_STORE", str(shop.root))
    monkeypatch.setenv("PATH", str(scanner.parent), prepend=":")
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def adopt(shop: Shop) -> None:
    """Make the version 22.03 an adopted one: without layers and tests."""
    path = shop.root / "pytorch_22.03-hd-py3-r1.json"
    data = vars(read_manifest(path))
    adopted = Manifest(**{**data, "layers": (), "tests": (), "labels": {ADOPTED_LABEL: "/old.sif@sha256:1"}})
    path.chmod(0o644)
    manifest_writer.write(path, adopted, 0o444)


def test_each_command_prints_what_the_page_shows(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    steps = list(re.finditer(f"{FILE.pattern}|{STEP.pattern}", page, re.DOTALL))
    assert len(steps) > 10
    for step in steps:
        if step[1]:
            (site / step[1].lstrip("/")).write_text(step[2].replace("/apps/", f"{site}/apps/"))
            continue
        command, *shown = step[3].rstrip("\n").split("\n")
        program, *argv = shlex.split(re.sub(r"(?<![\w.])/(apps|far|media)/", rf"{site}/\1/", command[2:]))
        assert program == "ctrain"
        main([*RUNTIME_VERBS, *BUILD_VERBS], argv)
        output = capsys.readouterr()
        text = re.sub(r" +", " ", (output.out + output.err).replace(str(site), ""))
        for line in filter(None, shown):
            pattern = re.escape(re.sub(r" +", " ", line.rstrip())).replace(r"\.\.\.", ".*")
            assert re.search(rf"(?m)^{pattern}\s*$", text), f"{command}\n{line}\n\n{text}"


@pytest.mark.parametrize("block", [block for block in BLOCKS if COMMAND.search(block)])
def test_each_command_of_the_manual_is_run_by_a_test(
    block: str, tmp_path: Path, make_manifest: Callable[..., Manifest], capsys: pytest.CaptureFixture[str]
) -> None:
    """Here, unless it is run elsewhere; the channel prod has pointed to three of four versions."""
    shop = Shop(tmp_path / "apps", make_manifest, capsys)
    for number, channel in enumerate(("prod", "prod", "dev", "prod")):
        shop.publish(sif(data=b"squashfs %d" % number), channel, name="pytorch", tag="24.12", stack="hd")
    (tmp_path / "apps/store").rename(tmp_path / "apps/ctrain")
    shop.root = tmp_path / "apps/ctrain"
    (tmp_path / "media").mkdir()
    for command in COMMAND.findall(block):
        places = [place for words, place in ELSEWHERE.items() if re.match(words, command)]
        if places:
            file, word = places[0]
            assert word in (PAGE.parents[1] / "tests" / file).read_text("utf-8"), command
            continue
        later = command.replace("--until 2027", "--until 2999")
        argv = shlex.split(re.sub(r"(?<![\w.])/(apps|media)/", rf"{tmp_path}/\1/", later))[1:]
        own = [] if argv[1] in ("init", "sync") else ["--store", str(shop.root)]
        assert main([*RUNTIME_VERBS, *BUILD_VERBS], [*argv, *own]) == 0, (command, capsys.readouterr())
