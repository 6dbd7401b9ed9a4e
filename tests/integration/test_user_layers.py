"""User layers over the real image, made and run by the researcher; and an engine whose overlay is switched off."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrain_runtime.images.image import LAYER_MARKER
from ctrain_runtime.store.manifest import Layer, read_manifest
from ctrain_runtime.store.store import STORE_MARKER as MARKER_OF_STORE
from samples.cluster import Cluster, Done
from samples.layers import write_layer
from samples.sample_images import write_image, write_manifest, write_store
from samples.wheels import write_wheel

TORCH = "/usr/local/lib/python3.11/dist-packages/torch"
SHOW = "import os, greeting, torch; print(greeting.WORD, torch.__version__, os.environ['RANK'])"


@pytest.fixture
def mine(cluster: Cluster) -> Path:
    """A folder of the researcher's, with wheels that the machine's pip configuration names."""
    folder = cluster.home / "mine"
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    write_wheel(folder / "wheels", "greeting", "1.0", "WORD = 'hello'\n")
    write_wheel(folder / "wheels", "outdated", "2.5", "", requires="torch==2.9")
    cluster.write("mine/requirements.txt", "greeting\nnumpy # the image has it\n")
    return folder


def build(cluster: Cluster, mine: Path, name: str, text: str = "", *options: str, umask: str = "022") -> Done:
    """`ctrain layer build NAME --on pytorch-cpu -o my.sqsh`, NAME holding `text`."""
    if text:
        cluster.write(f"mine/{name}", text)
    variables = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(mine / "wheels"), "CTRAIN_CACHE": str(mine / "cache")}
    argv = ["ctrain", "layer", "build", name, "--on", "pytorch-cpu", "-o", "my.sqsh", *options]
    return cluster.run("sh", "-c", f'umask {umask}; exec "$@"', "sh", *argv, cwd=mine, **variables)


def refused(done: Done, code: int, *parts: str) -> None:
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), done.stdout + done.stderr
    for part in parts:
        assert part in done.stderr


def test_a_layer_of_ones_own_runs_on_two_nodes(cluster: Cluster, mine: Path) -> None:
    made = build(cluster, mine, "requirements.txt", "", "--json", umask="077")
    assert made.returncode == 0, made.stderr
    layer = json.loads(made.stdout)
    assert layer["packages"] == {"greeting": "1.0"}
    assert layer["size"] < 100_000, "the image is not copied"
    assert not list((mine / "cache" / "tmp").iterdir())
    argv = ["--nodes", "2", "--ranks-per-node", "1", "--image", "pytorch-cpu", "--layer", "my.sqsh"]
    argv += ["--name", "layered"]
    done = cluster.run("ctrain", "run", *argv, "--", "python", "-c", SHOW, cwd=mine)
    assert done.returncode == 0, done.stdout + done.stderr
    logs = cluster.home / "ctrain-runs" / "layered" / "logs"
    for rank in range(2):
        assert re.fullmatch(rf"hello 2\.13\.0\S* {rank}\n", (logs / f"rank{rank}.log").read_text())
    digest = f"sha256:{hashlib.sha256((mine / 'my.sqsh').read_bytes()).hexdigest()}"
    assert cluster.record("layered")["layers"] == [{"path": str(mine / "my.sqsh"), "digest": digest}]
    shown = cluster.run("ctrain", "layer", "show", "my.sqsh", cwd=mine).stdout
    assert "on      pytorch-cpu 2.13.0-hd-r" in shown and "greeting  1.0" in shown

    other = str(other_store(cluster, mine / "store"))
    changed = cluster.run("ctrain", "run", "--store", other, *argv, "--name", "other", "--", "true", cwd=mine)
    image = r"pytorch-cpu 2\S+ \(sha256:"
    assert re.search(rf"my.sqsh was built on {image}\w{{12}}\), but the image is {image}0000", changed.stderr)
    refused(changed, 64, "Rebuild it with: ctrain layer build requirements.txt --on pytorch-cpu:2.13.0-hd-r")


def test_a_build_sees_what_is_named_and_nothing_else_of_the_user(cluster: Cluster, mine: Path) -> None:
    """The requirements lie beside keys, as in a home."""
    for name in (".ssh/id_ed25519", "tool/conf"):
        cluster.write(f"mine/{name}", f"{name}\n")
    wheel = next((mine / "wheels").glob("greeting*")).name
    cluster.write("mine/more.txt", f"./wheels/{wheel}\n")
    look = "ls -A1 /mnt/source >/opt/seen; test ! -e .ssh; "
    for name, text, options in (
        ("s.sh", look, []),
        ("s.sh", f"{look} cat tool/conf >>/opt/seen; rm -r tool\n", ["--with", "tool"]),
        ("r.txt", "-r more.txt\n", []),
    ):
        done = build(cluster, mine, name, text, *options)
        assert done.returncode == 0, done.stdout + done.stderr
        if name == "s.sh":
            argv = ["unsquashfs", "-cat", "my.sqsh", "opt/seen"]
            seen = subprocess.run(argv, cwd=mine, capture_output=True, text=True)
            assert seen.stdout.split() == ["s.sh", *(["tool", "tool/conf"] if options else [])]
    assert (mine / "tool/conf").exists(), "the build has copies"
    home = build(cluster, mine, "r.txt", "greeting\n", "--with", str(cluster.home))
    refused(home, 64, f"would show the whole home {cluster.home} to every program of the build")


LISTS = {
    "environment.yml": "dependencies:\n  - python=3.11\n  - pytorch=2.1\n  - numpy\n  - pip:\n    - greeting==1.0\n",
    "uv.lock": """\
version = 1
requires-python = ">=3.11"
[[package]]
name = "mine"
version = "0.1"
source = { virtual = "." }
dependencies = [{ name = "greeting" }, { name = "torch" }]
[[package]]
name = "greeting"
version = "1.0"
source = { registry = "https://registry.example/simple" }
[[package]]
name = "torch"
version = "2.1"
source = { registry = "https://registry.example/simple" }
""",
}


@pytest.mark.parametrize("name", LISTS)
def test_an_imported_list_becomes_a_layer(cluster: Cluster, mine: Path, name: str) -> None:
    """torch and numpy, which both name, are the image's own."""
    cluster.write(f"mine/{name}", LISTS[name])
    imported = cluster.run("ctrain", "import", name, "--on", "pytorch-cpu", cwd=mine)
    assert imported.returncode == 0, imported.stdout + imported.stderr
    [line] = [line for line in imported.stdout.splitlines() if line.startswith("build the layer: ")]
    _, _, _, requirements, *_ = line.partition(": ")[2].split()
    built = build(cluster, mine, requirements, "", "--json")
    assert built.returncode == 0, built.stdout + built.stderr
    assert json.loads(built.stdout)["packages"] == {"greeting": "1.0"}


def other_store(cluster: Cluster, folder: Path) -> Path:
    """A store with the same files, whose manifests give another digest."""
    folder.mkdir()
    shutil.copy(cluster.store / MARKER_OF_STORE, folder)
    for path in cluster.store.glob("*_*.json"):
        manifest = read_manifest(path)
        digest = f"sha256:0000{manifest.digest[len('sha256:0000') :]}"
        write_manifest(folder / path.name, dataclasses.replace(manifest, digest=digest))
        # A copy: files of the researcher's home become his, and with a link so would that of the store.
        shutil.copyfile(path.with_suffix(".sif"), (folder / path.name).with_suffix(".sif"))
    return folder


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("r.txt", "outdated\n", "outdated 2.5, for r.txt, requires torch==2.9, the image has torch 2.13.0"),
        ("r.txt", "numpy\n", "r.txt adds nothing: the image already has all of it"),
        ("s.sh", "python -m pip install outdated\n", "outdated 2.5, for s.sh, requires torch==2.9"),
        (
            "s.sh",
            f"touch /usr/local/bin/mpirun; echo >> {TORCH}/version.py\n",
            f"s.sh replaces or hides files of the image: /usr/local/bin/mpirun, {TORCH}/version.py. Leave torch",
        ),
        ("s.sh", "exit 3\n", "s.sh failed with exit code 3"),
    ],
)
def test_what_is_the_images_stays(cluster: Cluster, mine: Path, name: str, text: str, complaint: str) -> None:
    refused(build(cluster, mine, name, text), 77, complaint)
    assert not (mine / "my.sqsh").exists()


def test_a_script_as_a_user_without_subordinate_ids(cluster: Cluster, mine: Path) -> None:
    """As on sites that give none: the container's root is then the user alone."""
    lines = {path: Path(path).read_text() for path in ("/etc/subuid", "/etc/subgid")}
    try:
        for path, text in lines.items():
            Path(path).write_text("".join(line for line in text.splitlines(True) if not line.startswith("researcher:")))
        done = build(cluster, mine, "s.sh", "echo hi > /opt/tool; rm /etc/debian_version; pip install greeting\n")
    finally:
        for path, text in lines.items():
            Path(path).write_text(text)
    assert done.returncode == 0, done.stdout + done.stderr
    see = "import os, greeting; print(open('/opt/tool').read(), os.path.exists('/etc/debian_version'))"
    argv = ["--site", "local", "--image", "pytorch-cpu", "--layer", "my.sqsh", "--", "python", "-c", see]
    ran = cluster.run("ctrain", "run", *argv, cwd=mine)
    assert "hi\n False" in ran.stdout, ran.stdout + ran.stderr


class Tiny:
    """A store with an image of busybox, and the configuration of an engine whose overlay is switched off."""

    def __init__(self, cluster: Cluster, work: Path) -> None:
        self.cluster, self.work = cluster, work
        self.store = write_store(work / "store")
        self.layers = (Layer("base", "k0", 1), Layer("upper", "k1", 1))
        self.base, self.upper = work / "base", work / "upper"
        for folder in ("bin", "dev", "proc", "sys", "tmp", "var/tmp", "etc", "home", "usr"):
            (self.base / folder).mkdir(parents=True)
        shutil.copy("/bin/busybox", self.base / "bin")
        for name in ("sh", "cat", "echo"):
            (self.base / "bin" / name).symlink_to("busybox")
        (self.upper / LAYER_MARKER).parent.mkdir(parents=True)
        (self.upper / LAYER_MARKER).write_text("k1\n")
        off = Path("/etc/apptainer/apptainer.conf").read_text().replace("enable overlay = yes", "enable overlay = no")
        cluster.write("tiny/off.conf", off)
        self._engine("off", "export")
        self._engine("off-on-nodes", '[ -z "${SLURM_JOB_ID:-}" ] || export')
        cluster.write("tiny/job.yaml", f"image: tiny\nlauncher: env\ncommand: [cat, /{LAYER_MARKER}]\n")

    def _engine(self, name: str, export: str) -> None:
        """An engine with that configuration: a setting in the caller's environment would not reach the run."""
        script = (
            f'#!/bin/bash\n{export} APPTAINER_CONFIG_FILE={self.cluster.home}/tiny/off.conf\nexec apptainer-here "$@"\n'
        )
        real = shutil.which("apptainer")
        program = self.cluster.write(f"tiny/{name}/apptainer", script.replace("apptainer-here", str(real)))
        program.chmod(0o755)

    def publish(self, *partitions: Path, flat: bool) -> None:
        sif = self.work / "image.sif"
        commands = [["sif", "new", str(sif)]]
        for folder, kind in zip(partitions, ("2", "4")):  # the system, an overlay
            subprocess.run(["mksquashfs", str(folder), f"{folder}.sqsh", "-quiet", "-no-progress"], check=True)
            add = ["sif", "add", "--datatype", "4", "--partfs", "1", "--parttype", kind, "--partarch", "2"]
            commands.append([*add, "--groupid", "1", str(sif), f"{folder}.sqsh"])
        for command in commands:
            subprocess.run(["apptainer", *command], check=True, capture_output=True)
        write_image(self.store, content=sif.read_bytes(), name="tiny", software={}, layers=self.layers, flat=flat)

    def run(self, *options: str, engine: str = "") -> Done:
        """Run the job; `engine` names the one whose overlay is switched off, if any."""
        path = f"{self.cluster.state}/apps/venv/bin:/usr/local/bin:/usr/bin:/bin"
        variables = {"PATH": f"{self.cluster.home}/tiny/{engine}:{path}"} if engine else {}
        argv = ["ctrain", "run", "./tiny", "--store", str(self.store), "--nodes", "2", *options]
        return self.cluster.run(*argv, **variables)


@pytest.fixture
def tiny(cluster: Cluster) -> Iterator[Tiny]:
    work = Path(tempfile.mkdtemp(dir=cluster.state))  # pytest's folders are root's alone
    work.chmod(0o755)
    yield Tiny(cluster, work)
    shutil.rmtree(work)


def test_an_engine_without_overlay_gets_the_flattened_image(tiny: Tiny) -> None:
    """The real engine, `enable overlay = no`: it runs the image with exit code 0 and without its layers."""
    tiny.publish(tiny.base, tiny.upper, flat=False)
    assert tiny.run().returncode == 0
    refused(tiny.run(engine="off"), 73, "no flat version of image tiny 24.12-hd-r3", "ctrain build IMAGE --flatten")
    shutil.copytree(tiny.upper, tiny.base, dirs_exist_ok=True)
    (tiny.work / "image.sif").unlink()
    Path(f"{tiny.base}.sqsh").unlink()
    tiny.publish(tiny.base, flat=True)
    done = tiny.run("--name", "flat", engine="off")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tiny 24.12-hd-r3-flat" in done.stdout
    assert "flattened, in place of 24.12-hd-r3: this engine ignores overlay partitions" in done.stdout
    assert tiny.cluster.record("flat")["image"]["version"] == "24.12-hd-r3-flat"
    assert "24.12-hd-r3 " in tiny.run().stdout


def test_every_rank_stops_where_only_the_nodes_ignore_layers(tiny: Tiny) -> None:
    tiny.publish(tiny.base, tiny.upper, flat=False)
    done = tiny.run(engine="off-on-nodes")
    assert done.returncode == 73, done.stdout + done.stderr
    assert "this engine ignores the layers of the image" in done.stdout


def test_an_engine_without_overlay_mounts_no_user_layer(tiny: Tiny) -> None:
    tiny.publish(tiny.base, tiny.upper, flat=False)
    manifest = read_manifest(next(tiny.store.glob("tiny_*.json")))
    layer = write_layer(tiny.work / "my.sqsh", manifest)
    refused(tiny.run("--layer", str(layer), engine="off"), 73, "apptainer does not mount user layers here")
