from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.errors import SchedulerError
from ctrain_runtime.schedulers.local.scheduler import Local
from ctrain_runtime.store.manifest import Base, Layer, Requires
from ctrain_runtime.store.manifest import TestResult as Result
from ctrain_runtime.store.sif import SBOM
from samples import programs as fakes
from samples.sample_images import sbom, sif, write_image, write_store

Out = pytest.CaptureFixture[str]
NEW_LAYERS = (Layer("pytorch-ngc", "k0", 9_400_000_000, "sha256:d0"), Layer("train", "k3", 2_000, "sha256:d3"))
OLD_LAYERS = (Layer("pytorch-ngc", "k0", 9_400_000_000, "sha256:d0"), Layer("horovod", "k1", 7_000, "sha256:d1"))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """prod is release 1, dev release 2."""
    root = write_store(tmp_path / "store")
    old = sif(more=[(SBOM, sbom(torch="2.6.0", horovod="0.28.1", numpy="2.4.6"))])
    new = sif(more=[(SBOM, sbom(torch="2.6.0", numpy="2.5.0", einops="0.8.2"))])
    write_image(root, release=1, content=old, layers=OLD_LAYERS, digest="sha256:01")
    write_image(
        root,
        release=2,
        content=new,
        layers=NEW_LAYERS,
        digest="sha256:02",
        base=Base("nvcr.io/nvidia/pytorch:24.12-py3", "sha256:71ab0000000000000000"),
        requires=Requires("560", ("470.57", "535"), ("V100", "A100"), ("7.0", "8.0")),
        revision="0123abc",
        tests=(Result("imports", True, "1.2"), Result("GPU", False, "0.0", "the building machine has no GPU")),
    )
    for number, channel in enumerate(("prod", "dev"), 1):
        (root / f"channels/pytorch_{channel}.sif").symlink_to(f"../pytorch_24.12-hd-py3-r{number}.sif")
    monkeypatch.setenv("CTRAIN_STORE", str(root))
    monkeypatch.setenv("CTRAIN_SITE", "local")
    return root


def images(*argv: str) -> int:
    return main(RUNTIME_VERBS, ["images", *argv])


def test_a_name_alone_is_shown(store: Path, capsys: Out) -> None:
    assert images("pytorch:dev") == 0
    first = capsys.readouterr().out
    assert images("pytorch", "dev") == 0
    assert first == capsys.readouterr().out
    assert f"file       {store}/pytorch_24.12-hd-py3-r2.sif" in first


def test_show_tells_all_that_is_known(store: Path, capsys: Out) -> None:
    assert images("show", "pytorch:dev") == 0
    assert (
        capsys.readouterr().out
        == f"""\
image      pytorch 24.12-hd-r2 (dev)  sha256:02
file       {store}/pytorch_24.12-hd-py3-r2.sif (2.2 kB)
base       nvcr.io/nvidia/pytorch:24.12-py3  sha256:71ab00000000
built      2026-11-18 01:02 UTC, definitions at 0123abc
with       apptainer 1.4.5
published  2026-11-19 01:02 UTC
signed     no
fits       amd64, CUDA 12.6, GPUs V100 A100 (compiled for 7.0 8.0)
driver     560 or newer; on data-centre GPUs also 470.57, 535
software   torch 2.6.0, cuda 12.6
packages   3 pypi
tests      1 passed, 1 skipped

layer        size    key  digest
pytorch-ngc  9.4 GB  k0   sha256:d0
train        2.0 kB  k3   sha256:d3

test     result
imports  passed in 1.2 s
GPU      skipped: the building machine has no GPU
"""
    )


def test_show_tells_the_licence_of_the_base_beside_those_of_the_layers(store: Path, capsys: Out) -> None:
    labels = {
        "org.opencontainers.image.licenses": "LicenseRef-NVIDIA AND Apache-2.0",
        "org.ctrain.licenses": "pytorch-ngc: LicenseRef-NVIDIA; horovod: Apache-2.0",
    }
    write_image(store, release=3, layers=NEW_LAYERS, digest="sha256:03", labels=labels)
    assert images("show", "pytorch:24.12-hd-r3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "licences   LicenseRef-NVIDIA AND Apache-2.0" in lines
    assert [line.split()[-1] for line in lines if line.startswith(("layer ", "pytorch-ngc ", "train "))] == [
        "licence",
        "LicenseRef-NVIDIA",
        "-",
    ]


@pytest.mark.usefixtures("store")
def test_the_list_counts_the_tests_that_were_run(capsys: Out) -> None:
    assert images() == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["signed", "1/1", "1/1"]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("here", "head", "cell"),
    [(("a100", "p40"), "fits here", " A100 "), (("h200",), "fits here", "no GPU here"), ((), "fits  ", "V100 A100")],
)
def test_the_list_tells_on_which_gpus_of_this_cluster_an_image_runs(
    here: tuple[str, ...], head: str, cell: str, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Local, "gpus", lambda *_: here)
    assert images() == 0
    first, _, last = capsys.readouterr().out.splitlines()
    assert head in first
    assert cell in last
    assert images("--json") == 0
    told = [one["fits_here"] for one in json.loads(capsys.readouterr().out)["images"]]
    assert told == ([[], [gpu for gpu in ("V100", "A100") if gpu.lower() in here]] if here else [None, None])


@pytest.mark.usefixtures("store")
def test_a_scheduler_that_does_not_answer_hides_no_image(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> tuple[str, ...]:
        raise SchedulerError("Slurm does not answer")

    monkeypatch.setattr(Local, "gpus", silent)
    assert images() == 0
    assert "V100 A100" in capsys.readouterr().out


def test_without_a_name_the_stores_of_the_site_are_listed(
    store: Path, tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_store(tmp_path / "other")
    site = tmp_path / "here.yaml"
    site.write_text(f"name: here\nscheduler: local\nstores: [{store}, {other}]\n")
    monkeypatch.delenv("CTRAIN_STORE")
    monkeypatch.setenv("CTRAIN_SITE", str(site))
    assert images() == 0
    said = capsys.readouterr().out
    assert said.startswith(f"store {store}\nimage ")
    assert said.endswith(
        f"\n\nstore {other}\nstore {other} has no images; publish one with: ctrain publish IMAGE --store {other}\n"
    )
    assert images("show", "pytorch:dev", "--json") == 0


def test_show_of_what_an_older_ctrain_made(tmp_path: Path, capsys: Out) -> None:
    path = write_image(tmp_path, software={"torch": "2.13.0"}, flat=True, published=None)
    assert images("show", str(path)) == 0
    said = capsys.readouterr().out
    assert "packages   " + f"{path} has no package list (built by an older ctrain)\n" in said
    assert "fits       amd64, no GPU needed\n" in said
    assert "Its layers are merged into one file system." in said
    assert "built      2026-11-18 01:02 UTC, definitions at an unknown revision\npublished" not in said
    assert "published  no\n" in said
    assert "base " not in said


def test_show_names_the_image_that_this_one_was_built_on(tmp_path: Path, capsys: Out) -> None:
    path = write_image(tmp_path, labels={"org.ctrain.parent": "pytorch:24.12-hd-r3@sha256:9f2c41"})
    assert images("show", str(path)) == 0
    assert "\nparent     pytorch:24.12-hd-r3@sha256:9f2c41\n" in capsys.readouterr().out


def test_show_as_json(store: Path, capsys: Out) -> None:
    assert images("--json", "show", "pytorch") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["version"], told["channel"], told["path"]) == (
        "24.12-hd-r1",
        "prod",
        str(store / "pytorch_24.12-hd-py3-r1.sif"),
    )
    assert told["packages"] == [
        {"kind": "pypi", "name": "horovod", "version": "0.28.1"},
        {"kind": "pypi", "name": "numpy", "version": "2.4.6"},
        {"kind": "pypi", "name": "torch", "version": "2.6.0"},
    ]


@pytest.mark.usefixtures("store")
def test_diff_tells_layers_and_packages(capsys: Out) -> None:
    assert images("diff", "pytorch:prod", "pytorch:dev") == 0
    assert (
        capsys.readouterr().out
        == """\
pytorch 24.12-hd-r1 -> pytorch 24.12-hd-r2: 2.2 kB -> 2.2 kB

layer        old     new
pytorch-ngc  9.4 GB  9.4 GB  same
train        -       2.0 kB
horovod      7.0 kB  -

packages: 1 added, 1 removed, 1 changed
   kind  package  old     new
+  pypi  einops           0.8.2
-  pypi  horovod  0.28.1
   pypi  numpy    2.4.6   2.5.0
"""
    )


@pytest.mark.usefixtures("store")
def test_diff_of_an_image_with_itself(capsys: Out) -> None:
    assert images("diff", "pytorch", "pytorch") == 0
    assert capsys.readouterr().out.endswith("packages: 0 added, 0 removed, 0 changed\n")


@pytest.mark.usefixtures("store")
def test_diff_as_json(capsys: Out) -> None:
    assert images("diff", "pytorch:prod", "pytorch:dev", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["old"]["version"], told["new"]["version"]) == ("24.12-hd-r1", "24.12-hd-r2")
    assert told["packages"][0] == {"kind": "pypi", "name": "einops", "old": None, "new": "0.8.2"}
    assert told["layers"][2] == {"definition": "horovod", "old": 7000, "new": None, "same": False}


def test_a_layer_is_the_same_by_its_content(tmp_path: Path, capsys: Out) -> None:
    """An older image tells only keys; a layer that was built again may have the same key and other bytes."""
    changed = (Layer("pytorch-ngc", "k0", 3, "sha256:other"), Layer("horovod", "k1", 2, "sha256:d1"))
    root = write_store(tmp_path / "s", {"release": 1, "layers": OLD_LAYERS}, {"release": 2, "layers": changed})
    for path in root.glob("*.sif"):
        path.write_bytes(sif(more=[(SBOM, sbom())]))
    assert images("--store", str(root), "diff", "pytorch:24.12-hd-r1", "pytorch:24.12-hd-r2", "--json") == 0
    assert [layer["same"] for layer in json.loads(capsys.readouterr().out)["layers"]] == [False, True]


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("show",), 64, "the following arguments are required: IMAGE"),
        (("diff", "a"), 64, "specify two images, not 1"),
        (("shwo",), 64, "invalid choice: 'shwo'"),
        (("show", "pytroch"), 68, "image 'pytroch' not found in"),
        (("pytroch",), 68, "image 'pytroch' not found in"),
        (("show", "./x.sif"), 68, "image file x.sif not found"),
        (("diff", "pytorch", "pytorch:none"), 68, "image 'pytorch:none' not found in"),
    ],
)
@pytest.mark.usefixtures("store")
def test_mistakes_are_one_line(argv: tuple[str, ...], code: int, message: str, capsys: Out) -> None:
    assert images(*argv) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_diff_needs_package_lists(tmp_path: Path, capsys: Out) -> None:
    path = str(write_image(tmp_path))
    assert images("diff", path, path) == 69
    assert "has no package list" in capsys.readouterr().err


def test_show_examines_what_ctrain_did_not_build(programs: Path, tmp_path: Path, capsys: Out) -> None:
    path = tmp_path / "other.sif"
    path.write_bytes(sif())
    inspected = {"data": {"attributes": {"labels": {}, "runscript": "OCI_ENTRYPOINT='\"/entry.sh\"'\n"}}}
    version = "--version) echo apptainer version 1.4.5 ;;"
    answers = f"*inspect*) echo {shlex.quote(json.dumps(inspected))} ;; *) echo glibc 2.36 ;;"
    fakes.write_program(programs / "apptainer", f"#!/bin/bash\ncase $* in {version} {answers} esac\n")
    assert images("show", str(path)) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[2:] == [
        "built      not by ctrain: untested",
        "starts     /entry.sh (not by ctrain)",
        "published  no",
        "signed     no",
        "fits       amd64, no GPU needed",
        "software   glibc 2.36",
    ]
    assert "ctrain: examining other.sif ..." in shown.err
    path.write_bytes(sif(data=b"another one"))
    fakes.write_program(programs / "apptainer", f"#!/bin/bash\ncase $* in {version} *) exit 1 ;; esac\n")
    assert images("show", str(path)) == 73
    assert "cannot examine" in capsys.readouterr().err


def test_a_manifest_sends_nothing_to_the_terminal(tmp_path: Path, capsys: Out) -> None:
    evil = "\x1b]0;title\x07\x1b[2J"
    facts = {"software": {"torch": evil, evil: "1"}, "tools": {"x": evil}, "labels": {"org.ctrain.parent": evil}}
    root = write_store(tmp_path / "store", {**facts, "requires": Requires(evil), "base": Base(evil)})
    (image,) = root.glob("*.sif")
    for argv in (("show", str(image)), ("diff", str(image), str(image)), ("--store", str(root))):
        images(*argv)
        output = "".join(capsys.readouterr())
        assert "\x1b" not in output and "\x07" not in output, argv
    images("show", str(image))
    assert " ]0;title  [2J" in capsys.readouterr().out
