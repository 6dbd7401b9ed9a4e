from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime.errors import ImageUnusable
from ctrain_runtime.store.sbom import packages
from ctrain_runtime.store.sif import SBOM
from samples.sample_images import sbom, sif


def image(folder: Path, content: bytes) -> Path:
    path = folder / "x.sif"
    path.write_bytes(sif(more=[(SBOM, content)]))
    return path


def test_the_packages_of_an_image(tmp_path: Path) -> None:
    assert packages(image(tmp_path, sbom(torch="2.6.0", numpy="2.4.6"))) == {
        ("pypi", "torch"): "2.6.0",
        ("pypi", "numpy"): "2.4.6",
    }


def test_an_image_of_an_older_ctrain(tmp_path: Path) -> None:
    (tmp_path / "x.sif").write_bytes(sif())
    with pytest.raises(
        ImageUnusable, match=r"x.sif has no package list \(built by an older ctrain\). Rebuild and publish it"
    ):
        packages(tmp_path / "x.sif")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"components": [1]}',
        b'{"components": [{"purl": 1}]}',
        b'{"components": null}',
        b'{"components": [{"purl": "pkg:pypi/x@1", "name": 1, "version": "1"}]}',
        b'{"components": [{"purl": "pkg:pypi/x@1", "name": "x", "version": null}]}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_a_damaged_package_list(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ImageUnusable, match="has a damaged package list"):
        packages(image(tmp_path, content))


def test_what_is_no_package_is_left_out(tmp_path: Path) -> None:
    content = b'{"components": [{"purl": "https://x.example/torch", "name": "torch", "version": "1"}]}'
    assert packages(image(tmp_path, content)) == {}
