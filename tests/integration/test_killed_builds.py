"""Real builds that are killed at random moments, or run at once: never half an image, and nothing is made twice."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ctrain_builder.files.digests import RegionHasher, regions
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.store import sif
from ctrain_runtime.store.manifest import read_manifest
from samples import tiny
from samples.long_mode import often
from samples.runs import wait_for

CHECKOUT = Path(__file__).parents[2]
CTRAIN = str(CHECKOUT / ".venv" / "bin" / "ctrain")
KILLS = often(50, 4)
SOON = 0.3  # seconds after a layer is made that a kill may come: each %post sleeps that long, and the end takes longer
LAYERS = ("one", "two", "three")

IMAGES = """\
images:
  small:
    chain: [base, one, two, three]
    stack: s
    tag: "1.0"
    tag_argument: VERSION
  other:
    chain: [base, one, two]
    stack: s
    tag: "1.0"
    tag_argument: VERSION
"""
BASE = """\
Bootstrap: localimage
From: {tiny}

%arguments
    VERSION=1.0

%labels
    version {{{{ VERSION }}}}
"""
LAYER = """\
Bootstrap: localimage
From: {{{{ PARENT }}}}

%arguments
    ROUND=0

%files
    examples/program.sh /opt/{name}/program.sh

%post
    [ ! -e /mnt/secrets/wait ] || sleep 1000
    mkdir -p /opt/{name}/many
    for number in 1 2 3 4 5 6 7 8 9; do head -c 200000 /dev/urandom > /opt/{name}/many/$number; done
    sleep 0.3
    echo {{{{ ROUND }}}} > /opt/{name}/round

%test
    test "$(cat /opt/{name}/round)" = "{{{{ ROUND }}}}"
    test "$(ls /opt/{name}/many | wc -l)" -eq 9
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("killed")
    base = tiny.sif(root / "tiny.sif", tiny.SHELL)
    texts = {f"definitions/{name}/{name}.def": LAYER.format(name=name) for name in LAYERS}
    texts |= {"definitions/images.yaml": IMAGES, "definitions/base/base.def": BASE.format(tiny=base)}
    texts["examples/program.sh"] = "echo hello\n"
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def argv(project: Path, number: int, *images: str) -> list[str]:
    """A build that has to make all upper layers anew when `number` is a new one."""
    places = ["--definitions", str(project / "definitions"), "--cache", str(project / "cache")]
    return [CTRAIN, "build", *(images or ("small",)), "--build-arg", f"ROUND={number}", *places]


def check(cache: Path, history: Sequence[str] = ()) -> None:
    """What is in the cache is whole."""
    try:
        for layer in (cache / "layers").iterdir():
            if layer.suffix == ".sif":
                sif.check(layer)
            elif layer.suffix == ".json":
                assert json.loads(layer.read_text())["digest"]
            else:
                subprocess.run(["unsquashfs", "-q", "-n", "-l", str(layer)], check=True, stdout=subprocess.DEVNULL)
        for manifest in (cache / "images").glob("*.json"):
            told = read_manifest(manifest)
            image = manifest.with_suffix(".sif")
            reading = RegionHasher(regions(image, told.layers))
            reading.update(image.read_bytes())
            assert told.digest == reading.digest(), "the manifest is that of another image"
        for inputs in (cache / "inputs").iterdir():
            assert json.loads(inputs.read_text())["inputs"]["format"]
        names = {path.suffix for folder in ("layers", "images", "inputs") for path in (cache / folder).iterdir()}
        assert names <= {".sif", ".sqsh", ".json"}, names
    except (AssertionError, CtrainError, subprocess.CalledProcessError) as error:
        pytest.fail("\n".join([str(error), *history]))


def made(cache: Path) -> set[str]:
    return {path.name for path in (cache / "layers").glob("*.s*")}


def test_a_killed_build_leaves_nothing_half_and_goes_on(project: Path) -> None:
    cache = project / "cache"
    number = 1
    subprocess.run(argv(project, number), check=True, stdout=subprocess.DEVNULL)
    seed = int(os.environ.get("CTRAIN_TEST_SEED") or random.SystemRandom().randrange(10**6))
    moments = random.Random(seed)
    history = [f"seed {seed}"]
    states: set[int] = set()  # how many upper layers a build had made when it was killed
    while len(history) <= KILLS:
        number += 1
        old = made(cache)
        for layers in (0, 1, 2, 3, None):  # None: at any time
            moment = moments.uniform(0, 2 if layers is None else SOON)
            before = made(cache)
            history.append(f"build {number} killed {moment:.3f} s after layer {layers}")
            dead = killed(argv(project, number), cache, len(old) + (layers or 0), moment)
            assert dead or layers is None, "\n".join(["done before it was killed", *history])
            states.add(len(made(cache) - old))
            assert before <= made(cache), "\n".join(["a layer was lost", *history])
            check(cache, history)
        done = subprocess.run(argv(project, number), capture_output=True, text=True)
        assert done.returncode == 0, "\n".join([done.stdout, done.stderr, *history])
        check(cache, history)
        assert read_manifest(cache / "images/small_1.0-s.json").tested, "\n".join(history)
        assert content(cache) == [*[str(number)] * len(LAYERS), "hello"], "\n".join(history)
    assert states == set(range(len(LAYERS) + 1)), "\n".join(["no kill hit some part of the build", *history])
    assert swept(project, number + 1) == [], "left by the killed builds"
    assert list((cache / "locks").iterdir()) == []


def killed(command: list[str], cache: Path, layers: int, moment: float) -> bool:
    """Start a build and kill it `moment` seconds after the cache has so many layers; False: it was done before."""
    build = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(made(cache)) < layers and build.poll() is None:
        time.sleep(0.01)
    time.sleep(moment)
    build.send_signal(signal.SIGKILL)
    return build.wait() == -signal.SIGKILL


def content(cache: Path) -> list[str]:
    """What is in the image of the last build: the numbers that its layers were made with, and a file of the last."""
    image = str(cache / "images/small_1.0-s.sif")
    engine = ["apptainer", "-q", "exec", "--userns", "--no-mount", "home,cwd,tmp", image]
    look = [*engine, "sh", "-c", "cat /opt/*/round; sh /opt/three/program.sh"]
    return subprocess.run(look, capture_output=True, text=True).stdout.split()


def swept(project: Path, number: int) -> list[Path]:
    """What builds leave of what others left. What a killed one started may still write there for a moment."""
    left: list[Path] = []
    for later in range(5):
        time.sleep(later)
        subprocess.run(argv(project, number + later), check=True, stdout=subprocess.DEVNULL)
        left = list((project / "cache/tmp").iterdir())
        if not left:
            break
    return left


def at_once(project: Path, number: int, *options: str) -> list[str]:
    """Two processes build two images each, which share layers. Returns the lines that they print."""
    command = argv(project, number, "--all", "--jobs", "2", *options)
    builds = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    said = [build.communicate()[0] for build in builds]
    assert [build.returncode for build in builds] == [0, 0], said
    check(project / "cache")
    return "".join(said).splitlines()


def test_builds_at_once_make_each_layer_once(project: Path) -> None:
    subprocess.run(argv(project, 10**6), check=True, stdout=subprocess.DEVNULL)
    lines = [line.split()[2:] for line in at_once(project, 10**6 + 1)]
    built = [line[1] for line in lines if line[0] == "layer" and line[2] == "built"]
    assert sorted(built) == ["one", "three", "two"], lines


def test_a_changed_line_waits_for_no_build_beside_it(project: Path) -> None:
    """The other one makes a layer anew that both images have, and holds all locks that a build holds."""
    number, cache = 10**6 + 3, project / "cache"
    subprocess.run(argv(project, number, "small", "other"), check=True, stdout=subprocess.DEVNULL)
    (project / "secret").write_text("wait for ever")
    forever = [*argv(project, number, "other"), "--rebuild", "one", "--secret", f"wait={project / 'secret'}"]
    other = subprocess.Popen(forever, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: other.poll() is not None or any(len(path.name) == 64 for path in (cache / "locks").iterdir()))
        changed = project / "definitions/three/three.def"
        changed.write_text(changed.read_text().replace("%test", "    true\n\n%test"))
        done = subprocess.run(argv(project, number), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 and "waiting" not in done.stdout + done.stderr, done
        assert re.findall(r"(?m)^layer +(\w+) +built", done.stdout) == ["three"], done.stdout
        assert other.poll() is None, "it was to hold its locks until now"
    finally:
        other.terminate()
        other.wait()


def test_eviction_spares_what_builds_use(project: Path) -> None:
    """Each of the builds cuts the cache to nothing when it is done with an image, while the others go on."""
    at_once(project, 10**6 + 2, "--cache-size", "0")
