from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_builder.make.container import Container, Failed
from ctrain_runtime.engines.apptainer import Engine


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(Engine("apptainer", "/usr/bin/apptainer", "1.4.5"), tmp_path, lambda: None, root=False)


def test_the_log_tells_the_command_and_what_it_said(container: Container, tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = "echo $WORD; exit 3"
    with pytest.raises(Failed) as caught:
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
