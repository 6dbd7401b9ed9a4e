from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.cluster import machine
from ctrain_runtime.cluster.groups import usual
from ctrain_runtime.cluster.model import Allocation, Cluster, NodeGroup, Partition
from ctrain_runtime.doctor import Finding
from ctrain_runtime.doctor.images import check_image
from ctrain_runtime.site.select import SelectedSite, select_site
from ctrain_runtime.store.manifest import Requires
from samples.programs import answer
from samples.sample_images import write_store

GPU = Partition("gpu", True, nodes=4, cpus=16, gpus=2, gpu_type="a100", arch="x86_64")
SLURM = Cluster((GPU,), ("none", "pmix_v4", "pmi2"))
SOFTWARE = {"torch": "2.6.0", "mpi": "Open MPI 4.1.7"}


@pytest.fixture
def selected(tmp_path: Path, programs: Path) -> SelectedSite:
    answer(programs, "apptainer", "started\nk1\n", version="apptainer version 1.4.5\n")
    chosen = select_site("generic-slurm", {"store": str(tmp_path / "store")})
    return replace(chosen, site=replace(chosen.site, mpi=("pmix_v4",)))


def check(selected: SelectedSite, cluster: Cluster = SLURM, **manifest: Any) -> dict[str, Finding]:
    store = Path(selected.site.stores[0])
    if not store.exists():
        write_store(store, manifest)
    return {finding.subject: finding for finding in check_image("pytorch", selected, cluster)}


def test_an_image_that_fits(selected: SelectedSite) -> None:
    findings = check(selected, software=SOFTWARE)
    assert {finding.level for finding in findings.values()} == {"ok"}
    assert findings["image"].text.startswith("pytorch 24.12-hd-r3 (/")
    assert findings["mpi"].text == "Open MPI 4.1.7 of the image, started by slurm with pmix_v4"


def test_an_image_that_does_not_exist(selected: SelectedSite) -> None:
    check(selected)
    (finding,) = check_image("pytroch", selected, SLURM)
    assert (finding.subject, finding.level, "Did you mean 'pytorch'?" in finding.hint) == ("image", "fail", True)


def test_an_image_that_is_truncated(selected: SelectedSite) -> None:
    check(selected)
    (image,) = Path(selected.site.stores[0]).glob("*.sif")
    image.write_bytes(image.read_bytes()[:-1])
    assert check(selected)["image"].text.startswith("size mismatch: ")


def test_partitions_that_an_image_fits(selected: SelectedSite) -> None:
    cpu = replace(GPU, name="cpu", gpus=0, gpu_type="")
    old = replace(GPU, name="old", gpu_type="v100")
    cluster = replace(SLURM, partitions=(GPU, old, cpu))
    for_a100 = {"requires": Requires(gpus=("A100",), arch=("8.0",)), "software": {"torch": "2.6.0", "cuda": "12.6"}}
    too_old = "GPU V100 (compute capability 7.0) is older than the image's GPU code (8.0)"
    finding = check(selected, cluster, **for_a100)["nodes"]
    assert (finding.level, finding.text) == ("ok", f"fits partition gpu; {too_old}")
    finding = check(selected, replace(SLURM, partitions=(old, cpu)))["nodes"]
    assert (finding.level, finding.text, finding.hint) == ("fail", too_old, "Find another: ctrain images")
    assert check(selected, replace(SLURM, partitions=(cpu,)))["nodes"].text == "no partition has GPUs"
    groups = (NodeGroup(8, 2, "a100", nodes=1), NodeGroup(8, 4, "v100", nodes=1), NodeGroup(8, nodes=9))
    mixed = check(selected, replace(SLURM, partitions=(usual(GPU, groups),)), **for_a100)["nodes"]
    assert (mixed.level, mixed.text) == ("ok", f"fits partition gpu (a100); {too_old}")
    arm = replace(SLURM, partitions=(replace(GPU, arch="aarch64"),))
    assert check(selected, arm)["nodes"].text == "partition gpu is aarch64, the image is for amd64"


@pytest.mark.parametrize(
    ("driver", "level", "text"),
    [
        ("535.104.05", "ok", "fits this machine"),
        (
            "470.57.02",
            "ok",
            "fits this machine; CUDA 12.6 needs driver 525, this machine has 470.57.02: it runs by forw",
        ),
        (
            "418.40",
            "fail",
            "CUDA 12.6 needs driver 525 or newer, this machine has 418.40; by forward compatibility also 4",
        ),
        ("", "ok", "fits this machine"),  # unknown
    ],
)
def test_the_driver_of_a_compute_node(
    driver: str, level: str, text: str, selected: SelectedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "count_gpus", lambda: 4)
    monkeypatch.setattr(machine, "gpu_models", lambda: ("NVIDIA A100-SXM4-80GB",))
    monkeypatch.setattr(machine, "driver_version", lambda: driver)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    allocation = replace(SLURM, allocation=Allocation("41", 1, "gpu", cpus=4, gpus=4))
    requires = Requires(driver="525", older_drivers=("470.57",), arch=("8.0",))
    finding = check(selected, allocation, requires=requires)["nodes"]
    assert (finding.level, finding.text[: len(text)]) == (level, text)


def test_layers_that_are_not_mounted(selected: SelectedSite, programs: Path) -> None:
    answer(programs, "apptainer", "started\n", version="apptainer version 1.4.5\n")
    finding = check(selected)["layers"]
    assert (finding.level, finding.text) == ("fail", "apptainer does not mount the layers of the image")
    (programs / "apptainer").unlink()
    assert "layers" not in check(selected)


def test_a_scheduler_without_the_plugin(selected: SelectedSite) -> None:
    finding = check(selected, Cluster((GPU,), ("none", "pmi2")), software=SOFTWARE)["mpi"]
    assert finding.level == "warn"
    assert finding.text == "slurm has no MPI plugin pmix_v4 (available: none, pmi2)"
    assert finding.hint.startswith("Pass --launcher gloo for Horovod, env")


def test_open_mpi_5_is_not_started_by_pmi2(selected: SelectedSite) -> None:
    site = replace(selected, site=replace(selected.site, mpi=("pmi2", "pmix_v4")))
    software = {"mpi": "Open MPI 5.0.10"}
    finding = check(site, Cluster((GPU,), ("none", "pmi2")), software=software)["mpi"]
    assert finding.level == "warn"
    assert finding.text.startswith(
        "Open MPI 5.0.10 of the image needs PMIx: under slurm's pmi2 each rank would be alone"
    )
    finding = check(site, Cluster((GPU,), ("none", "pmi2", "pmix_v4")), software=software)["mpi"]
    assert (finding.level, finding.text) == ("ok", "Open MPI 5.0.10 of the image, started by slurm with pmix_v4")
    for flavour in ("pals", "hydra"):  # they speak the PMI of MPICH
        site = replace(selected, site=replace(selected.site, mpi=(flavour,)))
        finding = check(site, Cluster((GPU,), (flavour,)), software=software)["mpi"]
        assert finding.level == "warn"
        assert f"under slurm's {flavour} each rank would be alone" in finding.text


@pytest.mark.parametrize(
    ("flavour", "software", "level"),
    [
        ("pmix_v4", {"mpi": "Open MPI 4.1.7"}, "ok"),
        ("pmi2", {"mpi": "Open MPI 4.1.7", "pmix": "OpenPMIx 4.2.2"}, "warn"),
        ("pmi2", {"mpi": "HYDRA 5.0.2"}, "ok"),
        ("pmix", {"mpi": "HYDRA 5.0.2"}, "warn"),
        ("pmix", {"mpi": "HYDRA 5.0.2", "pmix": "OpenPMIx 4.2.2"}, "ok"),
    ],
)
def test_an_mpi_that_may_not_know_how_the_scheduler_starts_it(
    flavour: str, software: dict[str, str], level: str, selected: SelectedSite
) -> None:
    site = replace(selected, site=replace(selected.site, mpi=(flavour,)))
    finding = check(site, Cluster((GPU,), ("none", flavour)), software=software)["mpi"]
    text = f"{software['mpi']} of the image, started by slurm with {flavour}"
    doubt = ", which it may not know: the preflight counts the ranks" if level == "warn" else ""
    assert (finding.level, finding.text, bool(finding.hint)) == (level, text + doubt, level == "warn")


def test_no_mpi_is_needed(selected: SelectedSite) -> None:
    text = "Open MPI 4.1.7 of the image: its mpirun starts the ranks of one machine"
    assert check(selected, Cluster(), software=SOFTWARE)["mpi"].text == text


def test_an_image_without_mpi(selected: SelectedSite) -> None:
    assert check(selected, software={"torch": "2.6.0"})["mpi"].text.startswith("the image has no MPI")
