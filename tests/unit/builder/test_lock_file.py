"""images.lock: what of it is imposed on builds, what is only compared, and that nothing changes without it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder.build_host import settings
from ctrain_builder.build_host.settings import BuildHost
from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.definitions import lock_file
from ctrain_builder.definitions.lock_file import LockedImage, LockedLayer, LockFile
from ctrain_builder.files import manifest_writer
from ctrain_builder.image import describe, lock
from ctrain_builder.image.describe import Content
from ctrain_builder.plan import build_plan
from ctrain_runtime.errors import BuildError, ConfigError
from ctrain_runtime.store.manifest import Manifest, read_manifest
from samples import built_image

BASE = LockedLayer("sha256:1", "k1", {"numpy": "2.4.6"}, {"bash": "5.2"})
UPPER = LockedLayer("sha256:2", "k2", {"tqdm": "4.70.1"})
DATE = "20261128T000000Z"


def write(project: Path, **layers: LockedLayer) -> Path:
    directory = project / "definitions"
    image = LockedImage(layers=layers)
    return lock_file.write(directory, lock_file.read(directory).with_image("small:1.0", "amd64", image))


def keys(project: Path) -> tuple[str, ...]:
    return built_image.plan(project / "definitions").keys


def test_it_changes_only_the_keys_of_what_it_locks(project: Path) -> None:
    before = keys(project)
    write(project, base=replace(BASE, pypi={}), upper=replace(UPPER, pypi={}))
    assert keys(project) == before, "Debian's packages and digests are only compared"
    write(project, upper=UPPER)
    after = keys(project)
    assert (after[0], after[1] != before[1]) == (before[0], True)
    write(project, upper=replace(UPPER, digest="sha256:3"))
    assert keys(project) == after
    write(project, upper=replace(UPPER, pypi={"tqdm": "4.70.2"}))
    assert keys(project)[1] not in (after[1], before[1])
    file = project / "definitions" / lock_file.FILE
    file.write_text(file.read_text().replace("amd64", "arm64"))
    assert keys(project) == before, "another architecture"
    file.unlink()
    assert keys(project) == before


def test_each_architecture_has_a_lock_of_its_own() -> None:
    one, other = LockedImage(layers={"base": BASE}), LockedImage(layers={"base": UPPER})
    both = LockFile().with_image("small:1.0", "amd64", one).with_image("small:1.0", "arm64", other)
    assert both.images == {"small:1.0": {"amd64": one, "arm64": other}}


def test_a_plan_names_the_lock_as_a_reason(
    project: Path, ctrain: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    old = built_image.plan(project / "definitions")
    write(project, upper=UPPER)
    new = built_image.plan(project / "definitions")
    missing = replace(new, layers=tuple(replace(layer, exists=False) for layer in new.layers))
    states = build_plan.status(missing, old.inputs.get)
    assert states[1].why == ("images.lock changed",)
    assert [layer.locked for layer in new.layers] == [None, UPPER]
    assert ctrain("build", "--plan") == 0, capsys.readouterr().err


def test_a_snapshot_is_part_of_the_key_of_a_base_from_a_mirror(project: Path) -> None:
    before = keys(project)
    locked = LockFile().with_image("small:1.0", "amd64", LockedImage(snapshot=DATE))
    lock_file.write(project / "definitions", locked)
    assert keys(project)[0] != before[0]
    assert [layer.snapshot for layer in built_image.plan(project / "definitions").layers] == [DATE, ""]
    base = project / "definitions/base/base.def"
    base.write_text(base.read_text().replace("{{ MIRROR }}", "http://a.mirror.example"))
    with_lock = keys(project)
    (project / "definitions" / lock_file.FILE).unlink()
    assert keys(project) == with_lock, "this base comes from no mirror of the site"


@pytest.mark.parametrize(
    ("mirror", "dated"),
    [
        ("http://snap.example/archive/debian/20250101T000000Z", f"http://snap.example/archive/debian/{DATE}"),
        ("http://snap.example/archive/debian/20250101T000000Z/", f"http://snap.example/archive/debian/{DATE}/"),
        (f"http://snap.example/{DATE}", f"http://snap.example/{DATE}"),
        ("http://mirror.example/debian", ""),
        ("", ""),
    ],
)
def test_a_mirror_is_taken_as_it_was_on_the_day(mirror: str, dated: str) -> None:
    if dated:
        assert lock_file.at_snapshot(mirror, DATE) == dated
    else:
        with pytest.raises(BuildError, match=f"images.lock wants the Debian mirror of {DATE}, and .* is no snapshot"):
            lock_file.at_snapshot(mirror, DATE)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("{", "is damaged"),
        ("[]", "it has no schema"),
        ('{"schema": 2}', "unsupported schema 2"),
        ('{"schema": 1, "image": {}}', "unknown key 'image'"),
        ({"snapshot": "../../etc"}, "snapshot '../../etc' is no date"),
        (
            {"layers": {"base": {"digest": "", "pypi": {"x": "1\n--index-url=http://evil"}}}},
            "is no version of a package",
        ),
        ({"layers": {"base": {"digest": "", "pypi": {"-r /etc/passwd": "1"}}}}, "is no version of a package"),
        ({"layers": {"base": {"digest": "", "pypi": {"x": 1}}}}, "must be a string"),
    ],
)
def test_a_damaged_or_hostile_lock_is_refused(project: Path, data: Any, problem: str) -> None:
    text = data if isinstance(data, str) else json.dumps({"schema": 1, "images": {"small:1.0": {"amd64": data}}})
    (project / "definitions" / lock_file.FILE).write_text(text)
    with pytest.raises(ConfigError) as error:
        keys(project)
    assert problem in str(error.value)


def test_pip_is_held_to_it_and_to_the_constraints_of_the_image(tmp_path: Path) -> None:
    settings.write(BuildHost({}, (), None, {}), tmp_path, BASE.constraints)
    assert (tmp_path / "constraints.txt").read_text() == "numpy==2.4.6\n"
    lines = (tmp_path / "build-env.sh").read_text().splitlines()
    assert 'export PIP_CONSTRAINT="${PIP_CONSTRAINT:+$PIP_CONSTRAINT }/mnt/constraints.txt"' in lines
    settings.write(BuildHost({}, (), None, {}), tmp_path)
    assert "PIP_CONSTRAINT=" not in (tmp_path / "build-env.sh").read_text()


def test_what_differs_is_named() -> None:
    assert BASE.differences({"numpy": "2.4.6", "more": "1"}, {"bash": "5.2"}) == ""
    assert BASE.differences({"numpy": "2.4.7"}, {}) == "numpy 2.4.6 -> 2.4.7; bash 5.2 -> (none)"
    many = LockedLayer("", "", {f"p{number}": "1" for number in range(9)})
    assert many.differences({}, {}).endswith("p5 1 -> (none); and 3 more")


@pytest.fixture
def built(
    ctrain: Callable[..., int],
    project: Path,
    tmp_path: Path,
    make_manifest: Callable[..., Manifest],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., int]:
    """ctrain, with the image `small` in the cache: numpy and bash in its base, another numpy and tqdm above it."""
    cache = open_cache(tmp_path / "cache")
    plan = built_image.plan(project / "definitions")
    image = built_image.put(cache, plan, make_manifest)
    manifest_writer.write(image.with_suffix(".json"), read_manifest(image.with_suffix(".json")))
    deb = [{"package": "bash", "version": "5.2", "architecture": "amd64"}]

    def examine(_container: object, _base: Path, overlays: tuple[str, ...]) -> Content:
        pypi = {"numpy": "2.5", "tqdm": "4.70.1", "wheel": "1"} if overlays else {"numpy": "2.4.6", "wheel": "1"}
        return Content(packages={"pypi": pypi, "deb": deb})

    monkeypatch.setattr(describe, "examine", examine)
    return ctrain


def test_a_built_image_is_locked(built: Callable[..., int], project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert built("upstream", "--lock", "small") == 0
    assert capsys.readouterr().out.startswith("small:1.0 is locked: 4 packages of Python, 1 of Debian in 2 layers\n")
    layers = lock_file.read(project / "definitions").images["small:1.0"]["amd64"].layers
    assert layers["base"].pypi == {"numpy": "2.4.6", "wheel": "1"} and layers["base"].deb == {"bash": "5.2"}
    assert layers["upper"].pypi == {"numpy": "2.5", "tqdm": "4.70.1"} and layers["upper"].deb == {}
    assert built("upstream", "--lock", "small") == 78
    said = capsys.readouterr().err
    assert "is not built as planned (made of other layers). Run: ctrain build small:1.0" in said


def test_who_locks_what_is_not_there_is_told_so(
    built: Callable[..., int], project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv, code, problem in (
        ((), 64, "--lock needs the images"),
        (("big",), 64, "has no image 'big'"),
        (("pytorch-cpu",), 64, "image pytorch-cpu is not of "),
    ):
        assert built("upstream", "--lock", *argv) == code
        assert problem in capsys.readouterr().err
    open_cache(tmp_path / "cache").layers.path(keys(project)[1], False).unlink()
    assert built("upstream", "--lock", "small") == 78
    assert "layer upper of image small 1.0 is no longer in the cache" in capsys.readouterr().err


def test_a_layer_that_was_built_again_is_compared(built: Callable[..., int], project: Path, tmp_path: Path) -> None:
    assert built  # the cache has its layers
    cache = open_cache(tmp_path / "cache")
    plan = built_image.plan(project / "definitions")
    contents = tuple(cache.layers.content(part.key, part.definition.is_base) for part in plan.layers)
    paths = tuple(cache.layers.path(part.key, part.definition.is_base) for part in plan.layers)
    stack = lock.Stack(paths, contents)
    container: Any = None

    def deviation(locked: LockedLayer, key: str) -> str:
        return lock.deviation(container, stack, locked, key)

    assert deviation(replace(UPPER, digest=contents[1].digest, pypi={"tqdm": "0"}), "k2") == "", "the same bytes"
    assert deviation(UPPER, "k2") == "the same versions, but other bytes"
    assert deviation(UPPER, "k3") == "", "the key is in the bytes"
    assert deviation(replace(UPPER, pypi={"tqdm": "4"}), "k3") == "tqdm 4 -> 4.70.1"
