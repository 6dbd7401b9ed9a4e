"""docs/from-sbatch.md, typed word for word; the image is only a file, since nothing is run but a dry run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from samples.programs import SYSTEM, install, write_program
from samples.sample_images import write_image

BLOCK = re.compile(r"(?ms)^```bash\n(.*?)^```$")


def test_the_page_holds_word_for_word(checkout: Path, tmp_path: Path) -> None:
    blocks = BLOCK.findall((checkout / "docs/from-sbatch.md").read_text(encoding="utf-8"))
    assert len(blocks) == 3
    images, programs = tmp_path / "images", tmp_path / "programs"
    images.mkdir()
    programs.mkdir()
    written = write_image(images, layers=())
    written.rename(images / "pytorch.sif")
    written.with_suffix(".json").rename(images / "pytorch.json")
    (tmp_path / "data").mkdir()
    install(programs, "apptainer")
    main = "import sys; from ctrain_builder.cli.main import main; sys.exit(main())"
    write_program(programs / "ctrain", f"#!/bin/sh\nexec {sys.executable} -c '{main}' \"$@\"\n")
    environment = {
        "PATH": f"{programs}:{SYSTEM}",
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    script = "".join(f"echo '=== '\n{block}" for block in blocks)
    bash = ["bash", "-eu", "-o", "pipefail", "-c", script]
    done = subprocess.run(
        bash, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout
    _, _, imported, planned = done.stdout.split("=== \n")
    assert "written: 2 nodes x 4 GPUs, 4 ranks per node, 2:00:00" in imported
    assert "1 not carried over, comments in it: line 9 (export STARTED=$(date))" in imported
    assert f"the same now: ctrain run . --comment pytorch --mount {tmp_path}/data:/data" in imported
    assert "env: {NCCL_DEBUG: INFO}" in imported
    assert "#   line 7: module load singularity" in imported
    assert "NCCL_DEBUG=INFO  (job digits: env)" in planned
