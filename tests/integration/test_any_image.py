"""Images that ctrain did not build, with the real engine and a real registry."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import ctrain_runtime
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.images.image import OCI_ARCH
from samples import library, registry, tiny
from samples.cluster import until
from samples.library import Library
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
        (folder / "site.yaml").write_text(
            f"name: here\nextends: local\nruns: ctrain-runs\nimage_cache: {json.dumps(str(self.shared))}\n"
        )

    def start(
        self, image: str, *command: str, name: str = "one", options: tuple[str, ...] = (), **variables: str
    ) -> subprocess.Popen[str]:
        package = Path(ctrain_runtime.__path__[0]).parent
        settings = {"PYTHONPATH": str(package), "XDG_CACHE_HOME": str(self.folder / "cache"), "APPTAINER_NOHTTPS": "1"}
        words = ["run", "--site", "./site.yaml", "--launcher", "env", "--name", name, "--image", image, *options]
        return subprocess.Popen(
            # Tests in the background of a script have SIGINT switched off, and so would what they start.
            ["env", "--default-signal=INT", sys.executable, "-c", RUN, *words, "--", *command],
            cwd=self.folder,
            env={**os.environ, **settings, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, image: str, *command: str, name: str = "one", options: tuple[str, ...] = (), **variables: str
    ) -> tuple[int, str, str]:
        process = self.start(image, *command, name=name, options=options, **variables)
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


@pytest.fixture
def books() -> Iterator[Library]:
    with library.serve() as running:
        running.arch = OCI_ARCH[platform.machine()]
        yield running


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry.serve(tmp_path_factory.mktemp("private"), password=True) as running:
        yield running


def build(image: Path, source: Path, *options: str) -> None:
    fakeroot = ["--fakeroot"] if os.geteuid() == 0 else []
    argv = ["apptainer", "build", *fakeroot, *options, str(image), str(source)]
    subprocess.run(argv, check=True, capture_output=True)


def push(image: Path, reference: str, **variables: str) -> None:
    env = {**os.environ, **variables}
    subprocess.run(["apptainer", "push", str(image), reference], env=env, check=True, capture_output=True)


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
    root = tiny.rootfs(machine.folder / "root", tiny.SHELL)
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
    assert f"note      {reference} was pulled before; whether it has moved is unknown: {front.host} cannot be" in out
    assert [name for name in machine.left() if name.startswith("sha256-")] == [f"{digest.replace(':', '-')}.sif"]
    assert digest == f"sha256:{subprocess.run(['sha256sum', foreign], capture_output=True, text=True).stdout[:64]}"


def blobs(front: Front) -> int:
    """How often an image's file was fetched from the registry behind."""
    sizes = [request for request in front.requests if request.method == "GET" and "/blobs/" in request.path]
    return max((len([one for one in sizes if one.path == path]) for path in {one.path for one in sizes}), default=0)


def layout(folder: Path, name: str, **config: Sequence[str]) -> Path:
    """An image of one small layer, as a registry has it."""
    root = folder / "root"
    if not root.exists():
        tiny.rootfs(root, ("sh", "true"))
    tar = subprocess.run(["tar", "-C", str(root), "-c", "."], check=True, capture_output=True).stdout
    return registry.oci_layout_of_tar(folder / name, tar, **config)


def test_an_image_of_docker_and_a_tag_that_moves(machine: Machine, server: Registry) -> None:
    variables = ["CUDA_VERSION=12.6.3.004", "TORCH_CUDA_ARCH_LIST=8.0 9.0+PTX"]
    old = layout(machine.folder, "old", env=[*variables, "X=old"])
    for name in ("plain:1", "plain:other"):
        server.push(old, f"team/{name}")
    reference = f"docker://{server.host}/team/plain:1"
    command = ("/bin/sh", "-c", "echo from the $X image")
    code, out, error = machine.run(reference, *command, name="dry", options=("--dry-run",))
    assert code == 0, out + error
    assert f" would be pulled into {machine.shared}; until then nothing of it is known or checked\n" in out
    assert machine.left() == []
    code, out, error = machine.run(reference, *command)
    assert code == 0, out + error
    assert "from the old image\n" in out
    assert f"{reference} is untested: ctrain did not build it; contents cuda 12.6.3.004\n" in out
    digest = server.push(layout(machine.folder, "new", env=["X=new"]), "team/plain:1")
    code, out, error = machine.run(reference, *command, name="moved")
    assert code == 0, out + error
    assert f"note      {reference} has moved since it was pulled; --pull pulls what it means now\n" in out
    assert "from the old image\n" in out
    code, out, error = machine.run(reference, *command, name="new", options=("--pull",))
    assert code == 0, out + error
    assert "from the new image\n" in out
    code, out, error = machine.run(reference.replace(":1", ":other"), *command, name="other")
    assert code == 0, out + error
    assert "from the old image\n" in out
    assert "pulling" not in error
    images = [name for name in machine.left() if name.startswith("sha256-")]
    assert len(images) == 2
    assert f"oci-{digest.replace(':', '-')}-{platform.machine()}.sif" in machine.left()
    code, out, error = machine.run(f"docker://{server.host}/team/gone:1", "/hello", name="gone")
    assert code == 79
    assert error.startswith(f"ctrain: {server.host} has no repository team/gone. ")
    assert not any(name.startswith(".") for name in machine.left())


@pytest.mark.parametrize(("scheme", "number"), [("oras", signal.SIGINT), ("docker", signal.SIGTERM)])
def test_a_signal_ends_a_pull_and_leaves_nothing(
    machine: Machine, foreign: Path, server: Registry, scheme: str, number: signal.Signals
) -> None:
    if scheme == "oras":
        push(foreign, f"oras://{server.host}/team/slow:oras")
    else:
        server.push(layout(machine.folder, "slow"), "team/slow:docker")
    scratch = machine.folder / "scratch"
    scratch.mkdir()
    with registry.front(server) as front:
        go_on = threading.Event()

        def hold(request: registry.Request, _: registry.Answer) -> None:
            if "/blobs/" in request.path:
                go_on.wait(120)

        front.fault = hold
        reference = f"{scheme}://{front.host}/team/slow:{scheme}"
        process = machine.start(reference, "/bin/true", APPTAINER_TMPDIR=str(scratch))
        until(lambda: bool(front.asked("/blobs/")), "a pull")
        assert engines(machine)
        process.send_signal(number)
        out, error = process.communicate(timeout=60)
        assert process.returncode == 128 + number, out + error
        assert error.splitlines()[1:] == [f"ctrain: ended by {number.name}"]
        assert (engines(machine), machine.left(), list(scratch.iterdir())) == ([], [], [])
        go_on.set()
        code, out, error = machine.run(reference, "/bin/true")
        assert code == 0, out + error


def engines(machine: Machine) -> list[str]:
    """The processes that pull into the cache."""
    found = subprocess.run(["pgrep", "-f", f"apptainer.*{machine.shared}"], capture_output=True, text=True)
    return found.stdout.split()


@pytest.mark.parametrize("scheme", ["oras", "docker"])
def test_a_private_registry_by_the_login_that_the_engine_has_stored(
    machine: Machine, foreign: Path, private: Registry, scheme: str
) -> None:
    home = {"HOME": str(machine.folder), "PATH": os.environ["PATH"]}
    reference = f"{scheme}://{private.host}/team/secret:{scheme}"
    code, out, error = machine.run(reference, "/bin/true", name="refused", **home)
    assert code == 79, out + error
    hint = f"Log in with: apptainer registry login --username NAME docker://{private.host}\n"
    assert error == f"ctrain: {private.host} denies read access to team/secret. {hint}"
    login = ["apptainer", "registry", "login", "--username", registry.USER, "--password-stdin"]
    words = [*login, f"docker://{private.host}"]
    subprocess.run(words, env=home, input=registry.PASSWORD, text=True, check=True, capture_output=True)
    if scheme == "oras":
        push(foreign, reference, **home)
    else:
        private.push(layout(machine.folder, "secret"), "team/secret:docker")
    code, out, error = machine.run(reference, "/bin/true", **home)
    assert code == 0, out + error
    texts = [path.read_text() for path in machine.folder.glob("ctrain-runs/one/**/*") if path.is_file()]
    assert not [text for text in (*texts, out, error) if registry.PASSWORD in text]


def test_an_image_of_a_library_and_a_tag_that_moves(machine: Machine, foreign: Path, books: Library) -> None:
    books.images = {"team/nets/small:1": foreign, "team/nets/small:latest": foreign}
    reference, digest = books.reference("team/nets/small:1"), file_digest(foreign)
    # The engine alone, which verifies what it puts into its own cache.
    env = {**os.environ, "APPTAINER_NOHTTPS": "1", "APPTAINER_CACHEDIR": str(machine.folder / "engine")}
    plain = machine.folder / "plain.sif"
    subprocess.run(["apptainer", "pull", str(plain), reference], env=env, check=True, capture_output=True, timeout=60)
    assert file_digest(plain) == digest
    assert len(books.front.asked("/v1/parts/")) > 1
    code, out, error = machine.run(reference, "/bin/true", name="dry", options=("--dry-run",))
    assert code == 0, out + error
    assert f"{reference} ({digest[:19]}) would be pulled into {machine.shared}; " in out
    assert (books.downloads(), machine.left()) == (1, [])
    # A library in the user's shell is another one.
    code, out, error = machine.run(reference, "/bin/true", APPTAINER_LIBRARY="https://other.example")
    assert code == 0, out + error
    assert f"image     {reference}  {digest[:19]}" in out
    assert (machine.image()["digest"], books.downloads()) == (digest, 2)
    untagged = reference.rpartition(":")[0]
    code, out, error = machine.run(untagged, "/bin/true", name="latest")
    assert code == 0, out + error
    assert (machine.image("latest")["digest"], books.downloads()) == (digest, 2)
    newer = machine.folder / "newer.sif"
    build(newer, tiny.rootfs(machine.folder / "newer", ("sh", "true")))
    books.images["team/nets/small:1"] = newer
    code, out, error = machine.run(reference, "/bin/true", name="moved")
    assert code == 0, out + error
    assert f"note      {reference} has moved since it was pulled; --pull pulls what it means now\n" in out
    assert machine.image("moved")["digest"] == digest
    code, out, error = machine.run(reference, "/bin/true", name="new", options=("--pull",))
    assert code == 0, out + error
    assert (machine.image("new")["digest"], books.downloads()) == (file_digest(newer), 3)
    books.front.stand = lambda _: registry.Answer(503, {}, b"")
    code, out, error = machine.run(untagged, "/bin/true", name="offline")
    assert code == 0, out + error
    assert f"{untagged} was pulled before; whether it has moved is unknown: {books.front.host} answers 503 " in out
    assert len([name for name in machine.left() if name.startswith("sha256-")]) == 2


def test_a_library_that_sends_other_bytes_or_nothing(machine: Machine, foreign: Path, books: Library) -> None:
    other = machine.folder / "other.sif"
    build(other, tiny.rootfs(machine.folder / "root", ("sh", "true")))
    books.images = {"team/nets/small:1": foreign}
    books.broken = {"team/nets/small:1": other}
    where = books.front.host
    reference, gone = books.reference("team/nets/small:1"), books.reference("team/nets/gone:1")
    mismatch = f"digest mismatch for {reference}: announced {file_digest(foreign)}, received sha256:"
    *progress, last = refused(machine, reference)
    assert [line for line in progress if not line.endswith(" ...")] == []
    assert last.startswith(f"ctrain: {mismatch}")
    hint = "Check the spelling. Pull a private one with the engine, and use the file: --image ./FILE"
    assert refused(machine, gone) == [f"ctrain: {where} has no public image team/nets/gone:1 for {books.arch}. {hint}"]
    silence = threading.Event()

    def wait(_: registry.Request) -> None:
        silence.wait(60)

    books.front.stand = wait
    problem = f"{where} cannot be reached: no whole answer within 5 s"
    hint = "Check the host, the network and https_proxy"
    assert refused(machine, reference) == [f"ctrain: cannot pull {reference}: {problem}. {hint}"]
    silence.set()


def refused(machine: Machine, reference: str) -> list[str]:
    """The lines of a run that ends since its image cannot be had, and that leaves nothing."""
    code, out, error = machine.run(reference, "/bin/true")
    assert code == 79, out + error
    assert (machine.left(), (machine.folder / "ctrain-runs/one").exists()) == ([], False)
    return error.splitlines()
