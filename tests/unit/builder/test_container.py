from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

import pytest

from ctrain_builder.layers.container import CommandFailed, Container, last_lines
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import EngineError

PROXY = "http://kim:s3cret@proxy:3128"


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(Engine("apptainer", "/usr/bin/apptainer", "1.4.5"), tmp_path, lambda: None, root=False)


def test_the_log_tells_the_command_and_what_it_said(container: Container, tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = "echo $WORD; exit 3"
    with pytest.raises(CommandFailed) as caught:
        container.run(["/bin/sh", "-c", script], log, variables={"WORD": "said"})
    assert caught.value.code == 3
    assert log.read_text() == f"$ /bin/sh -c '{script}'\nsaid\n"


def test_of_the_engines_variables_only_those_that_say_where_things_come_from_pass(
    container: Container, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("APPTAINER_BIND", "APPTAINERENV_X", "SINGULARITY_DOCKER_USERNAME", "APPTAINER_NOHTTPS", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "1")
    passed = container.environment()
    assert {name for name in passed if name.startswith(("APPTAINER", "SINGULARITY", "HTTPS"))} == {
        *("SINGULARITY_DOCKER_USERNAME", "APPTAINER_NOHTTPS", "HTTPS_PROXY"),
        *("APPTAINER_TMPDIR", "SINGULARITY_TMPDIR", "APPTAINER_CACHEDIR", "SINGULARITY_CACHEDIR"),
    }
    assert passed["APPTAINER_TMPDIR"] == str(tmp_path)


def test_root_has_nothing_to_take_over(tmp_path: Path) -> None:
    root = Container(Engine("apptainer", "/nowhere", "1.4.5"), tmp_path, lambda: None, root=True)
    root.take_ownership(tmp_path / "image", [tmp_path], tmp_path / "log")
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("code", [0, 3])
def test_its_log_is_for_its_owner_and_shows_no_secret(container: Container, tmp_path: Path, code: int) -> None:
    log = tmp_path / "log"
    before = os.umask(0)
    try:
        guarded = dataclasses.replace(container, secrets=("kim:s3cret@", "s3cret"))
        with contextlib.suppress(CommandFailed):
            guarded.run(["/bin/sh", "-c", f"echo at $P; echo s3cret >&2; exit {code}"], log, variables={"P": PROXY})
    finally:
        os.umask(before)
    assert log.stat().st_mode & 0o777 == 0o600
    assert log.read_text().splitlines()[1:] == ["at http://****proxy:3128", "****"]


def test_an_interrupted_command_leaves_no_secret_in_its_log(container: Container, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def tick() -> None:
        if b"s3cret\n" in log.read_bytes():
            raise KeyboardInterrupt

    guarded = dataclasses.replace(container, secrets=("s3cret",), tick=tick)
    with pytest.raises(KeyboardInterrupt):
        guarded.run(["/bin/sh", "-c", "echo $WORD; sleep 60"], log, variables={"WORD": "s3cret"})
    assert log.read_text().endswith("\n****\n")


def test_an_engine_without_seccomp_is_refused(container: Container, tmp_path: Path) -> None:
    said = "FATAL: container creation failed: can't load seccomp filter: not enabled at compilation time"
    with pytest.raises(EngineError, match="has no seccomp"):
        container.run(["/bin/sh", "-c", f'echo "{said}"; exit 255'], tmp_path / "log")


def test_of_the_hosts_files_a_container_gets_few_and_read_only(container: Container, tmp_path: Path) -> None:
    argv = container.argv("exec", tmp_path / "x.sif", binds=["/a:/mnt"])
    options = argv[: argv.index(str(tmp_path / "x.sif"))]
    binds = [value for option, value in zip(options, options[1:]) if option == "--bind"]
    assert binds[-1] == "/a:/mnt"
    assert all(bind.endswith(":ro") for bind in binds[:-1])
    assert "--contain" in options
    (profile,) = (word.partition(":")[2] for word in options if word.startswith("seccomp:"))
    assert "mount" in Path(profile).read_text()


def test_the_last_lines_of_a_running_command_are_fit_for_a_terminal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"one\n\x1b[31mred\x1b[0m\x1b]0;title\x07\ttab\rover {PROXY}/x\n\x9b2J\x00\n")
    assert last_lines(log, 9) == ["one", "red]0;title\ttab", "over http://****@proxy:3128/x", "2J"]
