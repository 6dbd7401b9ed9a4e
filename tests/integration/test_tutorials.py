"""The tutorials that need one machine and an image, typed word for word: by the real engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Optional

import pytest
import yaml

from samples import tiny
from samples.long_mode import LONG

BLOCK = re.compile(r"(?ms)^```bash\n(.*?)^```$")


@pytest.fixture
def home(pytorch_cpu: Path, tmp_path: Path) -> Path:
    (tmp_path / "pytorch.sif").symlink_to(pytorch_cpu)
    return tmp_path


def type_all(page: str, blocks: int, home: Path, *, end: Optional[int] = None) -> list[str]:
    """What each block of a page's commands, or each before `end`, has printed, in one shell that ends at the first that
    fails."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    found = BLOCK.findall(text)
    assert len(found) == blocks
    return run_bash("echo '======='\n".join(found[:end]), home, home).split("=======\n")


def run_bash(script: str, home: Path, cwd: Path, **variables: str) -> str:
    """What a script has printed."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {"PATH": path, "HOME": str(home), "USER": "root", **variables}
    bash = ["bash", "-eu", "-o", "pipefail", "-c", script]
    done = subprocess.run(bash, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_when_a_run_dies(home: Path) -> None:
    """The hang, which takes minutes, in the long mode only: test_hangs.py has others by day."""
    _, failed, looked, resumed, killed, *hangs = type_all("when-a-run-dies.md", 6, home, end=None if LONG else 5)
    assert re.search(r"(?m)^rank [01] on \S+ failed first: ", failed) and re.search(r"\ncode \d+\n$", failed), failed
    assert "ValueError: image 4711 is broken" in looked
    assert "from step 21\n" in resumed and "completed in" in resumed, resumed
    assert "failed: signal 9 (killed); restarting from the last checkpoint (1 of 1)" in killed, killed
    assert "from step 21\n" in killed and "completed in" in killed, killed
    for hung in hangs:
        assert re.search(r"(?m)^hung: no sign of life for .*rank 1 on \S+ hung", hung), hung
        assert "\ncode 84\n" in hung and "in accident" in hung.partition("\ncode 84\n")[2], hung


def test_from_one_gpu_to_fsdp(home: Path) -> None:
    one, refused, ddp, estimated, fsdp, compared = type_all("one-gpu-to-fsdp.md", 6, home)
    assert "completed in" in one, one
    assert "each of 2 ranks would train a model of its own" in refused and refused.endswith("\ncode 64\n"), refused
    assert "world: joined 2/2" in ddp and "world: joined 2/2" in fsdp, ddp + fsdp
    assert "ctrain: does not fit: " in estimated and "code 74\n" in estimated, estimated
    losses = [float(loss) for loss in re.findall(r"(?m)^step 40  loss (\d\.\d+)$", compared)]
    assert len(losses) == 3, compared
    assert max(losses) - min(losses) < 0.0002, compared


def test_a_first_store(pytorch_cpu: Path, tmp_path: Path) -> None:
    """A copy of the image, without its manifest: one of others, as far as ctrain can see."""
    shutil.copyfile(pytorch_cpu, tmp_path / "pytorch.sif")
    _, adopted, tried, promoted, checked = type_all("first-store.md", 5, tmp_path)
    assert "confirm with --yes" in adopted and re.search(
        r"(?m)^pytorch\.sif +pytorch:1\.0-site-r1 .* adopted$", adopted
    ), adopted
    assert "\npython 3." in tried, tried
    assert "\nfrom prod\n" in promoted, promoted
    assert "1 version whole, 0 damaged, 0 not checked" in checked, checked


def test_images_in_ci(tmp_path: Path) -> None:
    tiny.sif(tmp_path / "base.sif")
    _, lacking, built, again, changed, mistaken, approved, _ = type_all("images-in-ci.md", 8, tmp_path)
    assert re.search(r"(?m)^lab 1 +lab-base +new .*\n +lab-tools +new$", lacking) and "1 image to build" in lacking
    assert "published lab 1-tools-r1" in built and re.search(r"(?m)^lab +1-tools-r1 +dev ", built), built
    assert again.endswith("nothing to build\n"), again
    assert re.search(r"lab-tools +stale", changed) and "published lab 1-tools-r2" in changed, changed
    assert re.findall(r"(?m)^code \d+$", mistaken) == ["code 78"] * 2, mistaken
    assert re.findall(r"(?m)^tools \d$", approved) == ["tools 2", "tools 2"], approved
    run_the_workflow_of_images_in_ci(tmp_path)


def run_the_workflow_of_images_in_ci(home: Path) -> None:
    """After another change. By its own commands, in their order, with what one job hands to the other."""
    lab, output = home / "lab", home / "output"
    actionlint = Path(sys.executable).with_name("actionlint")
    subprocess.run([actionlint, "-ignore", 'label "images" is unknown'], cwd=lab, check=True)
    jobs = yaml.safe_load((lab / ".github/workflows/images.yml").read_text())["jobs"]
    settings = {"CTRAIN_STORE": str(home / "images"), "CTRAIN_CACHE": str(home / "ctrain-cache")}
    run_bash("sed -i 's/tools 2/tools 3/' definitions/lab-tools/lab-tools.def", home, lab)
    for step in jobs["dev"]["steps"]:
        run_bash(step.get("run", ""), home, lab, GITHUB_OUTPUT=str(output), **settings)
    assert jobs["dev"]["outputs"] == {"version": "${{ steps.publish.outputs.version }}"}
    assert jobs["prod"]["env"] == {"DIGEST": "${{ fromJSON(needs.dev.outputs.version).manifest.digest }}"}
    version = json.loads(output.read_text().partition("version=")[2])
    [promotion] = jobs["prod"]["steps"]
    run_bash(promotion["run"], home, lab, DIGEST=version["manifest"]["digest"], **settings)
    run = "ctrain run --site local --image lab -- sh /opt/tools.sh"
    assert "\ntools 3\n" in run_bash(run, home, lab, **settings)
