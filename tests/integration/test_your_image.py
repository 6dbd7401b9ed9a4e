"""docs/your-image.md, typed word for word on a machine that has only the wheel: real engine, Debian and store."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from samples.long_mode import LONG

BLOCK = re.compile(r"(?ms)^```bash\n(.*?)^```$")
TIMEOUT_SECONDS = 1200  # so that a hang ends; no bound on how fast it is
USER_PIP_CONFIGS = (".config/pip/pip.conf", ".pip/pip.conf")


@pytest.fixture
def wheel(checkout: Path, project_files: list[PurePosixPath], tmp_path: Path) -> Path:
    source, out = tmp_path / "source", tmp_path / "wheel"
    for name in project_files:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(checkout / name, source / name)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out)]
    subprocess.run([*pip, str(source)], check=True, capture_output=True)
    shutil.rmtree(source)
    [built] = out.iterdir()
    return built


@pytest.fixture
def environment(wheel: Path, tmp_path: Path) -> dict[str, str]:
    """A newcomer's: a home with only the wheel, nothing of a checkout, this machine's package sources."""
    home = tmp_path / "home"
    for name in USER_PIP_CONFIGS:
        if (Path.home() / name).is_file():
            (home / name).parent.mkdir(parents=True)
            shutil.copy(Path.home() / name, home / name)
    home.mkdir(exist_ok=True)
    shutil.copy(wheel, home)
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("CTRAIN", "PYTHON", "VIRTUAL_ENV"))
    }
    path = os.pathsep.join(("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"))
    named = {"HOME": str(home), "PATH": path}
    return {**own, **named, "CTRAIN_CACHE": str(tmp_path / "cache")}


@pytest.mark.skipif(
    not LONG,
    reason="by day the wheel is installed in test_installing.py, images are stacked in test_parents.py: CTRAIN_LONG=1",
)
def test_the_page_holds_word_for_word(checkout: Path, environment: dict[str, str]) -> None:
    blocks = BLOCK.findall((checkout / "docs/your-image.md").read_text())
    assert len(blocks) == 6
    script = "".join(f"echo '=== {number}'\n{block}" for number, block in enumerate(blocks, 1))
    bash = ["bash", "-eu", "-o", "pipefail", "-c", script]
    done = subprocess.run(
        bash,
        cwd=environment["HOME"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done.stdout
    _, _, described, built, stacked, changed, imported = done.stdout.split("=== ")
    assert "1 image to build" in described
    assert "published lab 1.26.4-py-r1" in built
    assert "numpy 1.26.4" in built
    assert "published lab-train 1-code-r1" in stacked
    assert "mean 3.0" in stacked
    plan = [line.split() for line in changed.splitlines() if "lab-base" in line or "lab-code" in line]
    assert plan[0][:5] == ["lab-train", "1", "lab-base", "ok", "from"]
    assert plan[1][:4] == ["lab-code", "stale", "code/train.py", "changed"]
    assert "published lab-train 1-code-r2" in changed
    assert "median 2.0" in changed
    plan = [line.split() for line in imported.splitlines() if "lab-base" in line or "lab-docker  new" in line]
    assert [plan[0][2:4], plan[1][:2]] == [["lab-base", "ok"], ["lab-docker", "new"]], imported
    sif = Path(environment["HOME"], "images/channels/lab_prod.sif")
    as_user = ["--userns"] if os.geteuid() == 0 else []
    plain = ["apptainer", "--quiet", "exec", "--no-mount", "home,cwd,tmp", *as_user, str(sif)]
    left = subprocess.run([*plain, "find", "/root", "/var/lib/apt/lists", "-type", "f"], capture_output=True, text=True)
    assert not [name for name in left.stdout.split() if "cache" in name or "lists" in name], "as the page promises"
