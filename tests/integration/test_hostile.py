"""Definitions and user layers that attack the host, built by the real engine: as root, and as an ordinary user."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from samples import hostile, registry, tiny
from samples.long_mode import LONG
from samples.registry import Registry
from samples.wheels import write_wheel

CHECKOUT = Path(__file__).parents[2]
CLUSTERS = pytest.mark.cluster  # an ordinary user, whom the cluster makes
RESEARCHER = pytest.param("researcher", marks=CLUSTERS)
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # the host's own
IMAGES = """\
images:
  hostile:
    chain: [base, upper]
    stack: s
    tag: "1.0"
    tag_argument: VERSION
"""
BASE = "{source}\n\n%arguments\n    VERSION=1.0\n\n%post\n    : {{{{ VERSION }}}}\n{post}"
SECTIONS = """
%environment
    export X=1
%help
    Help.
%runscript
    true
%startscript
    true
%test
    true
%labels
    org.x y
"""
UPPER = "Bootstrap: localimage\nFrom: {{{{ PARENT }}}}\n\n{files}%post\n{post}" + SECTIONS
# Links in the place of all that a builder writes from outside, and of all that it reads
LINKS = """\
    cd /.singularity.d
    for name in labels.json runscript startscript Singularity test ctrain-layer env/90-environment.sh \\
        bootstrap_history/Apptainer0 bootstrap_history/Apptainer1; do
        mkdir -p bootstrap_history
        ln -sf {host}/key "$name"
    done
    mkdir -p /opt/__pycache__
    ln -s {host}/key /opt/m.py
    ln -s {host}/key /opt/__pycache__/m.cpython-311.pyc
    ln -s {host}/folder /opt/folder
    ln -sf {host}/key /mnt/build-labels
    ln -sf {host}/key /mnt/build-env.sh
    python3 -c 'import os; os.mkfifo("/opt/fifo"); os.mkfifo("/.singularity.d/runscript.help")'
    touch /tmp/left
    ln -sf {host}/key /tmp/link
"""
# The same of an image that a base starts from: names in it, and their target
UPSTREAM = (
    ((".singularity.d",), "folder"),
    ((".singularity.d/env/01-base.sh", ".singularity.d/actions/exec"), "key"),
    ((".singularity.d/labels.json",), "key"),
)
# What only the walls of the container hold off
BREAK_OUT = """\
    cat > /opt/out.py <<'EOF'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
REMOUNT_BIND = 32 | 4096
for place in ("/mnt/local/0", "/mnt/source", "/etc/hosts", "/proc/sys", "/sys/devices"):
    libc.mount(None, place.encode(), None, REMOUNT_BIND, None)
    libc.umount2(place.encode(), 2)
targets = ["/mnt/local/0/written", "/mnt/source/written", "/dev/shm/ctrain-written", "/proc/sys/kernel/core_pattern"]
for path in [*targets, "{host}/written", "/sys/kernel/mm/transparent_hugepage/enabled"]:
    try:
        with open(path, "w") as file:
            file.write("madvise")
    except OSError as error:
        print("refused", path, error)
print("disks", [name for name in os.listdir("/dev") if name.startswith(("vd", "sd", "nvme", "loop"))])
EOF
    echo 127.0.0.9 written >> /etc/hosts || true
    python3 /opt/out.py
"""


def one_each(name: str, first: str, second: str) -> pytest.MarkDecorator:
    """Parameters of a test: both users with both values; by day, each with one."""
    cases = [("root", first), ("researcher", second), ("root", second), ("researcher", first)]
    marked = [pytest.param(*case, marks=CLUSTERS if case[0] == "researcher" else ()) for case in cases]
    return pytest.mark.parametrize(("place", name), marked if LONG else marked[:2], indirect=["place"])


@dataclass(frozen=True)
class Place:
    """A project, a cache and what surrounds them; `user` builds."""

    root: Path
    user: str

    @property
    def host(self) -> Path:
        return self.root / "host"

    def define(self, upper: str = "", files: str = "", base: str = "", source: str = "") -> None:
        values = {"host": self.host}
        definitions = self.root / "project" / "definitions"
        source = source or f"Bootstrap: localimage\nFrom: {self.root}/tiny.sif"
        image = BASE.format(source=source, post=base.replace("{host}", str(self.host)))
        post = upper.replace("{host}", str(values["host"])) or "    true\n"
        for name, text in {
            "images.yaml": IMAGES,
            "base/base.def": image,
            "upper/upper.def": UPPER.format(files=files, post=post),
        }.items():
            (definitions / name).parent.mkdir(parents=True, exist_ok=True)
            (definitions / name).write_text(text)

    def ctrain(self, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
        home = self.root / "home"
        command = [sys.executable, "-c", "from ctrain_builder.cli.main import main; raise SystemExit(main())", *argv]
        if self.user != "root":
            one = pwd.getpwnam(self.user)
            command = ["setpriv", "--reuid", self.user, "--regid", str(one.pw_gid), "--clear-groups", *command]
        environment = {
            **{name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")},
            "HOME": str(home),
            "PYTHONPATH": f"{CHECKOUT}/builder:{CHECKOUT}/runtime",
            "PYTHONDONTWRITEBYTECODE": "1",
            "CTRAIN_CACHE": str(home / "cache"),
            "PIP_FIND_LINKS": str(self.host / "wheels"),
            "PIP_NO_INDEX": "1",
            **variables,
        }
        return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=300)

    def build(self, **variables: str) -> subprocess.CompletedProcess[str]:
        definitions = str(self.root / "project" / "definitions")
        return self.ctrain("build", "hostile", "--definitions", definitions, **variables)

    @property
    def image(self) -> Path:
        return self.root / "home/cache/images/hostile_1.0-s.sif"

    @property
    def logs(self) -> Path:
        return self.root / "home/cache/logs"

    def around(self) -> list[str]:
        """What a build must leave as it is."""
        watched = ("/etc/hosts", "/proc/sys/kernel/core_pattern", "/sys/kernel/mm/transparent_hugepage/enabled")
        contents = [Path(path).read_text() for path in watched if Path(path).exists()]
        shared = [path.name for path in SHARED_MEMORY.iterdir() if path.name.startswith("ctrain")]
        return [hostile.digest(self.host), hostile.digest(self.root / "project"), *contents, *shared]

    def everything_made(self) -> Iterator[bytes]:
        """The content of all files of the cache, those within layers and images too."""
        for path in (self.root / "home").rglob("*"):
            if path.is_file() and not path.is_symlink():
                yield path.read_bytes()
        for path in (self.root / "home/cache/layers").glob("*.sqsh"):
            yield subprocess.run(["unsquashfs", "-cat", path, ".singularity.d/labels.json"], capture_output=True).stdout
        if self.image.exists():
            argv = ["apptainer", "--quiet", "exec", "--userns", "--contain", self.image, "/bin/sh", "-c"]
            script = "find / -xdev -type f -size -1000k -exec cat {} +"
            yield subprocess.run([*argv, script], capture_output=True).stdout


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry.serve(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(params=["root", RESEARCHER])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    user = str(request.param)
    if os.geteuid() != 0:
        pytest.skip("not root: only root can compare the builds of root and of an ordinary user")
    if user not in (one.pw_name for one in pwd.getpwall()):
        request.getfixturevalue("cluster")  # makes the user
    root = Path(tempfile.mkdtemp(dir="/var/tmp"))  # pytest's folders are root's alone
    root.chmod(0o755)
    (root / "home").mkdir()
    hostile.make_host(root / "host")
    write_wheel(root / "host/wheels", "greeting", "1.0", "WORD = 'hello'\n")
    tiny.sif(root / "tiny.sif")
    for mine in ("home", "host"):
        subprocess.run(["chown", "-R", f"{user}:", root / mine], check=True)
    yield Place(root, user)
    shutil.rmtree(root)


def from_sif(root: Path, place: Place) -> str:
    """The header that starts from a new SIF of a root file system, put together by hand: the engine never saw it."""
    image, packed = place.root / f"{root.name}.sif", root.with_suffix(".sqsh")
    subprocess.run(["mksquashfs", root, packed, "-quiet", "-no-progress", "-all-root"], check=True, capture_output=True)
    subprocess.run(["apptainer", "sif", "new", image], check=True)
    system = ["--datatype", "4", "--partfs", "1", "--parttype", "2", "--partarch", "2", "--groupid", "1"]
    subprocess.run(["apptainer", "sif", "add", *system, image, packed], check=True)
    return f"Bootstrap: localimage\nFrom: {image}"


def from_docker(root: Path, server: Registry) -> str:
    """The same of an image in a registry."""
    tar = subprocess.run(["tar", "-C", str(root), "-c", "."], check=True, capture_output=True).stdout
    server.push(registry.oci_layout_of_tar(root.with_name(f"{root.name}.oci"), tar), f"team/{root.name}:1.0")
    return f"Bootstrap: docker\nFrom: {server.host}/team/{root.name}:{{{{ VERSION }}}}"


def untouched(place: Place, before: list[str]) -> None:
    after = place.around()
    assert after == before
    assert not any(hostile.SECRET.encode() in content for content in place.everything_made())


@one_each("where", "base", "upper")
def test_a_hostile_post_leaves_the_host_untouched(place: Place, where: str) -> None:
    place.define(**{where: LINKS + BREAK_OUT})
    before = place.around()
    done = place.build()
    assert done.returncode == 0, done.stdout + done.stderr
    untouched(place, before)
    log = (place.logs / f"hostile_1.0-{where}.log").read_text()
    assert "refused /mnt/local/0/written [Errno 30] Read-only file system" in log
    assert "disks []" in log
    labels = json.loads(place.image.with_suffix(".json").read_text())["labels"]
    assert "label" not in labels


@one_each("where", "base", "upper")
@pytest.mark.parametrize(
    "post",
    [
        "    rm -rf /.singularity.d\n    ln -s {host}/folder /.singularity.d\n",
        "    rm -rf /.singularity.d/env\n    ln -s {host}/folder /.singularity.d/env\n",
        "    rm -rf /mnt/metadata\n    ln -s {host}/folder /mnt/metadata\n",
        "    rm -rf /.singularity.d/labels.json\n    mkdir /.singularity.d/labels.json\n",
        "    echo '[' > /.singularity.d/labels.json\n",
        "    ln -sf {host}/key /mnt/section\n    exit 1\n",
    ],
)
def test_what_can_not_be_built_is_refused_in_a_line(place: Place, where: str, post: str) -> None:
    place.define(**{where: post})
    before = place.around()
    done = place.build()
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 77), done.stdout + done.stderr
    untouched(place, before)


@one_each("bootstrap", "localimage", "docker")
def test_a_hostile_upstream_image_leaves_the_host_untouched(
    place: Place, tmp_path: Path, bootstrap: str, server: Registry
) -> None:
    """The engine writes the metadata of what it has unpacked, through links to files or a link to a directory."""
    for number, (names, target) in enumerate(UPSTREAM):
        root = tiny.rootfs(tmp_path / str(number), ("sh",))
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).symlink_to(place.host / target)
        place.define(source=from_docker(root, server) if bootstrap == "docker" else from_sif(root, place))
        before = place.around()
        done = place.build(APPTAINER_NOHTTPS="1")
        untouched(place, before)
        assert (done.returncode, "Traceback" in done.stderr) == (77, False), done.stdout + done.stderr
        assert "while inserting" in (place.logs / "hostile_1.0-base.log").read_text()


def test_files_never_leave_the_project(place: Place) -> None:
    place.define(files="%files\n    data /opt/data\n\n")
    (place.root / "project/data").mkdir()
    (place.root / "project/data/link").symlink_to(place.host / "key")
    before = place.around()
    done = place.build()
    assert (done.returncode, len(done.stderr.splitlines())) == (66, 1), done.stderr
    assert "%files names data, but data/link is a link out of the project" in done.stderr
    untouched(place, before)


@pytest.mark.parametrize("place", ["root", RESEARCHER] if LONG else ["root"], indirect=True)
def test_a_hostile_user_layer_leaves_the_host_untouched(place: Place) -> None:
    place.define()
    assert place.build().returncode == 0
    links = "ln -s {host}/folder /.singularity.d/ctrain-user-layers\n"
    answers = "for name in after before constraints.txt; do ln -sf {host}/key /mnt/$name; done\n"
    python = BREAK_OUT.replace("    cat >", "cat >").replace("    echo", "echo").replace("    python3", "python3")
    scripts = {"links.sh": links, "answers.sh": f"echo 1 > /opt/x\n{answers}", "out.sh": python}
    source = place.host / "source"
    source.mkdir()
    for name, text in scripts.items():
        (source / name).write_text(text.replace("{host}", str(place.host)))
    before = place.around()
    for name in scripts:
        output = place.root / "home" / f"{name}.sqsh"
        done = place.ctrain("layer", "build", str(source / name), "--on", str(place.image), "-o", str(output))
        assert "Traceback" not in done.stderr
        assert done.returncode in (0, 77), done.stdout + done.stderr
        untouched(place, before)
    log = (place.logs / "layer-out.sh.log").read_text()
    assert "disks []" in log, "it has tried everything"
    assert {path.name for path in source.iterdir()} == {*scripts}, "the build has copies, which it may write to"


@pytest.mark.parametrize("place", ["root", RESEARCHER] if LONG else [RESEARCHER], indirect=True)
def test_passwords_of_the_build_host_are_nowhere(place: Place) -> None:
    secret = "correct-horse"
    shows = "    . /mnt/build-env.sh\n    env; cat /mnt/build-env.sh; echo $https_proxy >&2\n"
    variables = {
        "https_proxy": f"http://kim:{secret}@127.0.0.1:9",
        "PIP_INDEX_URL": f"https://kim:{secret}@pypi.invalid/",
    }
    place.define(upper=shows + "    python3 -c 'import os; raise SystemExit(os.environ[\"https_proxy\"])'\n")
    failed = place.build(**variables)
    assert failed.returncode == 77, failed.stdout + failed.stderr
    assert "http://****127.0.0.1:9" in failed.stdout + failed.stderr
    place.define(upper=shows + '    echo "$https_proxy" > /opt/proxy\n')
    kept = place.build(**variables)
    assert kept.returncode == 77
    assert "/opt/proxy of the layer holds a password of the build host's proxy" in kept.stderr
    place.define(upper=shows)
    assert place.build(**variables).returncode == 0
    for done in (failed, kept):
        assert secret not in done.stdout + done.stderr
    assert not any(secret.encode() in content for content in place.everything_made())
    logs = list(place.logs.iterdir())
    assert {path.stat().st_mode & 0o777 for path in logs} == {0o600}
