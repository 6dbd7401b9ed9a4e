"""Module files and the catalogue are out of date after a change of the store; `ctrain doctor` and `images` notice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.store.init import init_store
from ctrain_runtime.cli.main import main
from samples.programs import give_away
from samples.shop import Shop

CHANGES = [
    ("promote", "small", "1.0-s-r3", "prod"),
    ("retire", "small:1.0-s-r1", "--yes"),
    ("channel", "rm", "small", "dev", "--yes"),
    ("withdraw", "small:1.0-s-r1", "--why", "x", "--yes"),
]


def make(shop: Shop, modules: Path) -> None:
    """The catalogue, and module files."""
    shop("catalogue")
    shop("modules", "--output", str(modules))


def test_what_others_have_made_out_of_date(shop: Shop, tmp_path: Path) -> None:
    modules = tmp_path / "my modules"
    make(shop, modules)
    assert shop("list", stream="err") == ""
    shop.publish("four")  # as a ctrain would that knows nothing of it
    for said in (shop.ctrain("doctor", stream="out"), shop("list", stream="err")):
        assert f"{shop.root}/catalogue.html is out of date" in said
        assert f"ctrain store catalogue --store {shop.root}" in said
        assert f"{modules} is out of date" in said
        assert f"ctrain store modules --store {shop.root} --output '{modules}'" in said
    make(shop, modules)
    assert shop("list", stream="err") == ""


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_brings_them_up_to_date(shop: Shop, tmp_path: Path, change: tuple[str, ...]) -> None:
    modules = tmp_path / "my modules"
    make(shop, modules)
    before = (shop.root / "catalogue.html").read_text()
    said = shop(*change, stream="err")
    assert {f"updated {modules}", f"updated {shop.root}/catalogue.html"} <= {*said.splitlines()}
    assert shop("list", stream="err") == ""
    assert (shop.root / "catalogue.html").read_text() != before


def test_restoring_and_copying_bring_them_up_to_date(shop: Shop, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    init_store(copy)
    shop("retire", "small:1.0-s-r1", "--yes")
    for store in (shop.root, copy):
        assert main(BUILD_VERBS, ["store", "catalogue", "--store", str(store)]) == 0
    assert f"updated {shop.root}/catalogue.html" in shop("restore", "small:1.0-s-r1", stream="err")
    assert main(BUILD_VERBS, ["store", "sync", str(shop.root), str(copy)]) == 0
    assert f"updated {copy}/catalogue.html" in shop.capsys.readouterr().err
    assert "1.0-s-r3" in (copy / "catalogue.html").read_text()


def test_without_yes_nothing_is_brought_up_to_date(shop: Shop, tmp_path: Path) -> None:
    make(shop, tmp_path / "modules")
    shop.publish("four")
    assert "updated" not in shop("retire", "small:1.0-s-r1", stream="err")
    assert "out of date" in shop("list", stream="err")


def test_a_change_is_made_even_if_they_cannot_be(shop: Shop, tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    make(shop, modules)
    (modules / "ctrain-small/.modulerc").chmod(0o644)
    (modules / "ctrain-small/.modulerc").write_text("theirs")
    said = shop("promote", "small", "1.0-s-r3", "prod", stream="err")
    assert f"{modules} is out of date: {modules}/ctrain-small/.modulerc was not made by" in said
    assert f"Run: ctrain store modules --store {shop.root} --output {modules}" in said
    assert f"updated {shop.root}/catalogue.html" in said
    assert "prod" in shop.versions[3]


def test_others_who_can_write_to_the_store_do_not_choose_where_files_go(shop: Shop, tmp_path: Path) -> None:
    make(shop, tmp_path / "modules")
    give_away(shop.root / "ctrain-outputs.json", 12345)
    said = shop("promote", "small", "1.0-s-r3", "prod", stream="err")
    assert f"{tmp_path}/modules is out of date: somebody else has recorded it. Run: ctrain store modules" in said
    assert "updated" not in said


def test_what_was_removed_is_not_out_of_date(shop: Shop, tmp_path: Path) -> None:
    shop("modules", "--output", str(tmp_path / "modules"))
    shutil.rmtree(tmp_path / "modules")
    shop.publish("four")
    assert shop("list", stream="err") == ""


@pytest.mark.parametrize("text", ["{", "[]", '{"/x": 1}', '{"/x": {}}', "\udcff"])
def test_a_damaged_record_of_them(shop: Shop, text: str) -> None:
    (shop.root / "ctrain-outputs.json").write_bytes(text.encode(errors="surrogateescape"))
    said = shop.ctrain("doctor", code=76, stream="out")
    assert "cannot read" in said and "ctrain-outputs.json" in said
    assert "ctrain-outputs.json" in shop("list", stream="err")
    assert "Remove it, then write module files and catalogue again" in said


def test_what_only_a_newer_ctrain_can_make_again_is_reported(shop: Shop, tmp_path: Path) -> None:
    make(shop, tmp_path / "modules")
    record = shop.root / "ctrain-outputs.json"
    record.chmod(0o644)
    record.write_text(record.read_text().replace('"modules"', '"index"'))
    said = shop("promote", "small", "1.0-s-r3", "prod", stream="err")
    assert f"{tmp_path}/modules is out of date: a newer ctrain has made it. Run: ctrain store index" in said
    assert f"updated {shop.root}/catalogue.html" in said
