"""Module files and the catalogue are out of date after a change of the store; `ctrain doctor` and `images` notice."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.store.init import init_store
from ctrain_runtime.cli.main import main
from ctrain_runtime.errors import GateNotPassed
from ctrain_runtime.store.store import STORE_LOG, STORE_MARKER
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


def publish_unaware(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a ctrain would that knows nothing of what was made of the store."""
    with monkeypatch.context() as patch:
        patch.setattr("ctrain_builder.store.refresh.refresh", lambda *_: None)
        shop.publish("four")


def test_what_others_have_made_out_of_date(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = tmp_path / "my modules"
    make(shop, modules)
    assert shop("list", stream="err") == ""
    publish_unaware(shop, monkeypatch)
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


def test_they_follow_a_version_whose_channel_is_kept_by_a_gate(shop: Shop) -> None:
    shop("catalogue")
    (shop.root / "policy.yaml").write_text("channels: {prod: {base_max_age: 30}}")
    with pytest.raises(GateNotPassed):
        shop.publish("four", "prod")
    assert "1.0-s-r4" in (shop.root / "catalogue.html").read_text()


def test_without_yes_nothing_is_brought_up_to_date(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(shop, tmp_path / "modules")
    publish_unaware(shop, monkeypatch)
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


def test_a_store_that_was_moved_brings_its_own_along(shop: Shop, tmp_path: Path) -> None:
    modules, before = tmp_path / "modules", shop.root
    make(shop, modules)
    shop.root = shop.root.rename(tmp_path / "moved")
    said = shop("list", stream="err")
    assert f"{shop.root}/catalogue.html is out of date" in said and f"{modules} is out of date" in said
    said = shop("promote", "small", "1.0-s-r3", "prod", stream="err")
    assert {*said.splitlines()} == {f"updated {modules}", f"updated {shop.root}/catalogue.html"}
    texts = [path.read_text() for path in modules.rglob("*") if path.is_file()]
    assert texts and not any(str(before) in text for text in texts)
    assert shop("list", stream="err") == ""


def test_a_store_keeps_the_name_by_which_its_modules_were_made(shop: Shop, tmp_path: Path) -> None:
    """Users know the link, which stays when the store behind it is another one."""
    modules, real, link = tmp_path / "modules", shop.root, tmp_path / "link"
    link.symlink_to("store")
    shop.root = link
    make(shop, modules)
    shop.root = real
    said = shop("promote", "small", "1.0-s-r3", "prod", stream="err")
    assert f"updated {modules}" in said and "out of date" not in said
    assert f'SIF "{link}/small_1.0-s-py3-r3.sif"' in (modules / "ctrain-small/1.0-s-r3").read_text()
    assert shop("list", stream="err") == ""
    shop("modules", "--output", str(modules))
    assert f'SIF "{real}/small_1.0-s-py3-r3.sif"' in (modules / "ctrain-small/1.0-s-r3").read_text(), "as it is named"
    shop.root = link
    assert shop("list", stream="err") == ""


def test_another_store_in_the_place_of_a_moved_one_gives_nothing_away(shop: Shop, tmp_path: Path) -> None:
    """The modules of the one that is there now are not those of the one that was moved."""
    modules = tmp_path / "modules"
    make(shop, modules)
    before = shop.root
    shop.root = shop.root.rename(tmp_path / "moved")
    init_store(before)
    said = shop("promote", "small", "1.0-s-r3", "prod", stream="err")
    assert f"{modules} is out of date: {modules}/ctrain-small/1.0-s-r1 was not made by `ctrain store modules`" in said


def test_who_may_not_write_to_the_store_gets_modules_of_their_own(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not (Path(path) == shop.root and mode == os.W_OK))
    before = sorted(shop.root.rglob("*"))
    said = shop("modules", "--output", str(tmp_path / "mine"), stream="err")
    assert said == f"{shop.root} cannot be written: run this again after each change of the store\n"
    assert (tmp_path / "mine/ctrain-small/1.0-s-r1").exists()
    assert sorted(shop.root.rglob("*")) == before


def test_without_setgid_new_directories_belong_to_the_group_of_their_store(shop: Shop, tmp_path: Path) -> None:
    """They got the primary group of whoever came first: the other administrators could not write there. So did the log,
    so that no change of theirs could be recorded."""
    output = tmp_path / "modules"
    output.mkdir()
    (shop.root / STORE_LOG).unlink()
    for root in (shop.root, output):
        for name in ("channels", "in-use"):
            shutil.rmtree(root / name, ignore_errors=True)
        give_away(root, -1, 4321)
        root.chmod(0o775)
    shop("promote", "small", "1.0-s-r1", "prod")
    shop("retire", "small:1.0-s-r2", "--yes")
    shop("modules", "--output", str(output))
    found = [shop.root / "channels", shop.root / "retired", *(path for path in output.rglob("*") if path.is_dir())]
    assert {(path.stat().st_gid, path.stat().st_mode & 0o7777) for path in found} == {(4321, 0o775)}
    shop.publish("four")
    shop("withdraw", "small:1.0-s-r4", "--why", "x", "--yes")
    shop("catalogue")
    written = [path for path in shop.root.rglob("*") if not path.match("small_1.0-s-py3-r[123].*")]
    others = [path for path in written if not path.is_symlink() and path.stat().st_gid != 4321]
    assert [path.name for path in others] == [STORE_MARKER]  # written before the group was changed
