"""Images that ctrain did not build, with the real engine, a real registry and the real cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrain_runtime import sif as sif_format
from samples import registry, tiny
from samples.cluster import Cluster
from samples.registry import Front, Registry

RUN = "import sys; from ctrain_runtime.cli.main import RUNTIME_VERBS, main; sys.exit(main(RUNTIME_VERBS, sys.argv[1:]))"
# An image that lies, asks the network and writes where it can, as soon as anything of it runs.
HOSTILE = """\
#!/bin/sh
/bin/cat /proc/net/dev >&2
for place in /tmp /var/tmp "$HOME" /work /dev/shm "$PWD"; do echo x >"$place/ctrain-was-here"; done 2>/dev/null
echo 'cuda $(reboot)'
echo '{"torch": "`id`", "python": "6.6.6", "__class__": "x"}'
"""


class Machine:
    """A machine with site local, an engine and a cache; `shared` is the site's cache of images."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.shared = folder, folder / "shared images"
        self.shared.mkdir()
        (folder / "site.yaml").write_text(f"name: here\nextends: local\nimage_cache: {json.dumps(str(self.shared))}\n")

    def start(self, image: str, *command: str, name: str = "one", **variables: str) -> subprocess.Popen[str]:
        package = Path(sys.modules["ctrain_runtime"].__path__[0]).parent
        settings = {"PYTHONPATH": str(package), "XDG_CACHE_HOME": str(self.folder / "cache"), "APPTAINER_NOHTTPS": "1"}
        words = ["run", "--site", "./site.yaml", "--launcher", "env", "--name", name, "--image", image, "--", *command]
        return subprocess.Popen(
            [sys.executable, "-c", RUN, *words],
            cwd=self.folder,
            env={**os.environ, **settings, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, image: str, *command: str, **options: str) -> tuple[int, str, str]:
        process = self.start(image, *command, **options)
        out, error = process.communicate(timeout=120)
        return process.returncode, out, error

    def image(self, run: str = "one") -> dict[str, str]:
        """The image in the record of a run."""
        record = json.loads((self.folder / f"ctrain-runs/{run}/record.json").read_text())
        return dict(record["image"])

    def left(self) -> list[str]:
        """What the cache of images holds besides locks."""
        return sorted(path.name for path in self.shared.iterdir() if path.suffix != ".lock")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small image of plain `apptainer build`."""
    return tiny.sif(tmp_path_factory.mktemp("foreign") / "small.sif")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry.serve(tmp_path_factory.mktemp("registry")) as running:
        yield running


def build(image: Path, source: Path, *options: str) -> None:
    fakeroot = ["--fakeroot"] if os.geteuid() == 0 else []
    argv = ["apptainer", "build", *fakeroot, *options, str(image), str(source)]
    subprocess.run(argv, check=True, capture_output=True)


def push(image: Path, reference: str) -> None:
    subprocess.run(["apptainer", "push", str(image), reference], check=True, capture_output=True)


def test_a_file_and_a_sandbox(machine: Machine, foreign: Path) -> None:
    code, out, error = machine.run(str(foreign), "python3", "-c", "import sys; print('hello from', sys.platform)")
    assert code == 0, out + error
    assert "hello from linux" in out
    assert "small.sif is untested: ctrain did not build it; contents python 3." in out
    assert machine.image()["digest"].startswith("sha256:")
    sandbox = machine.folder / "box"
    build(sandbox, foreign, "--sandbox")
    code, out, error = machine.run("./box", "/bin/sh", "-c", "echo from the box", name="two")
    assert code == 0, out + error
    assert "from the box" in out
    assert machine.image("two") == {"name": "box", "version": "", "digest": "", "path": str(sandbox)}


def test_a_hostile_image_learns_and_leaves_nothing(machine: Machine) -> None:
    root = tiny.rootfs(machine.folder / "root")
    for program in ("python3", "getconf"):
        (root / "usr/bin" / program).unlink(missing_ok=True)
        (root / "usr/bin" / program).write_text(HOSTILE)
        (root / "usr/bin" / program).chmod(0o755)
    image = machine.folder / "hostile.sif"
    build(image, root)
    code, out, error = machine.run(str(image), "/bin/true")
    assert code == 0, out + error
    assert "contents python 6.6.6\n" in out, "only what looks like a version is taken, and as nothing else"
    places = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path.home(), machine.folder)  # noqa: S108  # only looked into
    assert [place for place in places if (place / "ctrain-was-here").exists()] == []


def test_processes_at_once_pull_an_oras_image_once_and_later_none(
    machine: Machine, foreign: Path, server: Registry
) -> None:
    push(foreign, f"oras://{server.host}/team/small:1")
    with registry.front(server) as front:
        reference = f"oras://{front.host}/team/small:1"
        started = [machine.start(reference, "/bin/true", name=f"at-once-{number}") for number in range(3)]
        ended = [(process.communicate(timeout=120), process.returncode) for process in started]
        assert [code for _, code in ended] == [0, 0, 0], ended
        assert blobs(front) == 1
    code, out, error = machine.run(reference, "/bin/true", name="offline")
    assert code == 0, out + error
    digest = machine.image("offline")["digest"]
    assert f"image     {reference}  {digest[:19]}" in out
    assert f"note      {reference} was pulled before; whether it has moved is unknown: {front.host} can't be rea" in out
    assert [name for name in machine.left() if name.startswith("sha256-")] == [f"{digest.replace(':', '-')}.sif"]
    assert digest == f"sha256:{subprocess.run(['sha256sum', foreign], capture_output=True, text=True).stdout[:64]}"


def blobs(front: Front) -> int:
    """How often an image's file was fetched from the registry behind."""
    sizes = [request for request in front.requests if request.method == "GET" and "/blobs/" in request.path]
    return max((len([one for one in sizes if one.path == path]) for path in {one.path for one in sizes}), default=0)


def test_an_image_of_docker(machine: Machine, server: Registry) -> None:
    root = tiny.rootfs(machine.folder / "root")
    tar = subprocess.run(["tar", "-C", str(root), "-c", "."], check=True, capture_output=True).stdout
    variables = ["CUDA_VERSION=12.6.3.004", "TORCH_CUDA_ARCH_LIST=8.0 9.0+PTX", "X=from the image"]
    server.push(registry.oci_layout_of_tar(machine.folder / "layout", tar, env=variables), "team/plain:1")
    reference = f"docker://{server.host}/team/plain:1"
    code, out, error = machine.run(reference, "/bin/sh", "-c", "echo $X")
    assert code == 0, out + error
    assert "from the image\n" in out
    assert f"{reference} is untested: ctrain did not build it; contents cuda 12.6.3.004, " in out
    code, out, error = machine.run(f"docker://{server.host}/team/gone:1", "/hello", name="two")
    assert code == 79
    assert error.startswith(f"ctrain: {server.host} has no repository team/gone. ")
    assert not any(name.startswith(".") for name in machine.left())


def test_a_killed_pull_leaves_no_image(machine: Machine, foreign: Path, server: Registry) -> None:
    push(foreign, f"oras://{server.host}/team/slow:1")
    with registry.front(server) as front:

        def slowly(request: registry.Request, answer: registry.Answer) -> None:
            if "/blobs/" in request.path:
                answer.chunk, answer.pause = 1 << 20, 0.5

        front.fault = slowly
        process = machine.start(f"oras://{front.host}/team/slow:1", "/bin/true")
        deadline = time.monotonic() + 60
        while not front.asked("/blobs/"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
        assert process.returncode == 130, out + error
        assert machine.left() == []
        front.fault = lambda _, __: None
        code, out, error = machine.run(f"oras://{front.host}/team/slow:1", "/bin/true")
        assert code == 0, out + error


DDP = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
print("SUM", dist.get_rank(), dist.get_world_size(), total.item(), flush=True)
"""


@pytest.fixture
def with_torch(cluster: Cluster) -> Iterator[Path]:
    """An image with torch in one file system and nothing of ctrain's beside it: the base of the published image."""
    published = next(cluster.store.glob("pytorch-cpu_*.sif"))
    path, base = cluster.home / "mine/foreign.sif", cluster.home / "mine/base.sqsh"
    path.parent.mkdir(exist_ok=True)
    partition = sif_format.partitions(published)[0].number
    with base.open("wb") as out:
        subprocess.run(["apptainer", "sif", "dump", str(partition), str(published)], stdout=out, check=True)
    subprocess.run(["apptainer", "sif", "new", str(path)], check=True, capture_output=True)
    kind = ["--datatype", "4", "--partfs", "1", "--parttype", "2", "--partarch", "2", "--groupid", "1"]
    subprocess.run(["apptainer", "sif", "add", *kind, str(path), str(base)], check=True, capture_output=True)
    base.unlink()
    path.chmod(0o644)
    subprocess.run(["chown", "-R", "researcher:", str(path.parent)], check=True)
    yield path
    subprocess.run(["rm", "-rf", str(path.parent)], check=True)


def test_torch_of_a_foreign_image_on_two_nodes_by_path_and_by_reference(
    cluster: Cluster, with_torch: Path, server: Registry
) -> None:
    cluster.write("ddp.py", DDP)
    job = ["--nodes", "2", "--launcher", "env", "--time", "5"]
    done = cluster.run("ctrain", "run", *job, "--image", str(with_torch), "--name", "path", "--", "python3", "ddp.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "foreign.sif is untested: ctrain did not build it; contents " in done.stdout
    assert sums(cluster, "path") == {(str(rank), "4", "10.0") for rank in range(4)}
    reference = f"oras://{server.host}/team/torch:1"
    push(with_torch, reference)
    cache = {"XDG_CACHE_HOME": str(with_torch.parent / "cache")}
    words = ["ctrain", "run", *job, "--image", reference, "--name"]
    once = [cluster.start(*words, f"both-{number}", "--dry-run", "--", "true", **cache) for number in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in once]
    assert [process.returncode for process in once] == [0, 0], outputs
    assert sum(f"pulling {reference} ..." in output for output in outputs) == 1
    done = cluster.run(*words, "reference", "--", "python3", "ddp.py", **cache)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sums(cluster, "reference") == sums(cluster, "path")
    images = [cluster.record(name)["image"] for name in ("path", "reference")]
    assert images[0]["digest"] == images[1]["digest"]
    assert images[1]["name"] == reference


def sums(cluster: Cluster, run: str) -> set[tuple[str, ...]]:
    texts = [path.read_text() for path in (cluster.runs(run) / "logs").glob("rank*.log")]
    return {tuple(line.split()[1:]) for text in texts for line in text.splitlines() if line.startswith("SUM")}
