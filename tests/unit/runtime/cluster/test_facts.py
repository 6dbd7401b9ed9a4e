from __future__ import annotations

import os
from pathlib import Path

import pytest

from ctrain_runtime.cluster import facts
from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.engines.apptainer import Engine, find_engine
from ctrain_runtime.images.image import Image
from samples.plans import a_manifest, an_image
from samples.programs import answer, write_program


def test_detect_facts(programs: Path) -> None:
    answer(programs, "apptainer", "apptainer version 1.4.5\n")
    cluster = Cluster(mpi=("pmix",))
    here = facts.detect_facts(cluster, an_image(), find_engine())
    assert (here.is_root, here.engine.version, here.cluster) == (os.geteuid() == 0, "1.4.5", cluster)


def test_the_umask_is_read_and_not_changed(programs: Path) -> None:
    answer(programs, "apptainer", "apptainer version 1.4.5\n")
    before = os.umask(0o027)
    try:
        assert facts.detect_facts(Cluster(), an_image(), find_engine()).umask == "027"
        assert os.umask(before) == 0o027
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("said", "ignores"),
    [
        ("started\nk1\n", False),
        ("started\n", True),
        ("started\nk0\n", True),  # of two layers, the lower one alone is no image either
        ("", False),  # no container starts: that is for the run to tell
    ],
)
def test_an_engine_that_ignores_layers(programs: Path, said: str, ignores: bool) -> None:
    calls = answer(programs, "apptainer", said, version="apptainer version 1.4.5\n")
    assert facts.detect_facts(Cluster(), an_image(), find_engine()).ignores_layers is ignores
    assert str(an_image().path) in calls.read_text()


def test_another_configuration_of_the_engine_is_another_answer(programs: Path) -> None:
    """SingularityCE, and whatever is not a distribution's package, has it where it is installed. It may be run through
    a link."""
    installed = programs.parent / "soft"
    config = installed / "etc/singularity/singularity.conf"
    config.parent.mkdir(parents=True)
    config.write_text("allow setuid = yes\n")
    banner = "singularity-ce version 4.5.1\n"
    answer(installed / "bin", "singularity", "started\nk1\n", version=banner)
    (programs / "singularity").symlink_to(installed / "bin/singularity")
    assert not facts.detect_facts(Cluster(), an_image(), find_engine()).ignores_layers
    program = (installed / "bin/singularity").stat()
    answer(installed / "bin", "singularity", "started\n", version=banner)
    os.utime(installed / "bin/singularity", ns=(program.st_atime_ns, program.st_mtime_ns))
    assert not facts.detect_facts(Cluster(), an_image(), find_engine()).ignores_layers  # the cached answer
    os.utime(config, ns=(0, 0))
    assert facts.detect_facts(Cluster(), an_image(), find_engine()).ignores_layers


def test_an_engine_that_only_the_nodes_have_is_not_asked() -> None:
    assert not facts.detect_facts(Cluster(), an_image(), Engine("apptainer", "/not/there", "1.4.1")).ignores_layers


def test_the_callers_settings_do_not_decide_it(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The container is started without them in the run, so it is here."""
    script = (
        '#!/bin/bash\n[ "$1" != --version ] || { echo apptainer version 1.4.5; exit; }\necho started $APPTAINER_BIND'
    )
    write_program(programs / "apptainer", script)
    monkeypatch.setenv("APPTAINER_BIND", "k1")
    assert facts.detect_facts(Cluster(), an_image(), find_engine()).ignores_layers


@pytest.mark.parametrize("image", [an_image(flat=True), an_image(layers=a_manifest().layers[:1])])
def test_an_image_without_upper_layers_is_not_started_for_it(programs: Path, image: Image) -> None:
    calls = answer(programs, "apptainer", "started\n", version="apptainer version 1.4.5\n")
    assert not facts.detect_facts(Cluster(), image, find_engine()).ignores_layers
    assert calls.read_text() == "--version\n"
