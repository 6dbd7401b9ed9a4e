"""The web page of a store, in a real browser: Chromium without a network, driven by Playwright.

Its images are SIFs of the real engine, published as any other. Every page is watched: a request for anything but the
page itself, an error, or a word on the browser's console fails the test.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest
from playwright.sync_api import Browser, Page, expect

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.store.init import init_store
from ctrain_builder.store.publish import publish
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.cli.main import main
from ctrain_runtime.store.manifest import Base, Layer, Manifest, Requires
from ctrain_runtime.store.manifest import TestResult as Result
from ctrain_runtime.store.sif import SBOM
from samples.browser import Open, launched, watched
from samples.plans import a_manifest
from samples.sample_images import sbom, sif, write_store

HOSTILE = (
    """</script><script>hacked=1</script><img src="x" onerror="hacked=1"> '"--> <!-- ${hacked=1} &amp; {{ script }}"""
)
A100, V100 = ("A100", "H100"), ("V100", "A100")
NGC = Layer("pytorch-ngc", "k0", 9_000_000_000, "sha256:a")
DATA_CENTRE = Requires("560.35", ("535",), A100, ("8.0", "9.0"))
OLDER = Requires("525.60", (), V100, ("7.0", "8.0"))
# Facts of each version, its packages, and its channel; oldest first
VERSIONS: tuple[tuple[dict[str, Any], Optional[dict[str, str]], str], ...] = (
    (
        {"tag": "23.01", "software": {"torch": "1.14.0a0+44dac51", "cuda": "12.0"}, "requires": OLDER},
        {"torch": "1.14.0a0+44dac51", "deepspeed": "0.8.0", "gone": "1.0"},
        "legacy",
    ),
    (
        {"tag": "24.12", "software": {"torch": "2.6.0a0+df5bbc0", "cuda": "12.6"}, "requires": DATA_CENTRE},
        {"torch": "2.6.0a0+df5bbc0", "deepspeed": "0.16.4", "my_tool": "2.1.3", "gone": "1.0"},
        "prod",
    ),
    (
        {"tag": "24.12", "software": {"torch": "2.6.0a0+df5bbc0", "cuda": "12.6"}, "requires": DATA_CENTRE},
        {"torch": "2.6.0a0+df5bbc0", "deepspeed": "0.19.8", "my_tool": "2.13.0", "fresh": "7"},
        "dev",
    ),
    (
        {"name": "pytorch-cpu", "tag": "2.13.0", "software": {"torch": "2.13.0+cpu"}},
        {"torch": "2.13.0", "deepspeed": "0.19.7"},
        "prod",
    ),
    ({"name": "older", "tag": "1", "software": {}}, None, ""),
)
FIRST, SECOND, THIRD = "pytorch:23.01-hd-r1", "pytorch:24.12-hd-r1", "pytorch:24.12-hd-r2"
CPU, PLAIN = "pytorch-cpu:2.13.0-hd-r1", "older:1-hd-r1"


def image(folder: Path, packages: Optional[dict[str, str]]) -> Path:
    """A SIF as the engine makes it, with this package list."""
    path, part, told = folder / "image.sif", folder / "part", folder / "sbom.cdx.json"
    path.unlink(missing_ok=True)
    part.write_bytes(os.urandom(1000))
    add = ["apptainer", "sif", "add", "--groupid", "1"]
    subprocess.run(["apptainer", "sif", "new", str(path)], check=True)
    kind = ["--datatype", "4", "--partfs", "1", "--partarch", "2", "--parttype", "2"]
    subprocess.run([*add, *kind, str(path), str(part)], check=True)
    if packages is not None:
        told.write_bytes(sbom(**packages))
        subprocess.run([*add, "--datatype", "9", "--sbomformat", "cyclonedx-json", str(path), str(told)], check=True)
    return path


def manifest(path: Path, facts: dict[str, Any]) -> Manifest:
    tests = (Result("imports", True, "1.2"), Result("GPU", False, "0.0", "no GPU here"))
    digest = file_digest(path)
    layers = (NGC, Layer("deepspeed", digest, 1_000_000_000, digest))
    made = a_manifest(**{"layers": layers, "tests": tests, "base": Base("base:1", "sha256:0"), **facts})
    return replace(made, digest=digest, size=path.stat().st_size)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """VERSIONS, one with hostile texts, and one whose image was overwritten."""
    work, root = tmp_path_factory.mktemp("images"), tmp_path_factory.mktemp("a store's") / "ctrain"
    init_store(root)
    for facts, packages, channel in VERSIONS:
        path = image(work, packages)
        publish(path, manifest(path, facts), root, channel)
    path = image(work, {"evil": HOSTILE})
    labels = {"org.opencontainers.image.description": HOSTILE, HOSTILE: HOSTILE}
    told = {"software": {"torch": HOSTILE, "__proto__": "1"}, "base": Base(HOSTILE, ""), "labels": labels}
    publish(path, manifest(path, {"name": "evil", "tag": "1", "requires": Requires(gpus=(HOSTILE,)), **told}), root)
    broken = publish(path, manifest(path, {"name": "broken", "tag": "1", "software": {}}), root).image.path
    broken.chmod(0o644)
    broken.write_bytes(b"no image")
    return root


@pytest.fixture(scope="module")
def catalogue(store: Path) -> Path:
    return made(store)


def made(store: Path) -> Path:
    assert main(BUILD_VERBS, ["store", "catalogue", "--store", str(store)]) == 0
    return store / "catalogue.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    with watched(browser) as visit:
        yield visit


@pytest.fixture
def page(visit: Open, catalogue: Path) -> Page:
    return visit(catalogue)


def shown(page: Page) -> list[str]:
    """The versions in the table, as NAME:VERSION."""
    links = page.locator("#versions tbody tr:visible th a")
    return [text.replace(" ", ":") for text in links.all_inner_texts()]


def sheet(page: Page) -> Any:
    return page.get_by_role("dialog")


def test_the_table(page: Page) -> None:
    assert shown(page) == ["broken:1-hd-r1", "evil:1-hd-r1", PLAIN, THIRD, SECOND, FIRST, CPU]
    row = page.get_by_role("row", name=SECOND)
    expect(row.get_by_role("rowheader")).to_have_text("pytorch 24.12-hd-r1 prod")
    assert row.get_by_role("cell").all_inner_texts()[1:4] == ["torch 2.6.0a0", "12.6", "A100 H100"]
    expect(page.get_by_role("row", name=PLAIN)).to_contain_text("has no package list (built by an older ctrain)")
    expect(page.get_by_role("row", name="broken:1-hd-r1")).to_contain_text("is not a SIF image")
    expect(page.get_by_role("status")).to_have_text("7 versions of 5 images")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("deepspeed 0.19", [THIRD, CPU]),
        ("DeepSpeed==0.19.8", [THIRD]),
        ("torch 2.6", [THIRD, SECOND]),
        ("torch 2.1", []),  # 2.13 is another version
        ("my-tool", [THIRD, SECOND]),  # is how Python compares the name my_tool
        ("my_tool 2.1", [SECOND]),
        ("pytorch:24.12-hd-r2", [THIRD]),
        ("cuda 12.0", [FIRST]),
        ("gon", [SECOND, FIRST]),
        ("prod deepspeed 0.16", [SECOND]),
        ("v100", [FIRST]),
        ("nothing-like-it", []),
    ],
)
def test_search(page: Page, words: str, wanted: list[str]) -> None:
    page.get_by_role("searchbox", name="Search").fill(words)
    assert shown(page) == wanted
    told = f"{len(wanted) or 'none'} of 7 versions of 5 images"
    expect(page.get_by_role("status")).to_have_text(told)


def test_search_by_digest_and_what_it_shows(page: Page, store: Path) -> None:
    digest = file_digest(store / "pytorch_24.12-hd-py3-r1.sif")
    page.get_by_label("Search").fill(digest[:20])
    assert shown(page) == [SECOND]
    page.get_by_label("Search").fill("deepspeed 0.16 torch")
    expect(page.get_by_role("row", name=SECOND)).to_contain_text("deepspeed 0.16.4 · torch 2.6.0a0+df5bbc0")


@pytest.mark.parametrize(
    ("label", "value", "wanted"),
    [
        ("Channel", "prod", [SECOND, CPU]),
        ("torch", "2.6.0a0", [THIRD, SECOND]),
        ("torch", "none", ["broken:1-hd-r1", PLAIN]),
        ("CUDA", "12.0", [FIRST]),
        ("CUDA", "none", ["broken:1-hd-r1", "evil:1-hd-r1", PLAIN, CPU]),
        ("GPU", "A100", [THIRD, SECOND, FIRST]),
        ("GPU", "H100", [THIRD, SECOND]),
    ],
)
def test_filters(page: Page, label: str, value: str, wanted: list[str]) -> None:
    page.get_by_label(label, exact=True).select_option(value)
    assert shown(page) == wanted
    page.get_by_role("button", name="Clear").click()
    assert len(shown(page)) == 7


def test_what_is_shown_can_be_sent_to_a_colleague(page: Page, visit: Open, catalogue: Path) -> None:
    page.get_by_label("Search").fill("deepspeed 0.19")
    page.get_by_label("CUDA", exact=True).select_option("12.6")
    page.get_by_role("link", name="pytorch 24.12-hd-r2").click()
    expect(sheet(page)).to_be_visible()
    other = visit(catalogue, page.url.partition("#")[2])
    assert other.get_by_label("Search").input_value() == "deepspeed 0.19"
    expect(sheet(other).get_by_role("heading", level=2)).to_have_text("pytorch 24.12-hd-r2dev")
    other.keyboard.press("Escape")
    assert shown(other) == [THIRD]
    page.go_back()
    expect(sheet(page)).to_be_hidden()
    assert shown(page) == [THIRD]


def test_an_address_of_a_version_that_is_gone(visit: Open, catalogue: Path) -> None:
    page = visit(catalogue, "image=pytorch:0-x-r1")
    expect(sheet(page)).to_contain_text("Not in this catalogue")
    expect(sheet(page)).to_contain_text("pytorch:0-x-r1")


def test_details(page: Page, store: Path) -> None:
    page.get_by_role("link", name="pytorch 24.12-hd-r2").click()
    text = sheet(page).inner_text().replace("\n", " ")
    for told in (
        *("amd64, GPUs A100 H100", "560.35 or newer; on data-centre GPUs also 535", "8.0 9.0", "2.6.0a0+df5bbc0"),
        *("imports passed 1.2 s", "GPU skipped no GPU here", "pytorch-ngc 9.0 GB 90.0 %", "deepspeed 1.0 GB 10.0 %"),
        *(file_digest(store / "pytorch_24.12-hd-py3-r2.sif"), "base:1", "Packages: 4 pypi", "my_tool 2.13.0 pypi"),
    ):
        assert told in text.replace("\t", " ")
    widths = [part.bounding_box()["width"] for part in sheet(page).locator(".bar span").all()]
    assert widths[0] / widths[1] == pytest.approx(9, rel=0.1)
    sheet(page).get_by_role("link", name="since 24.12-hd-r1").click()
    expect(sheet(page).get_by_role("heading", level=2)).to_have_text("What changed")


def test_details_where_packages_are_not_known(page: Page) -> None:
    page.get_by_role("link", name="older 1-hd-r1").click()
    expect(sheet(page)).to_contain_text("older_1-hd-py3-r1.sif has no package list")
    expect(sheet(page)).to_contain_text("amd64, no GPU needed")


@pytest.mark.parametrize("clipboard", [True, False], ids=["https", "http"])
def test_command_lines_are_copied(visit: Open, catalogue: Path, store: Path, clipboard: bool) -> None:
    """Where a page comes by plain http, browsers have no clipboard for it."""
    page = visit(catalogue, permissions=["clipboard-read", "clipboard-write"] if clipboard else [])
    if not clipboard:
        page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    quoted = "'" + str(store).replace("'", "'\"'\"'") + "'"
    for version, place, wanted in (
        (THIRD, 0, f"ctrain run --nodes 2 --store {quoted} --image {THIRD} -- python train.py"),
        (THIRD, 1, f"apptainer exec --nv {quoted[:-1]}/pytorch_24.12-hd-py3-r2.sif' python train.py"),
        (CPU, 1, f"apptainer exec {quoted[:-1]}/pytorch-cpu_2.13.0-hd-py3-r1.sif' python train.py"),
    ):
        page.get_by_role("link", name=version.replace(":", " ")).click()
        sheet(page).get_by_role("button", name="Copy").nth(place).click()
        expect(sheet(page).get_by_role("button", name="Copied")).to_be_visible()
        page.keyboard.press("Escape")
        page.get_by_label("Search").fill("")
        page.get_by_label("Search").press("Control+V")
        expect(page.get_by_label("Search")).to_have_value(wanted)
        page.get_by_label("Search").fill("")


def test_two_versions_are_compared(page: Page) -> None:
    for version in (PLAIN, THIRD, FIRST):  # the third takes the place of the first
        page.get_by_role("checkbox", name=f"Compare {version}").check()
    assert not page.get_by_role("checkbox", name=f"Compare {PLAIN}").is_checked()
    expect(page.get_by_role("complementary")).to_contain_text(f"{FIRST} → {THIRD}")
    page.get_by_role("link", name="Compare").click()
    software, layers, packages = (
        [row.get_by_role("cell").all_inner_texts() for row in table.get_by_role("row").all()[1:]]
        for table in sheet(page).get_by_role("table").all()
    )
    assert ["1.14.0a0+44dac51", "2.6.0a0+df5bbc0", "changed"] in software
    assert ["525.60 or newer", "560.35 or newer; on data-centre GPUs also 535", "changed"] in software
    assert layers == [["9.0 GB", "9.0 GB", "same"], ["1.0 GB", "1.0 GB", "changed"]]
    assert sorted(packages) == sorted(
        [
            *(["0.8.0", "0.19.8", "changed"], ["", "7", "added"], ["", "2.13.0", "added"], ["1.0", "", "removed"]),
            ["1.14.0a0+44dac51", "2.6.0a0+df5bbc0", "changed"],
        ]
    )
    expect(sheet(page)).to_contain_text("Packages: 2 added, 1 removed, 2 changed")
    page.get_by_role("button", name="Close").click()
    page.get_by_role("checkbox", name=f"Compare {FIRST}").uncheck()
    expect(page.get_by_role("complementary")).to_contain_text(f"{THIRD}: choose another")


def test_the_keyboard_is_enough(page: Page) -> None:
    page.get_by_label("Search").focus()
    page.keyboard.type("deepspeed 0.8")
    for _ in range(6):  # four filters, Clear, and the box for comparing
        page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(sheet(page).get_by_role("heading", level=2)).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="pytorch 23.01-hd-r1")).to_be_focused()


def test_hostile_texts_are_shown_and_do_nothing(page: Page) -> None:
    page.get_by_role("link", name="evil 1-hd-r1").click()
    assert sheet(page).inner_text().count(HOSTILE) >= 5
    page.keyboard.press("Escape")
    page.get_by_role("checkbox", name="Compare evil:1-hd-r1").check()
    page.get_by_role("checkbox", name=f"Compare {SECOND}").check()
    page.get_by_role("link", name="Compare").click()
    expect(sheet(page)).to_contain_text(HOSTILE)
    page.keyboard.press("Escape")
    page.get_by_label("GPU", exact=True).select_option(HOSTILE)
    assert shown(page) == ["evil:1-hd-r1"]
    assert page.evaluate("typeof hacked") == "undefined"


def test_nothing_can_be_loaded(browser: Browser, catalogue: Path) -> None:
    """Whatever got into the page would find that its policy forbids it. Unwatched: the browser complains of it."""
    page = browser.new_page()
    page.goto(catalogue.as_uri())
    asked = """([what, facts]) => new Promise((done) => {
      setTimeout(() => done("nothing"), 5000);
      addEventListener("securitypolicyviolation", (event) => done(event.effectiveDirective));
      if (what === "fetch") fetch(facts.src).catch(() => {});
      else document.body.append(Object.assign(document.createElement(what), facts));
    })"""
    there = {"src": "http://127.0.0.1:9/"}
    for what, facts, directive in (
        *(("fetch", there, "connect-src"), ("img", there, "img-src"), ("iframe", there, "frame-src")),
        *(("script", there, "script-src-elem"), ("script", {"textContent": "hacked = 1"}, "script-src-elem")),
    ):
        assert page.evaluate(asked, [what, facts]) == directive
    assert page.evaluate("typeof hacked") == "undefined"
    page.close()


def test_without_javascript_there_is_a_table(visit: Open, catalogue: Path) -> None:
    page = visit(catalogue, java_script_enabled=False)
    assert shown(page)[3:5] == [THIRD, SECOND]
    expect(page.get_by_text("allow this page JavaScript")).to_be_visible()
    expect(page.get_by_role("search")).to_be_hidden()
    expect(page.get_by_role("checkbox")).to_have_count(0)


@pytest.mark.parametrize("told", ["", f"image={THIRD}", f"old={FIRST}&new={THIRD}", "image=evil:1-hd-r1"])
def test_a_phone_is_wide_enough(visit: Open, catalogue: Path, told: str) -> None:
    page = visit(catalogue, told, viewport={"width": 360, "height": 740})
    wide = (
        "[document.documentElement, document.querySelector('dialog')].map((one) => one.scrollWidth - one.clientWidth)"
    )
    assert page.evaluate(wide) == [0, 0]


def test_a_thousand_versions(visit: Open, tmp_path: Path) -> None:
    many = {f"package-{number}": "1.0" for number in range(400)}
    versions = [
        {
            "tag": str(number % 50),
            "release": number + 1,
            "software": {"torch": f"2.{number % 9}.0"},
            "content": sif(more=[(SBOM, sbom(**many, deepspeed=f"0.{number}"))]),
        }
        for number in range(1000)
    ]
    file = made(write_store(tmp_path / "store", *versions))
    assert file.stat().st_size < 6_000_000
    page = visit(file)
    expect(page.get_by_role("status")).to_have_text("1000 versions of 1 image")
    page.get_by_label("Search").press_sequentially("deepspeed 0.77")
    assert shown(page) == ["pytorch:27-hd-r78"]
    page.get_by_label("Search").fill("")
    page.get_by_label("torch", exact=True).select_option("2.3.0")
    expect(page.get_by_role("status")).to_have_text("111 of 1000 versions of 1 image")
    page.get_by_role("link", name="pytorch 27-hd-r778", exact=True).click()
    expect(sheet(page)).to_contain_text("Packages: 401 pypi")
