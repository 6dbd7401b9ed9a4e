from __future__ import annotations

import dataclasses
import platform
from pathlib import Path

import pytest

from ctrain_runtime import gpus, schedulers
from ctrain_runtime.base.time_limit import NodeRange
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.cluster import machine
from ctrain_runtime.cluster.model import Cluster, Limits, Partition
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import ConfigError, EngineError, ResourceError, SchedulerError
from ctrain_runtime.plan import sizing
from ctrain_runtime.plan.admission import NodeFacts
from ctrain_runtime.plan.size import JobFit, JobSize, SizeRequest
from ctrain_runtime.run import site_engine
from ctrain_runtime.run.site_engine import ASSUMED
from ctrain_runtime.run.targets import describe_cluster, find_cluster, find_nodes
from ctrain_runtime.site.model import Site, SiteEngine, SitePartition, SiteQos
from ctrain_runtime.site.select import load_site, select_site, site_names
from samples import programs as fakes
from samples.sample_images import write_store

SLURM = schedulers.get("slurm")
SITE = Site(
    name="ours",
    scheduler="slurm",
    partitions={"gpu": SitePartition(2, 64, 8, "a100", "x86_64", "1-00:00:00"), "cpu": SitePartition(1, 8)},
)


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("launcher", ["env", "mpi", "torchrun"])
@pytest.mark.parametrize("site", site_names())
def test_a_dry_run_for_every_site_on_any_machine(
    site: str, launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without scheduler, engine and the directories of the site; only the image, for its GPUs, must exist."""
    monkeypatch.setenv("USER", "kim")
    types = [part.gpu_type for part in load_site(site)[0].partitions.values()]
    software = {"amd": {"rocm": "6.4.2"}, "intel": {"xpu": "20250302"}}.get(gpus.maker("".join(types)))
    write_store(
        tmp_path / "store",
        {"software": software} if software else {},
        channels={"pytorch_prod": "pytorch_24.12-hd-py3-r3.sif"},
    )
    for part in load_site(site)[0].partitions.values():
        monkeypatch.setattr("platform.machine", lambda arch=part.arch: arch)
    required = [f"--{name}=mine" for name in load_site(site)[0].required]
    job = ("--image", "pytorch", "--launcher", launcher, "--runs", "runs", *required, "--", "python3", "-c", "pass")
    assert main(RUNTIME_VERBS, ["run", "--site", site, "--store", "store", "--dry-run", *job]) == 0
    out = capsys.readouterr().out
    assert f"site      {site} (dry run: nothing is started)" in out
    assert "--- job.sh" in out
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("site", ["aurora", "frontier", "lumi-g"])
def test_images_for_nvidias_gpus_are_refused_where_others_are(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were planned without a word, and would have trained on the CPUs."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    write_store(tmp_path / "store", {}, channels={"pytorch_prod": "pytorch_24.12-hd-py3-r3.sif"})
    job = ("--image", "pytorch", "--launcher", "env", "--runs", "runs", "--account=mine", "--", "python3")
    assert main(RUNTIME_VERBS, ["run", "--site", site, "--store", "store", "--dry-run", *job]) == 69
    assert "s, the image is for NVIDIA's. Select another image or partition" in capsys.readouterr().err


@pytest.mark.usefixtures("programs")
def test_a_dry_run_holds_the_limits_of_a_partition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_store(tmp_path / "store", {}, channels={"pytorch_prod": "pytorch_24.12-hd-py3-r3.sif"})
    job = ("--image", "pytorch", "--store", "store", "--runs", "runs", "--account", "mine", "--dry-run")
    argv = ["run", "--site", "polaris", "--partition", "prod", *job, "--launcher", "env", "--", "python3"]
    assert main(RUNTIME_VERBS, argv) == ResourceError.exit_code
    assert "partition prod needs at least 10 nodes per job, 1 requested" in capsys.readouterr().err


def test_cpus_are_those_that_a_job_gets_by_the_sites_default(programs: Path) -> None:
    """Frontier: 56 free cores with two threads each, of which jobs get one; -c 14 would ask for 14 cores."""
    fakes.slurm(programs, Partition("batch", True, nodes=2, cpus=112, gpus=8, threads_per_core=2))
    parts = [
        find_cluster(SLURM, dataclasses.replace(SITE, job_threads_per_core=n))[0].partitions[0] for n in (None, 1, 2)
    ]
    assert [(part.cpus, part.threads_per_core) for part in parts] == [(112, 2), (56, 1), (112, 2)]


@pytest.mark.usefixtures("programs")
def test_a_cluster_that_cannot_be_asked_is_the_one_of_the_file() -> None:
    cluster, notes = find_cluster(SLURM, SITE, dry_run=True)
    gpu = Partition("gpu", False, nodes=2, cpus=64, gpus=8, gpu_type="a100", arch="x86_64", time_limit=1440)
    assert cluster.partitions == (gpu, Partition("cpu", False, nodes=1, cpus=8, gpus=0))
    assert cluster.mpi == SITE.mpi
    assert notes == ("partitions are those of the file of site ours: Slurm command sbatch not found on PATH",)
    with pytest.raises(SchedulerError, match=r"^Slurm command sbatch not found on PATH"):
        find_cluster(SLURM, SITE)
    wrong = dataclasses.replace(SITE, partitions={"gpu": SitePartition(1, 1, time_limit="soon")})
    with pytest.raises(ConfigError, match=r"^site ours: partitions.gpu: invalid time limit 'soon'"):
        find_cluster(SLURM, wrong, dry_run=True)


def test_a_dry_run_where_the_scheduler_does_not_answer(programs: Path) -> None:
    fakes.slurm(programs)
    fakes.answer(programs, "scontrol", error="slurm_load_node error: Unable to contact slurm controller\n", code=1)
    cluster, notes = find_cluster(SLURM, SITE, dry_run=True)
    assert [part.name for part in cluster.partitions] == ["gpu", "cpu"]
    assert "Unable to contact slurm controller" in notes[0]
    with pytest.raises(SchedulerError, match="Unable to contact"):
        find_cluster(SLURM, SITE)


def test_where_a_scheduler_does_not_answer_another_one_that_is_installed_is_named(programs: Path) -> None:
    """Slurm's commands come with packages, also where PBS runs the jobs; by its criteria Slurm is detected."""
    for name in {"sinfo", "srun", *SLURM.programs}:
        fakes.answer(programs, name, error="resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n", code=1)
    for name in ("qsub", "qstat"):
        fakes.answer(programs, name, "")
    site = select_site().site
    assert site.name == "generic-slurm"
    with pytest.raises(SchedulerError) as caught:
        find_cluster(SLURM, site)
    problem = "Slurm does not answer: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host"
    other = "; another scheduler is installed here, too: --site generic-pbs"
    assert str(caught.value) == f"{problem}. Retry later, or run here with --site local{other}"
    _, notes = find_cluster(SLURM, site, dry_run=True)
    assert notes == (f"partitions are those of the file of site generic-slurm: {problem}{other}",)
    with pytest.raises(SchedulerError, match=r"Unknown host. Retry later, or run here with --site local$"):
        find_cluster(SLURM, SITE)  # whoever names a site has chosen it
    (programs / "qsub").unlink()
    with pytest.raises(SchedulerError, match=r"Unknown host. Retry later, or run here with --site local$"):
        find_cluster(SLURM, site)


@pytest.mark.parametrize("dry_run", [True, False])
def test_the_scheduler_knows_better_but_not_always_all(programs: Path, dry_run: bool) -> None:
    fakes.slurm(
        programs, Partition("gpu", True, nodes=4, cpus=16, gpus=2, gpu_type=""), Partition("new", False, 1, 1, 0)
    )
    cluster, notes = find_cluster(SLURM, SITE, dry_run=dry_run)
    gpu, new = cluster.partitions
    assert (gpu.nodes, gpu.cpus, gpu.gpus, gpu.gpu_type, gpu.arch) == (4, 16, 2, "a100", "x86_64")
    assert (new.name, new.gpu_type, notes) == ("new", "", ())


@pytest.mark.parametrize(
    ("of_scheduler", "of_site", "used"),
    [
        ("a100", "A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("nvidia_a100", "a100-40gb", "a100-40gb"),
        ("nvidia_a100-sxm4-40gb", "A100-SXM4-80GB", "nvidia_a100-sxm4-40gb"),
        ("v100", "A100-SXM4-80GB", "v100"),
        ("a100_1g.5gb", "A100-SXM4-80GB", "a100_1g.5gb"),
        ("a100", "a100", "a100"),
        ("a100", "", "a100"),
    ],
)
def test_the_site_says_which_a100_the_scheduler_means(
    programs: Path, of_scheduler: str, of_site: str, used: str
) -> None:
    fakes.slurm(programs, Partition("gpu", True, nodes=1, cpus=8, gpus=1, gpu_type=of_scheduler))
    site = dataclasses.replace(SITE, partitions={"gpu": SitePartition(1, 8, gpu_type=of_site)})
    assert find_cluster(SLURM, site)[0].partitions[0].gpu_type == used


def test_the_engine_of_the_nodes(programs: Path) -> None:
    def engine(**keys: str) -> Engine:
        found, notes = site_engine.find(dataclasses.replace(SITE, engine=SiteEngine(**keys)))
        assert notes == ()
        return found

    assert engine(path="/soft/apptainer", version="1.4.1") == Engine("apptainer", "/soft/apptainer", "1.4.1")
    assert engine(path="singularity", version="4.1.0") == Engine("singularity", "singularity", "4.1.0")
    with pytest.raises(EngineError, match=r"^neither apptainer .* If only the nodes have it, set `engine` with its pa"):
        engine()
    with pytest.raises(
        EngineError, match=r"^singularity does not work here: .* set `engine` with its path and version"
    ):
        engine(path="singularity")
    fakes.answer(programs, "singularity", "singularity-ce version 4.1.5\n")
    assert engine() == Engine("singularity", str(programs / "singularity"), "4.1.5")
    assert engine(path="singularity") == Engine("singularity", "singularity", "4.1.5")


@pytest.mark.usefixtures("programs")
def test_a_dry_run_needs_no_engine() -> None:
    note = "no engine on this machine: planned for apptainer 1.1.0"
    assert site_engine.find(SITE, dry_run=True) == (ASSUMED, (note,))


def test_the_nodes_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpu_models", lambda: ("NVIDIA A30",))
    monkeypatch.setattr(machine, "driver_version", lambda: "535.54")
    monkeypatch.setattr(machine, "cpu_instructions", lambda: frozenset(("sse2",)))
    gpu = Partition("gpu", False, nodes=2, cpus=64, gpus=8, gpu_type="a100", arch="x86_64", driver="470.57")
    volta = Partition("cas_v100nv_8", False, nodes=2, cpus=64, gpus=8)
    found = find_nodes(JobFit(JobSize(2, 8, gpus_per_node=8), chosen=gpu))
    assert found == NodeFacts("partition gpu", "x86_64", ("a100",), "470.57", maker="nvidia")
    assert find_nodes(JobFit(JobSize(2, 8), chosen=gpu)).gpus == ()
    other = find_nodes(JobFit(JobSize(2, 8, gpus_per_node=1), chosen=volta))
    assert (other.arch, other.gpus) == (platform.machine(), ("cas_v100nv_8",)), "a partition's name may tell"
    here = find_nodes(JobFit(JobSize(1, 1, gpus_per_node=1)))
    assert here == NodeFacts("this machine", platform.machine(), ("NVIDIA A30",), "535.54", frozenset(("sse2",)))


def test_the_architecture_is_the_word_of_the_scheduler(programs: Path) -> None:
    fakes.slurm(programs, Partition("gpu", True, nodes=1, cpus=8, gpus=1, gpu_type="gh200", arch="aarch64"))
    assert find_cluster(SLURM, SITE)[0].partitions[0].arch == "aarch64"


def test_the_driver_is_the_word_of_the_sites_file(programs: Path) -> None:
    fakes.slurm(programs, Partition("gpu", True, nodes=1, cpus=8, gpus=1, gpu_type="a100"))
    site = dataclasses.replace(SITE, partitions={"gpu": SitePartition(1, 8, driver="470.57")})
    assert find_cluster(SLURM, site)[0].partitions[0].driver == "470.57"
    assert find_cluster(SLURM, site, dry_run=True)[0].partitions[0].driver == "470.57"


def test_a_file_with_limits_by_nodes_and_of_qos() -> None:
    part = SitePartition(560, 64, 4, time_limit={"10-24": "3:00:00", "25-": "1-0"}, threads_per_core=2, max_running=1)
    qos = {"debug": SiteQos("0:30:00", 8), "regular": SiteQos("2-0")}
    site = dataclasses.replace(SITE, partitions={"prod": part}, qos=qos, default_qos="debug")
    cluster = describe_cluster(site)
    (prod,) = cluster.partitions
    assert (prod.min_nodes, prod.max_nodes, prod.time_limit, prod.threads_per_core, prod.max_running) == (
        *(10, None, None),
        *(2, 1),
    )
    assert [one.minutes for one in prod.by_nodes] == [180, 1440]
    assert (cluster.qos, cluster.limits) == (
        "debug",
        {"QOS debug": Limits(8, time_limit=30), "QOS regular": Limits(None, time_limit=2880)},
    )
    for changes, key in (
        ({"partitions": {"prod": SitePartition(1, 1, time_limit={"x": "1"})}}, "partitions.prod"),
        ({"qos": {"debug": SiteQos("soon")}}, "qos.debug"),
    ):
        with pytest.raises(ConfigError, match=rf"^site ours: {key}: invalid "):
            describe_cluster(dataclasses.replace(site, **changes))


def test_limits_by_nodes_that_the_scheduler_does_not_tell(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frontier's bins are in no partition of Slurm: 12 h on one node were planned there, and 2 h elsewhere."""
    fakes.slurm(programs, Partition("batch", True, nodes=9000, cpus=56, gpus=8, time_limit=1440))
    bins = {"1-91": "2:00:00", "92-183": "6:00:00", "184-9472": "12:00:00"}
    site = dataclasses.replace(SITE, partitions={"batch": SitePartition(9472, 56, 8, time_limit=bins)})
    cluster, _ = find_cluster(SLURM, site)
    for nodes, hours in ((1, 2), (100, 6), (184, 12)):
        request = SizeRequest(nodes=nodes, time="24:00:00")
        assert sizing.fit(request, cluster, site).size.time_limit == hours * 60
    told = dataclasses.replace(cluster.partitions[0], by_nodes=(NodeRange(1, 10, 30),))
    monkeypatch.setattr(type(SLURM), "facts", lambda *_: Cluster((told,)))
    assert find_cluster(SLURM, site)[0].partitions[0].by_nodes == told.by_nodes


def test_gpus_that_the_scheduler_does_not_know(programs: Path) -> None:
    """Else a node of it would have none, and no run could use any."""
    fakes.slurm(programs, Partition("gpu", True, nodes=4, cpus=16, gpus=0))
    assert find_cluster(SLURM, SITE)[0].partitions[0].gpus == 0
    site = dataclasses.replace(SITE, not_requested=("gpus",))
    assert find_cluster(SLURM, site)[0].partitions[0].gpus == 8


def test_an_engine_that_needs_fakeroot(programs: Path) -> None:
    site = dataclasses.replace(SITE, engine=SiteEngine("apptainer", "1.4.1", fakeroot=True))
    assert site_engine.find(site)[0] == Engine("apptainer", "apptainer", "1.4.1", fakeroot=True)
    fakes.answer(programs, "apptainer", "apptainer version 1.4.1\n")
    assert site_engine.find(dataclasses.replace(SITE, engine=SiteEngine(fakeroot=True)))[0].fakeroot
