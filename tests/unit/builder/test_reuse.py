"""Which layers matter to a program in an image; the same with a real engine: tests/integration/test_unchanged_tests."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.files.layer_content import LayerContent
from ctrain_builder.layers import container as container_module
from ctrain_builder.layers.container import Container
from ctrain_builder.testing import planned_tests, reuse
from ctrain_builder.testing.reuse import Stack
from ctrain_builder.testing.tests import ImageTest
from ctrain_runtime.engines.apptainer import Engine

pytestmark = pytest.mark.skipif(not shutil.which("unsquashfs"), reason="squashfs-tools are not installed")
Files = dict[str, str]
METADATA = {".singularity.d/ctrain-layer": "key", ".singularity.d/labels.json": "{}"}
CODE = {**METADATA, "opt/code/a b/module.py": "x = 1"}


class Fake(Container):
    """Runs the script on the directory `below`, in the place of a container's /."""

    below = Path()
    asked = 0

    def output(self, argv: object, timeout: float = 120) -> str:
        type(self).asked += 1
        assert timeout
        assert isinstance(argv, list)
        script = argv[argv.index("-c") + 1].replace('"$name"', f'"{self.below}$name"')
        script = script.replace(f'echo "{self.below}$name"', 'echo "$name"')
        return subprocess.run(
            ["sh", "-c", script, *argv[argv.index("-c") + 2 :]], capture_output=True, text=True
        ).stdout


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    below = tmp_path / "below"
    for name in (".singularity.d", "opt/base", "usr/bin", "tmp/private"):
        (below / name).mkdir(parents=True, mode=0o755)
    (below / "tmp/private").chmod(0o700)
    monkeypatch.setattr(Fake, "below", below)
    monkeypatch.setattr(Fake, "asked", 0)
    return Fake(Engine("apptainer", "/usr/bin/apptainer", "1.4.5"), tmp_path, lambda: None)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return open_cache(tmp_path / "cache")


@pytest.fixture
def stack(tmp_path: Path) -> Callable[..., Stack]:
    """stack(layer, ...): a base, and a layer with each of these files; None stands for a directory."""

    def make(*layers: dict[str, object]) -> Stack:
        files = [Path("base.sif")]
        for number, content in enumerate(layers):
            folder = tmp_path / f"layer{number}"
            for name, text in content.items():
                path = folder / name
                (path if text is None else path.parent).mkdir(parents=True, exist_ok=True)
                if text is not None:
                    path.write_text(str(text))
            files.append(folder.with_suffix(".sqsh"))
            argv = ["mksquashfs", str(folder), str(files[-1]), "-all-root", "-quiet", "-no-progress"]
            subprocess.run(argv, check=True, capture_output=True)
        return Stack(tuple(files), tuple(LayerContent(f"sha256:{file.stem}", 1) for file in files))

    return make


def test_new_directories_of_opt_are_private(cache: Cache, container: Fake, stack: Callable[..., Stack]) -> None:
    found = stack({**METADATA, "usr/lib/x": "x"}, CODE, {**METADATA, "opt/more/y": "y", "usr/bin": None})
    assert reuse.needed_layers(cache, container, found, 0) == 2
    assert reuse.needed_layers(cache, container, found, 2) == 3  # its own layer matters to a test in any case
    asked = container.asked
    reuse.needed_layers(cache, container, found, 0)
    assert container.asked == asked, "the answer is remembered"


@pytest.mark.parametrize(
    "content",
    [
        {"etc/profile": "x"},
        {"opt/base/x": "x"},  # exists below
        {"usr/local": None},  # a directory that is new
        {"tmp/private": None},  # another mode than below
        {".singularity.d/env/90-environment.sh": "export X=1"},
        {"opt-not": "x"},
        {"opt/code/a\nb": "x"},  # a name that the listing cannot show in one line
    ],
)
def test_everything_else_matters_to_all(
    content: Files, cache: Cache, container: Fake, stack: Callable[..., Stack]
) -> None:
    assert reuse.needed_layers(cache, container, stack({**CODE, **content}), 0) == 2


@pytest.mark.parametrize("mode", [0o700, 0o775, 0o1777, 0o2755])
def test_another_mode_of_a_directory_than_below_matters(
    mode: int, cache: Cache, container: Fake, tmp_path: Path, stack: Callable[..., Stack]
) -> None:
    """/usr/bin that is its owner's alone is another image, though the layer adds nothing to it."""
    (tmp_path / "layer0/usr/bin").mkdir(parents=True)
    (tmp_path / "layer0/usr/bin").chmod(mode)
    assert reuse.needed_layers(cache, container, stack(CODE), 0) == 2


def test_a_link_in_the_place_of_metadata_or_opt_matters(cache: Cache, container: Fake, tmp_path: Path) -> None:
    for name in (".singularity.d/env", "opt"):
        folder = tmp_path / name.replace("/", "-")
        (folder / name).parent.mkdir(parents=True)
        (folder / name).symlink_to("/usr/lib")
        layer = folder.with_suffix(".sqsh")
        subprocess.run(["mksquashfs", str(folder), str(layer), "-all-root", "-quiet"], check=True, capture_output=True)
        found = Stack((Path("base.sif"), layer), (LayerContent("sha256:a", 1), LayerContent("sha256:b", 1)))
        assert reuse.needed_layers(cache, container, found, 0) == 2


def test_what_cannot_be_listed_matters(cache: Cache, container: Fake, tmp_path: Path) -> None:
    broken = tmp_path / "broken.sqsh"
    broken.write_bytes(b"no squashfs")
    found = Stack((Path("base.sif"), broken), (LayerContent("sha256:a", 1), LayerContent("sha256:b", 1)))
    assert reuse.needed_layers(cache, container, found, 0) == 2


def test_a_fingerprint_depends_on_each_part() -> None:
    whole = reuse.fingerprint("test", ("true",), "", ["sha256:a"], False, ("apptainer", "1.4.5"))
    for parts in (
        ("test", ("false",), "", ["sha256:a"], False, ("apptainer", "1.4.5")),
        ("test", ("true",), "x", ["sha256:a"], False, ("apptainer", "1.4.5")),
        ("test", ("true",), "", ["sha256:b"], False, ("apptainer", "1.4.5")),
        ("test", ("true",), "", ["sha256:a"], True, ("apptainer", "1.4.5")),
        ("test", ("true",), "", ["sha256:a"], False, ("apptainer", "1.5.0")),
    ):
        assert reuse.fingerprint(*parts) != whole


def test_surroundings_are_engine_with_configuration_machine_and_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, config = tmp_path / "apptainer", tmp_path / "apptainer.conf"
    engine.write_text(f"#!/bin/sh\necho APPTAINER_CONF_FILE={config}\n")
    engine.chmod(0o755)

    def seen(text: str, version: str = "1.4.5", root: bool = True) -> tuple[str, ...]:
        config.write_text(text)
        reuse.engine_name.cache_clear()
        return reuse.surroundings(Container(Engine("apptainer", str(engine), version), tmp_path, lambda: None, root))

    whole = seen("bind path = /etc/localtime")
    assert whole == seen("bind path = /etc/localtime")
    assert len({whole, seen("mount home = no"), seen("bind path = /etc/localtime", "1.5"), seen("", root=False)}) == 4
    monkeypatch.setattr(reuse.platform, "release", lambda: "9.9")
    reuse._machine.cache_clear()
    assert seen("bind path = /etc/localtime") != whole
    reuse._machine.cache_clear()


def test_another_checkout_or_another_path_of_the_engine_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(checkout: str, text: str = "{}") -> tuple[str, ...]:
        for name in ("no-mounts.json", "apptainer"):
            (tmp_path / checkout).mkdir(exist_ok=True)
            (tmp_path / checkout / name).write_text(f"#!/bin/sh\n# {text}\n")
            (tmp_path / checkout / name).chmod(0o755)
        for module in (container_module, reuse):
            monkeypatch.setattr(module, "NO_MOUNTS", tmp_path / checkout / "no-mounts.json")
        engine = Engine("apptainer", str(tmp_path / checkout / "apptainer"), "1.4.5")
        return reuse.surroundings(Container(engine, tmp_path, lambda: None))

    assert seen("one") == seen("two")
    assert seen("one", "other calls") != seen("two")


def test_a_test_depends_on_the_programs_that_it_names_and_their_modules() -> None:
    def named(text: str) -> list[str]:
        return [line.split()[0] for line in reuse.programs(text)]

    assert named("python3 /mnt/zero_step.py") == ["workers.py", "zero_step.py"]
    assert named("python3 /mnt/unchanged.py {}") == ["unchanged.py", "versions.py"]
    assert named("python3 -c 'import torch'") == []


def test_a_pass_on_the_layer_alone_holds_for_images_whose_other_layers_are_private(
    cache: Cache, container: Fake, stack: Callable[..., Stack], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse, "surroundings", lambda _: ())
    layers = stack({**METADATA, "usr/bin/tool": "1"}, CODE, {**METADATA, "usr/bin/other": "1"})

    def mark(*numbers: int, **facts: bool) -> str:
        chosen = Stack(tuple(layers.files[n] for n in numbers), tuple(layers.contents[n] for n in numbers))
        check = ImageTest("%test of tools", ("/mnt/script",), since=1, script="test -x /usr/bin/tool", **facts)
        return planned_tests.mark(cache, container, chosen, check, flat=False)

    assert mark(0, 1) == mark(0, 1, 2)
    assert mark(0, 1) != mark(0, 1, 3), "it may have changed what the test sees"
    assert mark(0, 1, all_layers=True) != mark(0, 1, 2, all_layers=True), "the test looks at all layers"
