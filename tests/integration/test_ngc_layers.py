"""A base with layers such as NVIDIA's images have, from a real registry by the real engine: built as root and as an
ordinary user."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ctrain_builder.cache import estimate
from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.definitions import image_spec
from ctrain_builder.plan import build_plan
from samples import ngc_layers, registry

CHECKOUT = Path(__file__).parents[2]
BALLAST = 20_000_000  # bytes: what is measured must be more than the engine's own files
IMAGES = """\
images:
  bare: {chain: [base], stack: s, tag: '1.0', tag_argument: VERSION}
  layered: {chain: [base, upper], stack: s, tag: '1.0', tag_argument: VERSION}
"""
BASE = """\
Bootstrap: docker
From: {{ HOST }}/nvidia/layers:{{ VERSION }}

%arguments
    HOST=none
    VERSION=1.0

%post
    cat /srv/locked/inside
"""
UPPER = """\
Bootstrap: localimage
From: {{ PARENT }}

%post
    rm /srv/third

%labels
    org.opencontainers.image.licenses Apache-2.0
"""
# Mode, owners, number of links: of root's build and of a user's
HELD = """\
600 1 /srv/changed
644 2 /srv/first
500 2 /srv/locked
644 1 /srv/locked/inside
644 1 /srv/locked/later
755 2 /srv/opaque
644 1 /srv/opaque/above
644 2 /srv/second
4755 1 /srv/setuid
640 1 /srv/theirs
"""


@dataclass(frozen=True)
class Built:
    """What a build by `user` has left in `cache`; `peak` is how many bytes it had at most, `needed` the estimate."""

    user: str
    cache: Path
    done: subprocess.CompletedProcess[str]
    peak: int
    needed: int

    @property
    def image(self) -> Path:
        return self.cache / "images/layered_1.0-s.sif"


def as_user(user: str) -> list[str]:
    group = str(pwd.getpwnam(user).pw_gid)
    return [] if user == "root" else ["setpriv", "--reuid", user, "--regid", group, "--clear-groups"]


def size_of(directory: Path) -> int:
    """Bytes on the disk. Names come and go meanwhile."""
    said = subprocess.run(["du", "--summarize", "--block-size=1", directory], capture_output=True, text=True).stdout
    return int(said.split()[0]) if said else 0


@pytest.fixture(scope="module", params=["root", pytest.param("researcher", marks=pytest.mark.cluster)])
def built(request: pytest.FixtureRequest) -> Iterator[Built]:
    user = str(request.param)
    if os.geteuid() != 0:
        pytest.skip("not root: only root can compare the builds of root and of an ordinary user")
    if user not in (one.pw_name for one in pwd.getpwall()):
        request.getfixturevalue("cluster")  # makes the user
    root = Path(tempfile.mkdtemp(dir="/var/tmp"))  # pytest's folders are root's alone
    try:
        root.chmod(0o755)
        yield build(root, user)
    finally:
        shutil.rmtree(root)


def build(root: Path, user: str) -> Built:
    definitions, cache = root / "project/definitions", root / "home/cache"
    for name, text in {"images.yaml": IMAGES, "base/base.def": BASE, "upper/upper.def": UPPER}.items():
        (definitions / name).parent.mkdir(parents=True, exist_ok=True)
        (definitions / name).write_text(text)
    cache.mkdir(parents=True)
    subprocess.run(["chown", "-R", f"{user}:", root / "home"], check=True)
    tars = ngc_layers.tars(root / "rootfs", BALLAST)
    layout = registry.oci_layout_of_tars(
        root / "oci", tars, labels={"org.opencontainers.image.licenses": "LicenseRef-NVIDIA"}
    )
    with registry.serve(root / "registry") as served:
        digest = served.push(layout, "nvidia/layers:1.0")
        host = {"HOST": served.host}
        spec = image_spec.find_spec(definitions, "bare")
        plan = build_plan.plan_image(spec, host, {}, "amd64", lambda *_: False, lambda _: digest)
        needed = sum(estimate.space(open_cache(root / "empty"), plan, False, estimate.download(plan)))
        main = "from ctrain_builder.cli.main import main; raise SystemExit(main())"
        argv = ["build", "layered", "--definitions", str(definitions), "--build-arg", f"HOST={served.host}"]
        environment = {
            **{name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")},
            "HOME": str(root / "home"),
            "PYTHONPATH": f"{CHECKOUT}/builder:{CHECKOUT}/runtime",
            "PYTHONDONTWRITEBYTECODE": "1",
            "CTRAIN_CACHE": str(cache),
        }
        sizes, over = [0], threading.Event()

        def watch() -> None:
            while not over.wait(0.05):
                sizes.append(size_of(cache))

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            command = [*as_user(user), sys.executable, "-c", main, *argv]
            done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=300)
        finally:
            over.set()
            watching.join()
    return Built(user, cache, done, max(sizes), needed)


def test_the_layers_give_what_they_say(built: Built) -> None:
    """Deleted names are gone, files stay linked across layers, and what nobody might enter can be read by its owner."""
    assert built.done.returncode == 0, built.done.stdout + built.done.stderr
    engine = ["apptainer", "--quiet", "exec", "--fakeroot", "--contain", "--no-mount", "home,cwd,tmp", "--pwd", "/"]
    script = "find /srv -mindepth 1 -exec stat -c '%a %h %u:%g %n' {} + ; cat /srv/first /srv/changed /srv/locked/later"
    said = subprocess.run([*engine, str(built.image), "/bin/sh", "-c", script], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    *listed, first, changed, later = said.stdout.splitlines()
    assert (first, changed, later) == ("linked", "new", "through the closed door")
    assert {line.split()[2] for line in listed} == {"0:0"}, "no owner is mapped in an engine's user namespace"
    rows = sorted((line.split() for line in listed), key=lambda row: row[3])
    assert "".join(f"{mode} {links} {name}\n" for mode, links, _, name in rows) == HELD


def test_nothing_stays_and_the_cache_is_its_users(built: Built) -> None:
    assert list((built.cache / "tmp").iterdir()) == []
    copied = built.cache.with_name("copy")
    subprocess.run([*as_user(built.user), "cp", "-r", built.cache, copied], check=True)
    subprocess.run([*as_user(built.user), "rm", "-r", copied], check=True, stdin=subprocess.DEVNULL)
    foreign = [path for path in built.cache.rglob("*") if path.owner() != built.user]
    assert foreign == []


def test_a_build_needs_no_more_space_than_it_reserves(built: Built) -> None:
    """The engine unpacks where the sandbox is made, so it moves the files there instead of copying them."""
    assert BALLAST < built.peak <= built.needed


def test_the_licence_of_the_base_stays_visible(built: Built) -> None:
    labels = json.loads(built.image.with_suffix(".json").read_text())["labels"]
    assert labels["org.opencontainers.image.licenses"] == "LicenseRef-NVIDIA AND Apache-2.0"
    assert labels["org.ctrain.licenses"] == "base: LicenseRef-NVIDIA; upper: Apache-2.0"
    said = subprocess.run(["apptainer", "inspect", "--labels", built.image], capture_output=True, text=True).stdout
    assert "org.opencontainers.image.licenses: LicenseRef-NVIDIA AND Apache-2.0" in said.splitlines()
