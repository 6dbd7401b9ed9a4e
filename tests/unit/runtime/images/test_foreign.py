from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime import payload
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import ImageUnusable
from ctrain_runtime.images import foreign
from ctrain_runtime.images.image import Image
from ctrain_runtime.store.manifest import ENTRY_POINT
from samples.programs import write_program
from samples.sample_images import sif

LABELS = {"com.nvidia.pytorch.version": "2.6.0", "maintainer": "kim"}
# The runscript that Apptainer 1.4.5 writes for an image of a registry (shortened).
RUNSCRIPT = "#!/bin/sh\nOCI_ENTRYPOINT='\"/opt/nvidia/nvidia_entrypoint.sh\"'\nOCI_CMD=''\n"
PYTHON = {"python": "3.12.3", "torch": "2.6.0a0+df5bbc0", "cuda": "12.6", "arch": "7.0 8.0", "mpi": "Open MPI 4.1.7"}
LOOK = f"""\
cuda 12.6.3.004
arch 7.0 7.5 8.0 9.0+PTX
cuda-compat 560.35.05
glibc 2.39

{json.dumps(PYTHON)}
"""


class Machine:
    """An engine that answers about an image, and the image's file."""

    def __init__(self, folder: Path) -> None:
        self.image, self.calls = folder / "my.sif", folder / "calls"
        self.image.write_bytes(sif())
        self.engine = Engine("apptainer", str(folder / "apptainer"), "1.4.5")
        self.answer()

    def answer(self, look: str = LOOK, labels: Any = LABELS, script: str = "") -> None:
        inspected = {"data": {"attributes": {"labels": labels, "runscript": RUNSCRIPT}}, "type": "container"}
        folder = self.image.parent
        (folder / "look").write_text(look)
        (folder / "inspect").write_text(json.dumps(inspected))
        case = f"case $* in *inspect*) cat {folder}/inspect ;; *) {script or 'true'}; cat {folder}/look ;; esac"
        write_program(Path(self.engine.path), f'#!/bin/bash\necho "$*" >>{self.calls}\n{case}\n')

    def examine(self) -> tuple[Image, str]:
        return foreign.examine(self.locate(), self.engine, silent, as_root=False)

    def locate(self) -> Image:
        return foreign.locate(self.image, silent)


def silent(_what: str, _progress: str) -> None: ...


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Machine(tmp_path)


def test_the_facts_of_an_image_are_learned_once(machine: Machine) -> None:
    image, problem = machine.examine()
    manifest = image.manifest
    assert (problem, image.foreign, manifest.name, manifest.version) == ("", True, "my.sif", "")
    assert manifest.software == {
        "cuda": "12.6",  # of torch, not of the toolkit
        "cuda-compat": "560.35.05",
        "glibc": "2.39",
        "mpi": "Open MPI 4.1.7",
        "python": "3.12.3",
        "torch": "2.6.0a0+df5bbc0",
    }
    assert manifest.requires.arch == ("7.0", "8.0")
    assert manifest.labels == {ENTRY_POINT: "/opt/nvidia/nvidia_entrypoint.sh", **LABELS}
    assert (manifest.arch, manifest.size, manifest.digest[:7]) == ("amd64", 1306, "sha256:")
    calls = machine.calls.read_text()
    assert machine.examine() == (image, "")
    assert machine.calls.read_text() == calls
    machine.image.write_bytes(sif(data=b"rebuilt!"))
    machine.answer(look="glibc 2.36\n")
    assert machine.examine()[0].manifest.software == {"glibc": "2.36"}


def test_a_python_that_is_too_old_hides_nothing_else(tmp_path: Path) -> None:
    write_program(tmp_path / "python3", "#!/bin/sh\necho 'SyntaxError: future feature annotations' >&2\nexit 1\n")
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CUDA_VERSION": "10.1"}
    (tmp_path / "compat").mkdir()
    (tmp_path / "compat/libcuda.so.535.54.03").touch()
    look = ["/bin/sh", "-c", payload.text("facts.sh"), "ctrain", "print('{}')", "/nowhere", f"{tmp_path}/compat"]
    done = subprocess.run(look, env=environ, capture_output=True, text=True, check=True)
    assert "cuda 10.1\narch \ncuda-compat 535.54.03\n" in done.stdout and "{}" not in done.stdout


def test_it_is_looked_at_in_a_container_that_sees_nothing_of_the_host(machine: Machine) -> None:
    machine.examine()
    look = machine.calls.read_text()
    for option in ("--cleanenv", "--containall", "--net --network none", "--no-mount cwd"):
        assert option in look
    assert " --bind " not in look


@pytest.mark.parametrize(
    "look",
    [
        "",
        "{",
        "[" * 100_000,
        '{"torch": {"a": 1}, "python": ["3"], "cuda": null}',
        '{"torch": "$(touch /tmp/x)", "cuda": "12\\n13", "evil": "1"}',
        f'{{"torch": "{"9" * 5000}"}}',
        "cuda $(reboot)\npython\ntorch \x1b[31m\n",
    ],
)
def test_what_a_hostile_image_prints_is_dropped(machine: Machine, look: str) -> None:
    machine.answer(look=look, labels={"a": 1, "b": "x\x1b[31m\n" * 1000, **{str(n): "" for n in range(1000)}})
    image, problem = machine.examine()
    assert (problem, image.manifest.software) == ("", {})
    assert len(image.manifest.labels) <= 200
    assert len(image.manifest.labels["b"]) == 500
    assert image.manifest.labels["b"].isprintable()


@pytest.mark.parametrize("labels", [[], None, "x", 3])
def test_labels_that_are_none(machine: Machine, labels: Any) -> None:
    machine.answer(labels=labels)
    assert machine.examine()[0].manifest.labels == {ENTRY_POINT: "/opt/nvidia/nvidia_entrypoint.sh"}


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("yes", "the image printed too much"),
        ("sleep 300", "the image did not answer within 0.5 s"),
        ("echo 'FATAL:   no loop devices' >&2; exit 255", "no loop devices"),
        ("exit 7", "exit code 7"),
    ],
)
def test_an_image_that_cannot_be_examined_has_unknown_facts(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, script: str, problem: str
) -> None:
    monkeypatch.setattr(foreign, "_TIMEOUT_SECONDS", 0.5 if script == "sleep 300" else 60)
    machine.answer(script=script)
    located = machine.locate()
    assert foreign.examine(located, machine.engine, silent, as_root=False) == (located, problem)
    machine.answer()
    assert machine.examine()[0].manifest.software["python"] == "3.12.3", "it must not be cached"


def test_a_sandbox_has_no_digest_and_is_looked_at_each_time(machine: Machine, tmp_path: Path) -> None:
    machine.image = tmp_path / "sandbox"
    (machine.image / "bin").mkdir(parents=True)
    with pytest.raises(ImageUnusable, match=r"sandbox is not an image: neither .singularity.d nor bin/sh"):
        machine.locate()
    (machine.image / "bin/sh").symlink_to("/usr/bin/dash")
    assert machine.examine()[0].manifest.digest == ""
    machine.answer(look="glibc 2.36\n")
    assert machine.examine()[0].manifest.software == {"glibc": "2.36"}


def test_a_file_that_is_no_image(machine: Machine) -> None:
    machine.image.write_bytes(b"squashfs")
    with pytest.raises(ImageUnusable, match="is not a SIF image"):
        machine.locate()


@pytest.mark.parametrize(
    ("labels", "marker"),
    [
        ({"org.ctrain.layers": "a b", "org.ctrain.key": "k1", "org.ctrain.flat": "no"}, "k1"),
        ({"org.ctrain.layers": "a b", "org.ctrain.key": "k1", "org.ctrain.flat": "yes"}, ""),
        ({"org.ctrain.layers": "a", "org.ctrain.key": "k0", "org.ctrain.flat": "no"}, ""),
        ({}, ""),
    ],
)
def test_the_layers_of_an_image_whose_manifest_is_lost_are_still_asserted(
    machine: Machine, labels: dict[str, str], marker: str
) -> None:
    machine.answer(labels=labels)
    assert machine.examine()[0].marker == marker
