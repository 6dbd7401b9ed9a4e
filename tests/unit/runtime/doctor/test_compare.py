from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ctrain_runtime.base.file_systems import Mount
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.cluster.model import Allocation, Cluster, Partition
from ctrain_runtime.doctor import compare
from ctrain_runtime.schedulers.slurm.scheduler import Slurm
from ctrain_runtime.site.select import select_site
from samples import programs as fakes
from samples.recordings import install_pbs
from samples.sample_images import write_store

HERE = Partition("gpu", True, nodes=4, cpus=64, gpus=8, gpu_type="a100", arch="x86_64", time_limit=1440)
AGREES = "gpu: {nodes: 2, cpus: 64, gpus: 8, gpu_type: A100-SXM4-80GB, arch: x86_64, time_limit: 1-00:00:00}"


@pytest.fixture
def slurm(programs: Path) -> Path:
    fakes.slurm(programs, HERE)
    return programs


def findings(text: str = "", image: str = "", *, scheduler: str = "slurm") -> dict[str, tuple[str, str]]:
    """Of a site with these keys: what was compared, its level and text."""
    Path("ours.yaml").write_text(f"scheduler: {scheduler}\n{text}")
    return {one.subject: (one.level, one.text) for one in compare.compare(select_site("./ours.yaml"), image)}


@pytest.mark.usefixtures("slurm")
def test_a_site_that_agrees() -> None:
    assert findings(f"partitions: {{{AGREES}}}\npartition: gpu") == {
        "partitions": ("ok", "agree with slurm: gpu"),
        "mpi": ("ok", "pmix is offered"),
    }


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize(
    ("changed", "differs"),
    [
        ("cpus: 128", "cpus 128, here 64"),
        ("gpus: 4", "gpus 4, here 8"),
        ("gpu_type: h100", "gpu_type h100, here a100"),
        ("arch: aarch64", "arch aarch64, here x86_64"),
        ("time_limit: 2-00:00:00", "time_limit 2-00:00:00, here 1-00:00:00"),
        ("min_nodes: 2", "min_nodes 2, here 1"),
    ],
)
def test_what_differs_is_named_with_both_values(changed: str, differs: str) -> None:
    key = changed.partition(":")[0]
    entries = [entry for entry in AGREES[6:-1].split(", ") if not entry.startswith(f"{key}:")]
    found = findings(f"partitions: {{gpu: {{{', '.join([*entries, changed])}}}}}")
    assert found["partition gpu"] == ("fail", f"differs: {differs}")


def test_a_file_describes_one_kind_of_nodes(slurm: Path) -> None:
    fakes.slurm(slurm, HERE, replace(HERE, nodes=20, cpus=40, gpus=4, gpu_type="v100", default=False))
    assert findings(f"partitions: {{{AGREES}}}")["partitions"] == ("ok", "agree with slurm: gpu")
    changed = AGREES.replace("cpus: 64", "cpus: 96")
    assert findings(f"partitions: {{{changed}}}")["partition gpu"] == ("fail", "differs: cpus 96, here 64")


@pytest.mark.usefixtures("slurm")
def test_partitions_that_this_cluster_lacks() -> None:
    found = findings("partitions: {old: {nodes: 1, cpus: 1}, example: {nodes: 1, cpus: 1}}\npartition: debug")
    assert found["partition old"] == ("fail", "differs: not on this cluster, which has gpu")
    assert found["partition debug"] == ("fail", "differs: not on this cluster, and jobs would ask for it")
    assert "partition example" not in found


@pytest.mark.usefixtures("slurm")
def test_threads_are_counted_as_jobs_get_them(programs: Path) -> None:
    fakes.slurm(programs, replace(HERE, cpus=128, threads_per_core=2))
    assert findings(f"partitions: {{{AGREES}}}\njob_threads_per_core: 1")["partitions"][0] == "ok"


def test_gpus_that_the_scheduler_does_not_know(slurm: Path) -> None:
    fakes.slurm(slurm, replace(HERE, gpus=0, gpu_type=""))
    key = f"partitions: {{{AGREES}}}"
    assert findings(key)["partition gpu"] == ("fail", "differs: gpus 8, here 0")
    assert findings(f"{key}\nnot_requested: [gpus]")["partitions"][0] == "ok"


@pytest.mark.usefixtures("slurm")
def test_mpi_that_nobody_offers() -> None:
    assert findings("mpi: [pmi2]")["mpi"] == ("fail", "differs: none of pmi2 is offered here (pmix, none)")


def test_a_cluster_that_does_not_answer(slurm: Path) -> None:
    fakes.answer(slurm, "scontrol", error="Unable to contact slurm controller", code=1)
    level, text = findings(f"partitions: {{{AGREES}}}")["partitions"]
    assert (level, text[:9]) == ("warn", "unknown: ")


def test_a_cluster_that_names_no_partition(slurm: Path) -> None:
    """`site check` passed over it in silence, as if the partitions agreed."""
    fakes.answer(slurm, "scontrol", "")
    assert findings(f"partitions: {{{AGREES}}}")["partitions"] == ("warn", "unknown: slurm names no partition")


@pytest.mark.usefixtures("programs")
def test_elsewhere_nothing_is_compared() -> None:
    assert findings(f"partitions: {{{AGREES}}}\nstaging: /nowhere\nnccl_network: AWS Libfabric") == {}


def test_queues_of_the_recorded_pbs(programs: Path) -> None:
    install_pbs(programs)
    for name in ("qsub", "qselect", "qdel"):
        fakes.answer(programs, name)
    queues = """
      workq: {nodes: 2, cpus: 2, gpus: 2, time_limit: "1:00:00"}
      gpu: {nodes: 2, cpus: 2, gpus: 2, time_limit: "1:00:00"}
      stopped: {nodes: 2, cpus: 2}"""
    assert findings(f"partitions:{queues}\nmpi: [hydra]", scheduler="pbs") == {
        "partitions": ("ok", "agree with pbs: workq"),
        "partition gpu": ("fail", "differs: time_limit 01:00:00, here 02:00:00"),
        "partition stopped": ("warn", "unknown: it is stopped"),
        "mpi": ("fail", "differs: none of hydra is offered here (nothing is)"),
    }


def in_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster((HERE,), mpi=("pmix",), allocation=Allocation("7", 1, "gpu", cpus=64, gpus=8))
    monkeypatch.setattr(Slurm, "facts", lambda _self, _site: cluster)


def test_the_engine(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = slurm / "engine"  # a login shell, which loads modules, has a PATH of its own
    key = f"engine: {{path: {path}, version: 1.4.5, modules: [nowhere]}}"
    text = f"{path} 1.4.5: {{}}: not on PATH here, nor do its modules load it"
    assert findings(key)["engine"] == ("warn", text.format("unknown"))
    with monkeypatch.context() as context:
        in_a_job(context)
        assert findings(key)["engine"] == ("fail", text.format("differs"))
    fakes.install(slurm, "apptainer")
    (slurm / "apptainer").rename(path)
    assert findings(key)["engine"] == ("ok", f"{path} 1.4.5, as here")
    older = key.replace("1.4.5", "1.3.6")
    assert findings(older)["engine"] == ("fail", f"{path} 1.3.6: differs: here apptainer 1.4.5")
    assert "engine" not in findings(f"engine: {{path: {path}}}")  # it is asked for each run


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize(
    ("kind", "level", "text"),
    [
        ("xfs", "ok", "is on xfs"),
        ("lustre", "fail", "differs: it is shared by all nodes (lustre), not a disk of the node"),
        ("tmpfs", "fail", "differs: it is memory of the node (tmpfs), not a disk of the node"),
    ],
)
def test_the_disk_of_a_node(kind: str, level: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare.file_systems, "mount_of", lambda _path: Mount(kind, frozenset()))
    found = findings(f"staging: {tmp_path}")["staging"]
    assert (found[0], found[1].removeprefix(str(tmp_path)).lstrip(": ")) == (level, text)


@pytest.mark.usefixtures("slurm")
def test_a_disk_that_this_machine_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings("staging: /nowhere")["staging"] == ("warn", "/nowhere: unknown: not on this machine")
    in_a_job(monkeypatch)
    assert findings("staging: /nowhere")["staging"] == ("fail", "/nowhere: differs: not on this machine")
    assert findings("staging: $NOT_SET")["staging"][0] == "fail"


LDD = 'printf "\\tlibcxi.so.1 => not found\\n\\tlibcuda.so.1 => not found\\n\\tlibc.so.6 => /lib/libc.so.6 (0x1)\\n"'
NETWORK = "nccl_network: AWS Libfabric\nenv: {NCCL_NET_PLUGIN: FILE}"


def test_the_plugin_and_the_libraries_that_it_lacks(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libcuda comes with GPUs, which this machine has not."""
    monkeypatch.setenv("PATH", f"{slurm}:{fakes.SYSTEM}")
    fakes.install(slurm, "apptainer")
    fakes.write_program(slurm / "ldd", f"#!/bin/sh\n{LDD}\n")
    write_store(tmp_path / "store", {}, channels={"pytorch_prod": "pytorch_24.12-hd-py3-r3.sif"})
    (tmp_path / "libnccl-net.so").touch()
    store = f"\nstores: [{tmp_path}/store]"
    key = NETWORK.replace("FILE", f"{tmp_path}/libnccl-net.so") + store
    assert findings(key)["NCCL plugin"][1].startswith("unknown: ")
    lacks = f"{tmp_path}/libnccl-net.so: differs: lacks libcxi.so.1"
    assert findings(key, "pytorch")["NCCL plugin"] == ("fail", lacks)
    version = "/opt/libfabric.so.1: version `FABRIC_1.8' not found (required by /a/libnccl-net.so)"
    fakes.write_program(slurm / "ldd", f'#!/bin/sh\necho "{version.replace("`", chr(92) + "`")}" >&2\n')
    assert findings(key, "pytorch")["NCCL plugin"][1].endswith("differs: lacks FABRIC_1.8 of /opt/libfabric.so.1")
    fakes.write_program(slurm / "ldd", "#!/bin/sh\n")
    assert findings(key, "pytorch")["NCCL plugin"] == ("ok", f"{tmp_path}/libnccl-net.so, with all its libraries")
    by_path = f"nccl_network: AWS Libfabric\nlibrary_paths: ['{tmp_path}']{store}"
    assert findings(by_path, "pytorch")["NCCL plugin"][0] == "ok"
    level, text = findings(NETWORK.replace("FILE", "/nowhere/libnccl-net.so") + store, "pytorch")["NCCL plugin"]
    assert (level, text) == ("fail", "differs: neither pytorch nor the site's mounts have one")
    lost = findings(f"{key}\nmounts: [/nowhere]", "pytorch")["NCCL plugin"]
    assert lost == ("warn", "unknown: this machine lacks what the site mounts: /nowhere")
    assert findings(key, "nothing")["image"][0] == "fail"
    for name in ("library_paths", "host_libraries"):  # which become words of a script
        wrong = findings(f"nccl_network: AWS Libfabric\n{name}: ['/a;touch b']{store}", "pytorch")["NCCL plugin"]
        assert (wrong[0], name in wrong[1]) == ("fail", True)


def test_the_verb_says_so_by_its_exit_code(slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("sinfo", "squeue"):
        fakes.answer(slurm, name)
    path = tmp_path / "config/ctrain/sites/ours.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(f"scheduler: slurm\nstores: ['{tmp_path}']\npartitions: {{{AGREES}}}\n")
    assert main(RUNTIME_VERBS, ["site", "check", "ours"]) == 0
    assert "partitions  ok  agree with slurm: gpu" in capsys.readouterr().out
    path.write_text(path.read_text().replace("cpus: 64", "cpus: 48"))
    assert main(RUNTIME_VERBS, ["site", "check", "ours"]) == 67
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("partition gpu"))
    assert " ".join(line.split()) == f"partition gpu fail differs: cpus 48, here 64 Set by {path} (user)"


def test_an_image_that_nobody_looks_at_is_not_passed_over_in_silence() -> None:
    assert findings("", "pytorch", scheduler="pbs") == {"NCCL plugin": ("warn", "unknown: this machine has no pbs")}
    assert findings("", scheduler="pbs") == {}
