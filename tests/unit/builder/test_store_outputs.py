"""Module files and the catalogue are out of date after a change of the store; `ctrain doctor` and `images` notice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from samples.shop import Shop

Change = Callable[[Shop], object]
CHANGES: list[Change] = [
    lambda shop: shop.publish("four"),
    lambda shop: shop("promote", "small", "1.0-s-r3", "prod"),
    lambda shop: shop("retire", "small:1.0-s-r1", "--yes"),
    lambda shop: shop("channel", "rm", "small", "dev"),
    lambda shop: shop("withdraw", "small:1.0-s-r1", "--why", "x", "--yes"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_out_of_date(shop: Shop, tmp_path: Path, change: Change) -> None:
    modules = tmp_path / "my modules"

    def refresh() -> None:
        shop("catalogue")
        shop("modules", "--output", str(modules))

    refresh()
    assert shop("list", stream="err") == ""
    change(shop)
    for said in (shop.ctrain("doctor", stream="out"), shop("list", stream="err")):
        assert f"{shop.root}/catalogue.html is out of date" in said
        assert f"ctrain store catalogue --store {shop.root}" in said
        assert f"{modules} is out of date" in said
        assert f"ctrain store modules --store {shop.root} --output '{modules}'" in said
    refresh()
    assert shop("list", stream="err") == ""


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
    assert "Remove it, then write module files and catalogue again" in said
