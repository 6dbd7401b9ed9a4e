from __future__ import annotations

import json
import platform
import re
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.cluster.model import Partition
from ctrain_runtime.images import trust
from samples import programs as fakes
from samples.estimates import TRAINING
from samples.layers import write_layer
from samples.plans import a_manifest
from samples.recordings import install_cluster
from samples.sample_images import sif, write_image, write_store

ARCH = platform.machine()
JOB = "command: [python, train.py]\nimage: pytorch\n"


@pytest.fixture
def machine(programs: Path, tmp_path: Path) -> Path:
    """A machine with an engine, Slurm, a store with one image (prod), a job folder and some broken things."""
    fakes.answer(programs, "apptainer", "apptainer version 1.4.5\n")
    install_cluster(programs, "24.11.5")
    fakes.answer(programs, "sinfo")
    write_store(tmp_path / "store", {}, channels={"pytorch_prod": "pytorch_24.12-hd-py3-r3.sif"})
    jobs = {
        "job": "",
        "data-job": "data: {dataset: imagenet}\n",
        "bad-job": "nodse: 2\n",
        "big-job": "resources: {gpus_per_node: 5000}\n",
        "rank-job": "env: {RANK: 3}\n",
        "layer-job": "layers: [no.sqsh]\n",
    }
    for name, extra in jobs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.yaml").write_text(JOB + extra)
        (tmp_path / name / "train.py").touch()
    (tmp_path / "bad.yaml").write_text("name: bad\nscheduler: slurm\nmpi: pmix\n")
    strict = "name: strict\nscheduler: local\nrequire_signature: true\ntrusted_keys: [{}]\n"
    (tmp_path / "strict.yaml").write_text(strict.format(tmp_path / "no.sif"))
    (tmp_path / "keyless.yaml").write_text(strict.format("/nowhere.pub"))
    (tmp_path / "no.sif").write_text("not an image")
    (tmp_path / "other").mkdir()
    write_image(tmp_path / "other", content=sif(b"99"))
    (tmp_path / "runs/taken").mkdir(parents=True)
    write_layer(tmp_path / "my.sqsh", a_manifest(), einops="0.8.2")
    write_layer(tmp_path / "old.sqsh", a_manifest(digest="sha256:01d", release=2))
    return tmp_path


def ctrain(*arguments: str) -> int:
    return main(RUNTIME_VERBS, ["run", *arguments])


LOCAL = ("--site", "local", "--store", "store")
SLURM = ("--dry-run", "--site", "generic-slurm", "--store", "store")


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        ((), 64, "no job or command given. Use: ctrain run JOB, or ctrain run -- COMMAND"),
        (("--",), 64, "no job or command given"),
        (("--nodes", "two"), 64, "argument --nodes: invalid int value: 'two'"),
        (("--nodse", "2"), 64, "unrecognized arguments: --nodse"),
        (("one", "two"), 64, "unrecognized arguments: two"),
        ((*LOCAL, "--", "hostname"), 64, "no image given. Pass --image NAME; list images with: ctrain images"),
        ((*LOCAL, "./job", "--nodes", "0"), 64, "--nodes must be at least 1, not 0"),
        ((*LOCAL, "./job", "--gpus-per-node", "-1"), 64, "--gpus-per-node must be at least 0, not -1"),
        ((*LOCAL, "./job", "--partition", "gpu"), 64, "site local has no partitions"),
        ((*LOCAL, "./job", "--env", "A-B"), 64, "--env 'A-B' is not NAME=VALUE or NAME. As in: --env NCCL_DEBUG=INFO"),
        ((*LOCAL, "./job", "--env", ""), 64, "--env '' is not NAME=VALUE or NAME"),
        ((*LOCAL, "./job", "--env", "RANK=3"), 64, "--env: RANK is set by ctrain for each rank. Remove it"),
        (
            (*LOCAL, "./job", "--env", "WORLD_SIZE"),
            64,
            "--env: WORLD_SIZE is set by ctrain for each rank. Remove it",
        ),
        ((*LOCAL, "./job", "--mount", ""), 64, "--mount '' is not SRC[:DST[:ro]]"),
        ((*LOCAL, "./job", "--data", "bad.yaml"), 71, "bad.yaml: not a directory, and not such an image. Data sets"),
        ((*LOCAL, "./job", "--stage-data"), 64, "--stage-data: the run has no data set. Pass --data FILE.sqfs"),
        ((*LOCAL, "--", "mpirun", "-np", "2", "train.py"), 64, "no image given"),
        ((*LOCAL, "--image", "pytorch", "--", "python", "trian.py"), 64, "trian.py not found in "),
        ((*LOCAL, "./job", "--mount", "/a:/b:x"), 64, "--mount '/a:/b:x' is not SRC[:DST[:ro]]"),
        ((*LOCAL, "./job", "--mount", "/a:b"), 64, "cannot mount 'b': not an absolute path"),
        ((*LOCAL, "./job", "--name", "../x"), 64, "invalid --name '../x'"),
        (
            (*LOCAL, "./job", "--runs", "runs", "--name", "taken"),
            64,
            "runs/taken already exists. Choose another --name",
        ),
        ((*SLURM, "./job", "--time", "soon"), 64, "invalid time limit 'soon'"),
        ((*LOCAL, "./job", "--time", "1:99:00"), 64, "invalid time limit '1:99:00'"),
        (
            (*LOCAL, "./job", "--layer", "old.sqsh"),
            64,
            "was built on pytorch 24.12-hd-r2 (sha256:01d), but the image is",
        ),
        ((*LOCAL, "resnet5"), 65, "unknown job 'resnet5'. Did you mean 'resnet50'? Jobs: "),
        ((*LOCAL, "./nowhere"), 65, "nowhere/job.yaml not found. A job is a directory"),
        ((*LOCAL, "./bad-job"), 65, "bad-job/job.yaml: unknown key 'nodse'"),
        ((*LOCAL, "./rank-job"), 65, "rank-job/job.yaml: env: RANK is set by ctrain for each rank"),
        ((*LOCAL, "./layer-job"), 65, "/layer-job/no.sqsh not found. Build it with: ctrain layer build"),
        ((*LOCAL, "./big-job"), 74, "/big-job/job.yaml: resources: gpus_per_node: 5000)"),
        (("--site", "./bad.yaml", "./job"), 66, "bad.yaml, line 3: mpi must be a list, not a string"),
        ((*LOCAL, "./job", "--runs", "$NOT_SET_ANYWHERE"), 66, "variable not set in '$NOT_SET_ANYWHERE'"),
        (("--site", "nowhere", "./job"), 67, "unknown site 'nowhere'. Sites: "),
        (
            ("--site", "./keyless.yaml", "--store", "store", "./job"),
            67,
            "file /nowhere.pub not found. Ask the administrators",
        ),
        (
            (*LOCAL, "./job", "--image", "pytroch"),
            68,
            "image 'pytroch' not found in store. Did you mean 'pytorch'? Available: pytorch",
        ),
        ((*LOCAL, "./job", "--image", "pytorch:dev"), 68, "image 'pytorch:dev' not found in store"),
        ((*LOCAL, "./job", "--image", "./x.sif"), 68, "image file x.sif not found"),
        (("--site", "local", "./job"), 68, "image 'pytorch' not found in any store (none configured)"),
        ((*LOCAL, "./job", "--image", "no.sif"), 69, "no.sif is not a SIF image. Build one with: ctrain build"),
        (
            (*LOCAL, "./job", "--image", "other/pytorch_24.12-hd-py3-r3.sif"),
            69,
            "is an unknown architecture, this machine is",
        ),
        (
            ("--site", "./strict.yaml", "--store", "store", "./job"),
            69,
            "is not signed by a key that site strict trusts. Ask its publisher to run: ctrain store sign",
        ),
        ((*LOCAL, "./job", "--layer", "x.sqsh"), 69, "cannot read layer x.sqsh: No such file or directory"),
        ((*LOCAL, "./job", "--layer", "no.sif"), 69, "no.sif is not a user layer: not a squashfs"),
        (
            (*LOCAL, "./data-job"),
            71,
            "site local has no data set 'imagenet', required by job data-job. Pass --data DIR",
        ),
        ((*LOCAL, "./data-job", "--data", "nowhere"), 71, "nowhere at /data: not found"),
        ((*LOCAL, "./job", "--mount", "/not/there"), 71, "cannot mount /not/there at"),
        ((*LOCAL, "./job", "--resume", "runs/taken"), 71, "run runs/taken has no checkpoint to resume from"),
        ((*LOCAL, "./job", "--runs", "runs", "--resume", "taken"), 71, "runs/taken has no checkpoint to resume from"),
        (("--site", "local", "--store", "job", "./job"), 76, "job is not a store: ctrain-store.json not found"),
        (("--site", "local", "--store", "nowhere", "./job"), 76, "nowhere does not exist"),
    ],
)
@pytest.mark.usefixtures("machine")
def test_what_can_not_run_is_one_line_and_leaves_nothing(
    arguments: tuple[str, ...], code: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctrain(*arguments) == code
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("ctrain: ")
    assert complaint in error
    assert error.count("\n") == 1
    assert [path.name for path in Path("runs").iterdir()] == ["taken"]
    assert not Path("ctrain-runs").exists()


@pytest.mark.usefixtures("machine")
def test_a_machine_without_an_engine_or_without_slurm(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (programs / "apptainer").unlink()
    assert ctrain(*LOCAL, "./job") == 73
    assert "neither apptainer nor singularity is on PATH" in capsys.readouterr().err
    (programs / "scontrol").unlink()
    assert ctrain(*SLURM[1:], "./job") == 72
    assert "not found on PATH. Load Slurm's module, or run here with --site local" in capsys.readouterr().err


@pytest.mark.parametrize("option", [("--nodes", "2"), ("--time", "1:00:00"), ("--partition", "gpu")])
def test_a_cluster_whose_commands_are_missing_is_no_laptop(
    machine: Path, programs: Path, option: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    (programs / "sinfo").unlink()
    assert ctrain("--store", "store", "./job", *option) == 72
    assert "no scheduler found on this machine, but --nodes, --time or --partition" in capsys.readouterr().err
    assert not (machine / "ctrain-runs").exists()


@pytest.fixture
def queue(machine: Path, programs: Path) -> Path:
    """The same with a partition of GPU nodes and one without, which are idle."""
    gpu = Partition("gpu", True, nodes=4, cpus=16, gpus=2, gpu_type="a100", time_limit=1440, arch=ARCH)
    cpu = Partition("cpu", False, nodes=2, cpus=8, gpus=0, arch=ARCH)
    fakes.slurm(programs, gpu, cpu)
    return machine


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("--comment", "a\nb"), 64, "sbatch option '--comment=a\\nb' holds a line break. Write it in one line"),
        (("--nodes", "99"), 74, "partition gpu has 4 usable nodes, 99 requested. Largest that fits: --nodes 4"),
        (("--gpus-per-node", "3"), 74, "a node of partition gpu has 2 GPUs, 3 requested. Largest that fits"),
        (("--partition", "x"), 74, "partition 'x' not found among those that are up. Available: gpu, cpu"),
        (("--time", "2-0"), 74, "partition gpu allows 1-00:00:00, 2-0 requested. Longest that fits: --time 1-00:00:00"),
    ],
)
def test_what_does_not_fit_the_cluster_is_refused(
    queue: Path, arguments: tuple[str, ...], code: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctrain("--site", "generic-slurm", "--store", "store", "./job", *arguments) == code
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert complaint in error
    assert not (queue / "ctrain-runs").exists()


def test_a_dry_run_shows_everything_and_makes_nothing(
    queue: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSED", "1")
    secret = ("--env", "A=b c", "--env", "MY_TOKEN=s3cret", "--env", "PASSED")
    assert ctrain(*SLURM, "./job", "--nodes", "2", "--name", "one", *secret) == 0
    shown = capsys.readouterr().out
    run = queue / "ctrain-runs/one"
    place = "which the program sees and changes in its place: code/ of the run (--live: none)"
    assert shown.splitlines()[:7] == [
        "site      generic-slurm (dry run: nothing is started)",
        "image     pytorch 24.12-hd-r3 (prod)  sha256:9f2c41d0a7e3",
        "where     2 x gpu: 2 GPUs per node, 8 cores per rank; 4 ranks, launcher env; limit 01:00:00",
        f"code      a copy of {queue}/job, {place}",
        "preflight NCCL on several nodes: some seconds; stops the job if it fails (--preflight off|warn|strict)",
        f"run       one  ->  {run}",
        "note      launcher env: the image has no MPI",
    ]
    for part in (f"command   sbatch --parsable {run}/job.sh", "env       A=b c", "--- job.sh", "--- task.sh"):
        assert part in shown
    assert "env       MY_TOKEN=***" in shown and "env       PASSED  (option: this shell's value)" in shown
    assert "s3cret" not in shown
    assert not run.parent.exists()


@pytest.fixture
def trainer(queue: Path) -> Path:
    """The job folder ./trainer, whose job.yaml says what it trains."""
    (queue / "trainer").mkdir()
    (queue / "trainer/job.yaml").write_text(JOB + TRAINING)
    (queue / "trainer/train.py").touch()
    return queue


@pytest.mark.usefixtures("trainer")
def test_a_training_is_estimated_before_anything_is_queued(capsys: pytest.CaptureFixture[str]) -> None:
    assert ctrain(*SLURM, "./trainer", "--estimate", "--nodes", "2", "--", "batch=128") == 0
    memory, time, *_ = [line for line in capsys.readouterr().out.splitlines() if line.startswith("estimate")]
    assert memory.startswith("estimate  124,438,272 parameters; ")
    assert " GB per rank of 39.5 GB usable: parameters 249 MB, gradients 498 MB, optimizer 1.5 GB, " in memory
    assert re.fullmatch(
        r"estimate  [\d.]+ ms \([\d.]+ m?s to [\d.]+ m?s\) per step on A100-SXM4-40GB; "
        r"1000 steps: [\dmins. ]+, [\d.]+ GPU hours",
        time,
    )
    plan = plan_of(capsys, "--estimate", *SLURM[1:], "./trainer")
    assert (plan["checks"]["estimate"]["gpu"], plan["checks"]["estimate"]["steps"]) == ("A100-SXM4-40GB", 1000)
    assert plan_of(capsys, *SLURM[1:], "./trainer")["checks"]["estimate"] is None


@pytest.mark.usefixtures("trainer")
@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("./trainer", "--", "width=76800"), 74, "job trainer does not fit: "),
        (("./trainer", "--", "batch=3"), 64, "job trainer cannot be estimated: batch 3 is not a multiple of dp 2"),
        (("./job",), 64, "job job cannot be estimated: it does not say what it trains. Add `training` to its job.yaml"),
        (("--image", "pytorch", "--", "true"), 64, "job true cannot be estimated: it does not say what it trains"),
    ],
)
def test_the_hopeless_is_refused_before_anything_is_queued(
    arguments: tuple[str, ...], code: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in ("run", "submit"):
        words = ("--site", "generic-slurm", "--store", "store", "--estimate", *arguments)
        assert main(RUNTIME_VERBS, [verb, *words]) == code
        out, error = capsys.readouterr()
        assert (out, error.count("\n")) == ("", 1)
        assert error.startswith(f"ctrain: {complaint}")
    assert not Path("ctrain-runs").exists()


def test_a_job_that_sbatch_rejects_leaves_nothing(
    queue: Path, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fakes.answer(programs, "sbatch", error="sbatch: error: Batch job submission failed: No\n", code=1)
    assert ctrain("--site", "generic-slurm", "--store", "store", "./job", "--name", "one") == 72
    assert "ctrain: sbatch rejected the job: No. Change the request, or check with: sinfo" in capsys.readouterr().err
    assert list((queue / "ctrain-runs").iterdir()) == []


def plan_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert ctrain("--dry-run", "--json", *arguments) == 0  # before a -- among the arguments
    out, error = capsys.readouterr()
    assert error == ""
    data = json.loads(out)["plan"]
    assert isinstance(data, dict)
    return data


def test_options_and_variables_of_the_user(
    machine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CTRAIN_SITE", "local")
    monkeypatch.setenv("CTRAIN_STORE", str(machine / "store"))
    monkeypatch.setenv("CTRAIN_RUNS", "here")
    (machine / "data").mkdir()
    plan = plan_of(capsys, "./job", "--data", "data", "--mount", "data:/d:ro", "--", "--lr", "0.1", "--", "x")
    assert (plan["site"], plan["program"]["command"]) == ("local", ["python", "train.py", "--lr", "0.1", "--", "x"])
    assert Path(plan["run_directory"]).parent == machine / "here"
    assert [(mount["source"], mount["target"]) for mount in plan["mounts"]["paths"]] == [
        (f"{machine}/data", "/d"),
        (f"{plan['run_directory']}/code", f"{machine}/job"),
        (f"{machine}/data", "/data"),
        (plan["run_directory"], plan["run_directory"]),
    ]
    assert plan_of(capsys, "./job", "--runs", "there")["run_directory"].startswith(f"{machine}/there/job-")
    assert plan_of(capsys, "./job", "--site", "generic-slurm")["scheduler"] == "slurm"


def test_a_command_of_ones_own(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (machine / "train.py").touch()
    plan = plan_of(capsys, *LOCAL, "--image", "pytorch", "--", "python", "train.py", "--nodes", "3")
    assert (plan["job"], plan["size"]["nodes"], plan["program"]["workdir"]) == ("train", 1, str(machine))
    assert plan["program"]["command"] == ["python", "train.py", "--nodes", "3"]


def test_the_image_of_a_loaded_module(
    machine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CTRAIN_IMAGE comes before the job's images, after --image; the first lines and errors say where it is from."""
    write_image(machine / "store", name="other")
    monkeypatch.setenv("CTRAIN_IMAGE", "other:24.12-hd-r3")
    assert plan_of(capsys, *LOCAL, "./job")["image"]["name"] == "other"
    assert plan_of(capsys, *LOCAL, "--", "hostname")["image"]["name"] == "other"
    assert plan_of(capsys, *LOCAL, "./job", "--image", "pytorch")["image"]["name"] == "pytorch"
    assert ctrain(*LOCAL, "./job", "--dry-run") == 0
    assert "\nimage     other 24.12-hd-r3  sha256:9f2c41d0a7e3 (from CTRAIN_IMAGE)\n" in capsys.readouterr().out
    monkeypatch.setenv("CTRAIN_IMAGE", "gone:1")
    assert ctrain(*LOCAL, "./job") == 68
    assert "image 'gone:1' not found in store (from CTRAIN_IMAGE). Available: " in capsys.readouterr().err
    assert ctrain(*LOCAL, "./job", "--image", "pytorch", "--dry-run") == 0
    assert "CTRAIN_IMAGE" not in capsys.readouterr().out
    monkeypatch.setenv("CTRAIN_IMAGE", "")
    assert plan_of(capsys, *LOCAL, "./job")["image"]["name"] == "pytorch"


def test_an_image_by_path_needs_no_store(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = machine / "store/pytorch_24.12-hd-py3-r3.sif"
    plan = plan_of(capsys, "--site", "neuron", "--image", str(image), "--runs", "runs", "--", "hostname")
    assert (plan["image"]["path"], plan["placement"]["settings"]) == (
        str(image),
        {"comment": "field=efficientai;appl=pytorch"},
    )


def test_user_layers_of_the_job_and_of_the_command_line(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (machine / "layered").mkdir()
    (machine / "layered/job.yaml").write_text(JOB + "layers: [own.sqsh]\n")
    (machine / "layered/train.py").touch()
    write_layer(machine / "layered/own.sqsh", a_manifest(), timm="1.0.31")
    plan = plan_of(capsys, *LOCAL, "./layered", "--layer", "my.sqsh")
    assert [layer["path"] for layer in plan["image"]["layers"]] == [f"{machine}/layered/own.sqsh", f"{machine}/my.sqsh"]
    assert ctrain("--dry-run", *LOCAL, "./job", "--layer", "my.sqsh") == 0
    said = capsys.readouterr().out
    assert f"\nlayer     {machine}/my.sqsh  {plan['image']['layers'][1]['digest'][:19]}\n" in said


def test_a_site_that_requires_signatures_requires_those_of_user_layers(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trust, "require_trusted", lambda *_: None)
    assert ctrain("--dry-run", "--site", "./strict.yaml", "--store", "store", "./job") == 0
    assert ctrain("--dry-run", "--site", "./strict.yaml", "--store", "store", "./job", "--layer", "my.sqsh") == 69
    assert f"layer {machine}/my.sqsh is not signed by a key that site strict trusts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "banner", "why"),
    [
        ("apptainer", "apptainer version 1.4.5", "overlay is off"),
        ("singularity", "singularity-ce version 4.5.1", "it is not set-uid root, or its user is root"),
    ],
)
def test_an_engine_that_ignores_layers(
    name: str, banner: str, why: str, machine: Path, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (programs / "apptainer").unlink()
    fakes.answer(programs, name, "started\n", version=f"{banner}\n")
    assert ctrain("--dry-run", *LOCAL, "./job") == 73
    error = capsys.readouterr().err
    assert f"{name} does not mount overlay partitions here (overlay " in error and f"{why}), and no flat" in error
    assert "ctrain publish IMAGE --flatten" in error
    write_image(machine / "store", flat=True, digest="sha256:f1a7")
    assert ctrain("--dry-run", *LOCAL, "./job") == 0
    assert capsys.readouterr().out.splitlines()[1] == (
        "image     pytorch 24.12-hd-r3-flat (prod)  sha256:f1a7,"
        " flattened, in place of 24.12-hd-r3: this engine ignores overlay partitions"
    )


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("options", [(), ("--json",), ("--dry-run", "--json")])
def test_full_belongs_to_the_text_of_a_dry_run(options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert ctrain("--full", *options, *LOCAL, "./job") == 64
    assert "--full belongs to the text of a dry run. Pass --dry-run --full, without --json" in capsys.readouterr().err
    assert ctrain("--full", "--dry-run", *LOCAL, "./job") == 0
    assert "\n--- ctrain.bash\n" in capsys.readouterr().out
