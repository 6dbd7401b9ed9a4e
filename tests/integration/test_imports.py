"""An imported Dockerfile, built by the real engine: the image has what Docker would have made of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_runtime.cli.main import main
from samples import tiny

pytestmark = pytest.mark.integration

DOCKERFILE = """\
FROM debian:12 AS base
ARG GREETING="hello world"
ENV NAME=you WORD="$GREETING" USERNAME=me
RUN mkdir -p /opt/app && cd /opt && \\
    # not for the next command
    touch here; false; true
RUN test "$PWD" = / && test "$WORD" = 'hello world' && sh -c 'test "$USERNAME" = me'
FROM base
WORKDIR /opt
WORKDIR app
COPY src .
COPY --chmod=755 run.sh bin/
COPY <<EOF notes.txt
for $NAME

  %post is {{ no }} section
EOF
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN if false | true; then exit 1; fi; \\
    echo 'it''s \\
 joined' > joined
RUN <<'EOF'
words=(a b)
printf '%s\\n' "${words[@]}" > words

EOF
CMD ["cat", "notes.txt"]
"""


def engine(*argv: str) -> str:
    done = subprocess.run(["apptainer", "--quiet", *argv], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_image_is_what_docker_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"src/a.txt": "a\n", "src/sub/b.txt": "b\n", "run.sh": "#!/bin/sh\necho ran $1\n"}.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    Path("Dockerfile").write_text(DOCKERFILE)
    assert main(BUILD_VERBS, ["import", "Dockerfile", "--on", "./tiny.sif", "-o", "definitions/lab/lab.def"]) == 0
    tiny.sif(tmp_path / "tiny.sif")
    as_root, as_user = (["--fakeroot"], ["--userns"]) if os.geteuid() == 0 else ([], [])
    engine("build", *as_root, "--build-arg", "PARENT=tiny.sif", "lab.sif", "definitions/lab/lab.def")

    def inside(*command: str, how: Sequence[str] = ("exec",)) -> str:
        return engine(*how, "--cleanenv", "--no-mount", "home,cwd,tmp", *as_user, "lab.sif", *command)

    found = inside("find", "/opt", "/usr/local/src", "-type", "f").split()
    names = ("a.txt", "sub/b.txt", "bin/run.sh", "notes.txt", "joined", "words")
    assert sorted(found) == sorted(["/opt/here", *(f"/opt/app/{name}" for name in names)])
    assert inside("/opt/app/bin/run.sh", "it") == "ran it\n"
    assert inside("cat", "/opt/app/joined", "/opt/app/words") == "its  joined\na\nb\n"
    assert inside("sh", "-c", 'echo "$NAME, $WORD, $USERNAME"') == "you, hello world, me\n"
    assert inside(how=["run"]) == "for you\n\n  %post is {{ no }} section\n"
    assert inside("head", "-n", "1", "words", how=["run"]) == "a\n"
