"""The environment of a run in a real container, of an image that does to bash what NGC's images do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from samples import tiny
from samples.runs import CTRAIN


def output(folder: Path, name: str, *options: str) -> str:
    """The output of a run of bash with this name."""
    where = ["--site", "local", "--image", "image.sif", "--runs", "runs", "--launcher", "env", "--name", name]
    program = ["bash", "-c", "echo this is $0", "bash"]
    argv = [sys.executable, "-c", CTRAIN, "run", *where, *options, "--", *program]
    path = ":".join(word for word in sys.path if word)
    environment = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return (folder / f"runs/{name}/logs/rank0.log").read_text()


def test_what_the_image_would_do_at_each_start_of_bash_is_done_only_if_it_is_asked_for(tmp_path: Path) -> None:
    root = tiny.rootfs(tmp_path / "rootfs", tiny.SHELL)
    (root / "probe.sh").write_text("echo probed\n")
    (root / ".singularity.d/env").mkdir(parents=True)
    (root / ".singularity.d/env/10-docker2singularity.sh").write_text("export BASH_ENV=/probe.sh ENV=/probe.sh\n")
    fakeroot = ["--fakeroot"] if os.geteuid() == 0 else []
    subprocess.run(["apptainer", "--quiet", "build", *fakeroot, "image.sif", "rootfs"], cwd=tmp_path, check=True)
    plain = ["apptainer", "--quiet", "exec", "--userns", "image.sif", "bash", "-c", "true"]
    assert subprocess.run(plain, cwd=tmp_path, capture_output=True, text=True, check=True).stdout == "probed\n"
    assert output(tmp_path, "one") == "this is bash\n"
    assert output(tmp_path, "two", "--env", "BASH_ENV=/probe.sh") == "probed\nthis is bash\n"
