"""docs/installing.md, from nothing to a run, typed by a new user in fresh roots of Debian 12 and 11; Apptainer is this
machine's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

from ctrain_builder.build_host import settings
from samples import tiny
from samples.long_mode import LONG
from samples.wheels import build_wheel

pytestmark = pytest.mark.skipif(not LONG, reason="two fresh roots of Debian take minutes: CTRAIN_LONG=1")
BLOCK = re.compile(r"(?ms)^```bash\n(.*?)^```$")
PACKAGES = "ca-certificates,python3-venv,squashfuse,fuse-overlayfs,uidmap"
APPTAINER = (
    "/usr/bin/apptainer",
    "/usr/lib/x86_64-linux-gnu/apptainer",
    "/usr/local/lib/apptainer-libs",
    "/etc/apptainer",
)
SESSIONS = "var/lib/apptainer/mnt/session"
IN_ROOT = Path(__file__).parents[1] / "samples/in_root"


@dataclass(frozen=True)
class Machine:
    root: Path
    binds: tuple[str, ...]

    def run(self, user: str, script: str) -> str:
        argv = [str(IN_ROOT), str(self.root), user, *self.binds, "--", f"exec 2>&1; . /mnt/build-env.sh; {script}"]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module", params=["bookworm", "bullseye"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """A root that has the package sources and authorities of this machine, and an ordinary user."""
    host = settings.detect(os.environ)
    needed = {
        "root's rights": os.geteuid() == 0,
        "a Debian mirror": bool(host.mirror),
        "debootstrap": bool(shutil.which("debootstrap")),
        "Apptainer as tests/cluster/install leaves it": all(map(os.path.exists, APPTAINER)),
    }
    if missing := [what for what, found in needed.items() if not found]:
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up(f"this takes {', '.join(missing)}")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        root, mnt = Path(place, "root"), Path(place, "mnt")
        Path(place).chmod(0o755)
        argv = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", request.param, str(root), host.mirror]
        subprocess.run(argv, check=True, capture_output=True)
        subprocess.run(["chroot", str(root), "useradd", "--create-home", "kim"], check=True)
        (root / SESSIONS).mkdir(parents=True)
        mnt.mkdir()
        settings.write(host, mnt)
        for name in ("hosts", "resolv.conf"):
            shutil.copy(Path("/etc", name), root / "etc")
        binds = (*APPTAINER, f"{mnt}:/mnt", *(bind.removesuffix(":ro") for bind in host.binds))
        yield Machine(root, binds)


@pytest.fixture(scope="module")
def wheel(checkout: Path, project_files: list[PurePosixPath], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(checkout, project_files, tmp_path_factory.mktemp("wheel"))


@pytest.mark.parametrize("user", ["kim", "root"])
def test_from_nothing_to_a_run(machine: Machine, user: str, wheel: Path, checkout: Path) -> None:
    (commands,) = BLOCK.findall((checkout / "docs/installing.md").read_text(encoding="utf-8"))
    assert len(commands.splitlines()) == 5
    home = machine.root / ("root" if user == "root" else "home/kim")
    shutil.copy(wheel, home)
    tiny.sif(home / "images/mytools_v2.sif")
    (home / "hello.py").write_text("print('hello')\n")
    machine.run("root", f"chown -R {user}: /{home.relative_to(machine.root)}")

    said = machine.run(user, f"set -e; {commands}")
    assert "mytools:2-adopted-r1" in said
    assert re.search(r"(?m)^hello\ncompleted in ", said), said
    assert "ok  1 image; writable by" in machine.run(user, "~/ctrain/bin/ctrain doctor --store ~/store")

    said = machine.run(
        user,
        "~/ctrain/bin/ctrain install --prefix ~/apps/ctrain --extras build && ~/apps/ctrain/current/bin/ctrain doctor",
    )
    assert "installed  /" in said
    assert " fail " not in said
