from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_builder.definitions import ngc
from ctrain_builder.definitions.ngc import Release, Table
from ctrain_runtime.errors import ConfigError


@pytest.fixture(scope="module")
def table(checkout: Path) -> Table:
    """The one of the repository."""
    return ngc.read(checkout / "definitions")


def test_the_table_has_the_tags_that_matter(table: Table) -> None:
    assert {"22.03", "24.12", "26.08"} <= table.releases.keys()
    release = table.releases["24.12"]
    assert (release.cuda, release.python, release.shown("driver")) == ("12.6", "3.12.3", "~560.35")
    assert table.releases["22.03"].older_drivers[0] == "418.40"


def test_the_newest_for_volta_is_24_12(table: Table) -> None:
    """Facts that users' choices depend on: the newest tag that is known to run on V100 as well as on A100."""
    volta = [tag for tag, release in table.releases.items() if "V100" in table.gpus(release.arch)]
    assert max(volta) == "24.12"
    assert "V100" not in table.gpus(table.releases["25.04"].arch)
    assert "B200" in table.gpus(table.releases["25.04"].arch)


def test_releases_stand_in_order_and_name_known_gpus(table: Table) -> None:
    assert list(table.releases) == sorted(table.releases)
    for release in table.releases.values():
        compiled = {part.partition("+")[0] for part in release.arch.split()}
        assert compiled <= table.generations.keys() | {"7.2", "8.7", "11.0"}  # those three are Jetson boards
        assert not [name for name in release.unverified if not getattr(release, name)]


@pytest.mark.parametrize(
    ("arch", "gpus"),
    [
        ("7.0 7.5 8.0 8.6 9.0+PTX", ["V100", "T4", "A100", "A40", "L40S", "H100"]),
        ("8.0", ["A100", "A40", "L40S"]),  # code for 8.0 runs on 8.6 and 8.9
        ("8.6", ["A40", "L40S"]),  # and not the other way round
        ("10.0 12.0+PTX", ["B200", "B300", "RTX PRO 6000"]),
        ("9.0a", ["H100"]),
        ("", []),
    ],
)
def test_which_gpus_run_what_is_compiled(table: Table, arch: str, gpus: list[str]) -> None:
    assert list(table.gpus(arch)) == gpus


@pytest.mark.parametrize(
    ("release", "branch"),
    [
        (Release(driver="560.35.05"), "560"),
        (Release(driver="560.35", unverified=("driver",)), "~560"),
        (Release(driver="510.47.03", minimum_driver="470"), "470"),
        (Release(driver="510.47.03", minimum_driver="470", unverified=("driver",)), "470"),
        (Release(), "-"),
    ],
)
def test_the_driver_that_a_release_needs(release: Release, branch: str) -> None:
    assert release.needs_driver == branch


def test_what_an_images_variables_say() -> None:
    variables = [
        "PATH=/usr/bin",
        "CUDA_VERSION=13.4.1.012",
        "PYTORCH_VERSION=2.14.0a0+4fdf77b",
        "CUDA_DRIVER_VERSION=615.65.02",
        "TORCH_CUDA_ARCH_LIST=7.5 8.0 9.0+PTX",
        "NCCL_VERSION=2.30.7",
        "EMPTY",
    ]
    assert ngc.of_image(variables) == Release(
        cuda="13.4.1", torch="2.14.0a0+4fdf77b", driver="615.65.02", arch="7.5 8.0 9.0+PTX", nccl="2.30.7"
    )


HEAD = "checked: 2026-11-21\ngenerations: {}\nreleases:\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("  22.10: {}", r"ngc\.yaml: releases: 22\.1 is not a tag as in 24\.12\. Write it in quotes$"),
        ('  "24.12": {cude: "1"}', r"ngc\.yaml: releases\.24\.12: unknown key 'cude'\. Did you mean 'cuda'\?$"),
        ('  "24.12": {cuda: 12.6}', r"releases\.24\.12: cuda must be a string, not a number"),
        ('  "24.12": {unverified: [cude]}', r"releases\.24\.12: unverified names 'cude', which is not a field"),
        ('  "24.12": {unverified: [shown]}', r"releases\.24\.12: unverified names 'shown', which is not a field"),
    ],
)
def test_a_wrong_table_is_refused_with_its_place(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "ngc.yaml").write_text(f"{HEAD}{text}\n")
    with pytest.raises(ConfigError, match=complaint):
        ngc.read(tmp_path)
