from __future__ import annotations

import dataclasses
import os
import platform
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime import remote
from ctrain_runtime.errors import (
    CtrainError,
    DataError,
    ImageNotFound,
    ImageUnusable,
    JobError,
    RegistryError,
    ResourceError,
    SchedulerError,
    UsageError,
)
from ctrain_runtime.facts import Allocation, Cluster, Partition
from ctrain_runtime.job import Resources
from ctrain_runtime.manifest import Requires
from ctrain_runtime.plan.model import LaunchPlan, Options
from ctrain_runtime.pull import Meaning
from ctrain_runtime.registry.http_client import Unreachable
from ctrain_runtime.run.prepare import Prepared, Request, make_size_request, prepare, read_options
from ctrain_runtime.site import select_site
from samples import programs as fakes
from samples.plans import a_job
from samples.sample_images import sif, write_image, write_store

HERE = platform.machine()
GPU = Partition("gpu", True, nodes=4, cpus=16, gpus=2, gpu_type="a100", time_limit=1440, arch=HERE)


@pytest.fixture(autouse=True)
def machine(programs: Path, tmp_path: Path) -> Path:
    """A machine with an engine, Slurm, a store with the image pytorch, and the job ./job."""
    fakes.answer(programs, "apptainer", "apptainer version 1.4.5\n")
    fakes.slurm(programs, GPU)
    write_store(tmp_path / "store", {}, channels={"pytorch_prod": "pytorch_24.12-hd-py3-r3.sif"})
    (tmp_path / "job").mkdir()
    (tmp_path / "job/job.yaml").write_text("command: [python, train.py]\nimage: pytorch\nlauncher: env\n")
    (tmp_path / "job/train.py").touch()
    return tmp_path


def asked(site: str = "generic-slurm", options: Any = None, **parts: Any) -> Request:
    """A request for ./job on a site, with these options of a plan; or for a command, with an image."""
    reference = "" if "image" in parts and "command" in parts else "./job"
    selected = select_site(site, {"store": "store"})
    return Request(selected, **{"reference": reference, "options": Options(**(options or {})), **parts})


def plan_of(*arguments: Any, **parts: Any) -> LaunchPlan:
    return prepare(asked(*arguments, **parts)).launch.plan


def test_a_launch_is_complete_and_nothing_is_left(machine: Path) -> None:
    before = sorted(machine.rglob("*"))
    prepared = prepare(asked(name="one", options={"nodes": 2}))
    assert isinstance(prepared, Prepared)
    assert (prepared.notes, prepared.image_source) == ((), "")
    assert prepared.launch.plan.run_directory == f"{machine}/ctrain-runs/one"
    assert {"job.sh", "task.sh"} <= set(prepared.launch.scripts)
    assert prepared.launch.argv[0] == "sbatch"
    calls = {machine / "programs" / f"{name}.calls" for name in ("srun", "scontrol", "apptainer")}
    changed = {path for path in set(machine.rglob("*")) - set(before) if machine / "cache" not in (path, *path.parents)}
    assert changed <= calls  # nothing was submitted, nothing written


def test_the_command_line_comes_before_torchrun_and_that_before_the_job() -> None:
    command = ("torchrun", "--nnodes", "3", "--nproc-per-node", "2", "--max-restarts", "5", "train.py", "--lr", "1")
    request = asked(command=command, image="pytorch")
    Path("train.py").touch()
    prepared = prepare(request)
    plan = prepared.launch.plan
    assert (plan.launcher, plan.command) == ("torchrun", ("python", "train.py", "--lr", "1"))
    assert (plan.nodes, plan.ranks_per_node) == (3, 2)
    assert prepared.notes == ("--max-restarts of torchrun has no effect here",)
    plan = plan_of(command=command, image="pytorch", options={"nodes": 1, "ranks_per_node": 1, "launcher": "env"})
    assert (plan.launcher, plan.nodes, plan.ranks_per_node) == ("env", 1, 1)
    assert plan.command == ("python", "train.py", "--lr", "1")


@pytest.mark.parametrize(
    ("command", "launcher", "size", "program"),
    [
        ("mpirun -np 4 python train.py", "mpi", (2, 2), "python train.py"),
        ("horovodrun -np 8 -H a:4,b:4 python train.py", "gloo", (2, 4), "python train.py"),
        ("accelerate launch --num_processes 8 train.py", "env", (2, 4), "python train.py"),
        (
            "deepspeed --num_gpus 2 train.py --lr 1",
            "env",
            (2, 2),
            '/bin/sh -c exec "$@" --local_rank="$LOCAL_RANK" deepspeed python train.py --lr 1',
        ),
    ],
)
def test_ranks_of_other_launchers_are_spread_over_the_nodes(
    command: str, launcher: str, size: tuple[int, int], program: str
) -> None:
    Path("train.py").touch()
    plan = plan_of(command=tuple(command.split()), image="pytorch", options={"nodes": 2})
    assert (plan.launcher, (plan.nodes, plan.ranks_per_node), " ".join(plan.command)) == (launcher, size, program)


def test_ranks_that_cannot_be_spread_evenly() -> None:
    with pytest.raises(UsageError, match=r"^5 ranks cannot be spread evenly over 2 nodes\. Pass --nodes N and "):
        plan_of(command=("mpirun", "-np", "5", "./app"), image="pytorch", options={"nodes": 2})
    size = {"nodes": 1, "ranks_per_node": 3}
    assert plan_of(command=("mpirun", "-np", "5", "./app"), image="pytorch", options=size).world_size == 3


def test_variables_of_mpirun_come_before_those_of_the_command_line() -> None:
    command = ("mpirun", "-x", "A=1", "-x", "B=1", "-x", "MY_TOKEN", "./app")
    plan = plan_of(command=command, image="pytorch", options={"env": ("B=2",)})
    assert (plan.environment["A"], plan.environment["B"], plan.passed) == ("1", "2", ("MY_TOKEN",))


def test_an_option_that_cannot_be_translated_is_left_to_one_rank() -> None:
    Path("train.py").touch()
    command = ("accelerate", "launch", "--use_fsdp", "train.py")
    with pytest.raises(UsageError, match=r"ctrain has no equivalent of --use_fsdp"):
        plan_of(command=command, image="pytorch", options={"nodes": 2})
    assert plan_of(command=command, image="pytorch", options={"ranks_per_node": 1}).command == command


def test_the_launcher_is_proposed_and_the_reason_noted(machine: Path) -> None:
    Path("train.py").write_text("import horovod.torch as hvd\n")
    prepared = prepare(asked(command=("python", "train.py"), image="pytorch"))
    assert prepared.launch.plan.launcher == "gloo"  # this image records no MPI
    assert prepared.notes == ("launcher gloo: train.py imports horovod, and the image has no MPI",)
    with pytest.raises(UsageError, match=r"^train.py imports horovod: with launcher env each of 4 ranks would train"):
        plan_of(command=("python", "train.py"), image="pytorch", options={"nodes": 2, "launcher": "env"})
    write_image(machine / "store", name="with-mpi", software={"mpi": "Open MPI 4.1.4"})
    prepared = prepare(asked(command=("hostname",), image="with-mpi"))
    assert (prepared.launch.plan.launcher, prepared.notes) == ("mpi", ("launcher mpi: the image has MPI",))


def test_a_program_that_is_missing_is_noticed_behind_a_launcher() -> None:
    with pytest.raises(UsageError, match=r"^trian.py not found in "):
        plan_of(command=("deepspeed", "trian.py"), image="pytorch")


@pytest.mark.parametrize("command", [(), ("",), ("", "x")])
def test_without_job_and_command_there_is_nothing_to_run(command: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"^no job or command given"):
        plan_of(command=command, image="pytorch")


def test_arguments_go_to_the_job_they_are_not_a_command() -> None:
    plan = plan_of(command=("--lr", "0.1", ""))
    assert plan.command == ("python", "train.py", "--lr", "0.1", "")


def test_where_an_image_comes_from(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image(machine / "store", name="other")
    monkeypatch.setenv("CTRAIN_IMAGE", "other")
    prepared = prepare(asked())
    assert (prepared.launch.plan.image.name, prepared.image_source) == ("other", " (from CTRAIN_IMAGE)")
    prepared = prepare(asked(image="pytorch"))
    assert (prepared.launch.plan.image.name, prepared.image_source) == ("pytorch", "")
    monkeypatch.setenv("CTRAIN_IMAGE", "gone")
    with pytest.raises(ImageNotFound, match=r"^image 'gone' not found in .*store \(from CTRAIN_IMAGE\)\. Available: "):
        prepare(asked())


def test_a_name_that_is_a_directory_here_is_still_looked_up_in_stores(machine: Path) -> None:
    (machine / "box").mkdir()
    with pytest.raises(
        ImageNotFound, match=r"^image 'box' not found.*\. For the path in this directory: --image \./box$"
    ):
        prepare(asked(image="box"))


def test_an_empty_channel_is_none() -> None:
    assert plan_of(image="pytorch:").image.channel == "prod"


def test_an_image_by_path_needs_no_store(machine: Path) -> None:
    shutil.move(machine / "store", machine / "moved")
    path = machine / "moved/pytorch_24.12-hd-py3-r3.sif"
    assert plan_of(image=str(path)).image.path == str(path)


def test_the_image_is_for_the_nodes_not_for_the_login_node(machine: Path, programs: Path) -> None:
    nodes = dataclasses.replace(GPU, arch="riscv64")
    fakes.slurm(programs, nodes)
    with pytest.raises(ImageUnusable, match=r"does not fit: partition gpu is riscv64, the image is for amd64"):
        prepare(asked())
    write_image(machine / "store", content=sif(b"04"), arch="arm64", digest="sha256:a7")
    fakes.slurm(programs, dataclasses.replace(GPU, arch="aarch64"))
    assert plan_of().image.digest == "sha256:a7"
    with pytest.raises(ImageUnusable, match=r"does not fit: this machine is .*, the image is for arm64"):
        prepare(asked("local"))


@pytest.mark.parametrize("option", [{"nodes": 2}, {"time": "1:00"}, {"partition": "gpu"}])
def test_a_cluster_without_its_commands_is_not_taken_for_a_laptop(option: dict[str, Any], programs: Path) -> None:
    (programs / "sinfo").unlink()
    with pytest.raises(SchedulerError, match=r"^no scheduler found on this machine, but "):
        plan_of("", option)
    assert plan_of("", {"nodes": 1}).scheduler == "local"
    if "partition" not in option:
        assert plan_of("local", option).scheduler == "local"  # asked for by name


@pytest.mark.parametrize(
    ("parts", "error", "complaint"),
    [
        ({"reference": "resnet5"}, JobError, "unknown job 'resnet5'"),
        ({"reference": "./nowhere"}, JobError, "/.*/nowhere/job.yaml not found"),
        ({"options": {"nodes": 5}}, ResourceError, "partition gpu has 4 usable nodes, 5 requested"),
        ({"options": {"time": "2-0"}}, ResourceError, "partition gpu allows 1-00:00:00, 2-0 requested"),
        ({"options": {"mounts": ("/not/there",)}}, DataError, "cannot mount /not/there at /not/there: not found"),
        ({"options": {"data": "/not/there"}}, DataError, "cannot mount /not/there at /data: not found"),
        ({"resume": "gone"}, DataError, "run /.*/ctrain-runs/gone has no checkpoint to resume from"),
        ({"resume": "./gone"}, DataError, "run gone has no checkpoint to resume from"),
        ({"layers": (Path("no.sqsh"),)}, ImageUnusable, "cannot read layer no.sqsh"),
        ({"name": "a/b"}, UsageError, "invalid --name 'a/b'"),
        ({"image": "@"}, ImageNotFound, "image '@' not found"),
        ({"image": ":prod"}, ImageNotFound, "image ':prod' not found"),
        ({"image": "../store/pytorch"}, ImageNotFound, "image file ../store/pytorch not found"),
    ],
)
def test_what_is_refused(parts: dict[str, Any], error: type[CtrainError], complaint: str, machine: Path) -> None:
    with pytest.raises(error, match=f"^{complaint}"):
        prepare(asked(**parts))
    assert not (machine / "ctrain-runs").exists()


def test_resume_takes_a_run_by_name_or_path(machine: Path) -> None:
    for parent in ("ctrain-runs", "elsewhere"):
        (machine / parent / "old/checkpoint").mkdir(parents=True)
        (machine / parent / "old/checkpoint/step-1.pt").touch()
    assert plan_of(resume="old").resume == f"{machine}/ctrain-runs/old/checkpoint"
    assert plan_of(resume="elsewhere/old").resume == f"{machine}/elsewhere/old/checkpoint"
    assert "CTRAIN_RESUME" in plan_of(resume="old").environment


ENGINE = """\
#!/bin/bash
echo "$*" >>{calls}
case $* in
  --version) echo apptainer version 1.4.5 ;;
  *pull*) /bin/cp {source} "$3" ;;
  *inspect*) echo '{{"data": {{"attributes": {{"labels": {{}}}}}}}}' ;;
  *exec*) echo 'glibc 2.36'; echo '{{"python": "3.11.2", "cuda": "12.6"}}' ;;
  *) exit 255 ;;
esac
"""
REFERENCE = "docker://r.example/team/train:1"


class FakeRegistry:
    """What references mean; it cannot be reached at first."""

    def __init__(self) -> None:
        self.meanings: dict[str, Meaning] = {}
        self.error: CtrainError = Unreachable("r.example cannot be reached: gone")
        self.asked = 0

    def resolve(self, reference: str) -> Meaning:
        self.asked += 1
        if reference not in self.meanings:
            raise self.error
        return self.meanings[reference]

    def push(self, reference: str, letter: str) -> None:
        """Let `reference` mean the image whose digest is made of this letter."""
        digest = f"sha256:{letter * 64}"
        name = f"docker://r.example/team/train@{digest}"
        self.meanings[reference] = Meaning(digest, f"oci-sha256-{letter * 64}-x.sif", name)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> FakeRegistry:
    fake = FakeRegistry()
    monkeypatch.setattr(remote, "resolve", fake.resolve)
    return fake


@pytest.fixture
def foreign(machine: Path, programs: Path, registry: FakeRegistry) -> Path:
    """The path of an image that ctrain did not build; references are pulled as it."""
    assert registry
    path = machine / "foreign.sif"
    path.write_bytes(sif())
    fakes.write_program(programs / "apptainer", ENGINE.format(calls=machine / "engine", source=path))
    return path


def test_an_image_that_ctrain_did_not_build(foreign: Path) -> None:
    prepared = prepare(asked(image="./foreign.sif", options={"nodes": 2}))
    planned = prepared.launch.plan.image
    assert (planned.name, planned.version, planned.marker, planned.cuda) == ("foreign.sif", "", "", True)
    assert (planned.path, planned.digest) == (str(foreign), f"sha256:{sha256(sif()).hexdigest()}")
    contents = "contents cuda 12.6, glibc 2.36, python 3.11.2"
    assert prepared.notes == (
        f"foreign.sif is untested: ctrain did not build it; {contents}",
        "not compared with partition gpu: the driver, the image's GPU code",
    )


def test_an_image_that_does_not_fit_the_nodes_names_one_that_does(machine: Path, programs: Path) -> None:
    requires = Requires(arch=("7.5", "8.0"))
    write_image(machine / "store", tag="25.04", release=1, requires=requires, published="2026-11-20T01:02:03Z")
    fakes.slurm(programs, dataclasses.replace(GPU, gpu_type="v100"))
    with pytest.raises(ImageUnusable) as caught:
        prepare(asked(image="pytorch:25.04-hd-r1"))
    assert caught.value.message == (
        "image pytorch 25.04-hd-r1 does not fit: GPU V100 (compute capability 7.0)"
        " is older than the image's GPU code (7.5 8.0)"
    )
    assert caught.value.hint == "Nearest image that fits: --image pytorch:24.12-hd-r3"
    assert plan_of(image="pytorch:25.04-hd-r1", options={"gpus_per_node": 0}).gpus_per_node == 0


def test_the_driver_of_a_partition_is_the_sites_word(foreign: Path) -> None:
    Path("old.yaml").write_text(
        "name: old\nextends: generic-slurm\npartitions: {gpu: {nodes: 4, cpus: 16, driver: 470.57.02}}\n"
    )
    problem = "CUDA 12.6 needs driver 525 or newer, partition gpu has 470.57.02"
    with pytest.raises(ImageUnusable, match=f"{problem}, and the image has no libraries for forward compatibility"):
        prepare(asked("./old.yaml", image=str(foreign)))
    prepared = prepare(asked("./old.yaml", image="pytorch"))
    note = "CUDA 12.6 needs driver 525, partition gpu has 470.57.02: it runs by forward compatibility"
    assert prepared.notes == (note,)
    assert prepared.launch.plan.image.native_driver == 525


def test_a_sandbox_is_not_staged(foreign: Path) -> None:
    (foreign.parent / "box/.singularity.d").mkdir(parents=True)
    Path("staging.yaml").write_text("name: staging\nextends: generic-slurm\nstaging: /local\n")
    plan = plan_of("./staging.yaml", image="./box")
    assert (plan.image.path, plan.image.digest, plan.staging) == (str(foreign.parent / "box"), "", "")
    assert plan_of("./staging.yaml", image="./foreign.sif").staging == "/local"


def test_a_reference_is_pulled_into_the_cache_of_the_site_or_the_user(foreign: Path) -> None:
    reported: list[str] = []
    request = asked(image=REFERENCE, report=lambda what, _: reported.append(what))
    plan = prepare(request).launch.plan
    digest = sha256(sif()).hexdigest()
    assert plan.image.path == str(foreign.parent / f"cache/ctrain/images/sha256-{digest}.sif")
    assert (plan.image.name, plan.image.digest) == (REFERENCE, f"sha256:{digest}")
    assert f"pulling {REFERENCE}" in reported
    notes = prepare(request).notes
    unknown = f"{REFERENCE} was pulled before; whether it has moved is unknown: r.example cannot be reached: gone"
    assert unknown in notes
    foreign.write_bytes(sif(data=b"newer"))
    assert prepare(asked(image=REFERENCE)).launch.plan.image.digest == f"sha256:{digest}"
    again = prepare(asked(image=REFERENCE, pull=True)).launch.plan.image.digest
    assert again == f"sha256:{sha256(foreign.read_bytes()).hexdigest()}"
    other, shared = f"{REFERENCE}-other", foreign.parent / "shared"
    Path("shared.yaml").write_text(f"name: shared\nextends: generic-slurm\nimage_cache: {shared}\n")
    assert plan_of("./shared.yaml", image=REFERENCE).image.digest == again, "the user's own is found first"
    assert plan_of("./shared.yaml", image=other).image.path.startswith(f"{foreign.parent}/cache/"), "it does not exist"
    shared.mkdir()
    other = f"{REFERENCE}-third"
    assert plan_of("./shared.yaml", image=other).image.path.startswith(f"{shared}/sha256-")
    assert plan_of("./shared.yaml", image=other).image.path.startswith(f"{shared}/sha256-")


def pulls(foreign: Path) -> list[str]:
    """What the engine pulled, in order."""
    calls = (foreign.parent / "engine").read_text().splitlines()
    return [line.split()[-1] for line in calls if line.startswith("pull ")]


def test_a_moved_tag_is_noticed_and_followed_when_asked_to(foreign: Path, registry: FakeRegistry) -> None:
    registry.push(REFERENCE, "a")
    first = prepare(asked(image=REFERENCE))
    assert prepare(asked(image=REFERENCE)).notes == first.notes
    foreign.write_bytes(sif(data=b"newer"))
    registry.push(REFERENCE, "b")
    still = prepare(asked(image=REFERENCE))
    assert f"{REFERENCE} has moved since it was pulled; --pull pulls what it means now" in still.notes
    assert still.launch.plan.image.digest == first.launch.plan.image.digest
    moved = plan_of(image=REFERENCE, pull=True).image.digest
    assert moved != first.launch.plan.image.digest
    assert pulls(foreign) == [f"docker://r.example/team/train@sha256:{letter * 64}" for letter in "ab"]
    assert plan_of(image=REFERENCE, pull=True).image.digest == moved
    assert len(pulls(foreign)) == 2, "it has not moved again"
    assert "has moved" not in str(prepare(asked(image=REFERENCE)).notes)


def test_one_image_of_two_names_is_pulled_once(foreign: Path, registry: FakeRegistry) -> None:
    other = f"{REFERENCE}-other"
    for reference in (REFERENCE, other):
        registry.push(reference, "a")
    first, second = (plan_of(image=reference).image for reference in (REFERENCE, other))
    assert (first.path, first.name, second.name) == (second.path, REFERENCE, other)
    assert len(pulls(foreign)) == 1
    registry.meanings.clear()
    assert plan_of(image=other).image.path == first.path, "both names are known without the registry"


def test_a_reference_by_digest_is_asked_once(foreign: Path, registry: FakeRegistry) -> None:
    reference = f"docker://r.example/team/train@sha256:{'a' * 64}"
    registry.push(reference, "a")
    for _ in range(2):
        assert plan_of(image=reference).image.name == reference
    assert (registry.asked, len(pulls(foreign))) == (1, 1)


def test_a_registry_that_refuses_ends_a_run_only_if_it_is_needed(foreign: Path, registry: FakeRegistry) -> None:
    registry.error = RegistryError("r.example/team/train has no tag 1", "It has 2")
    with pytest.raises(RegistryError, match=r"^r.example/team/train has no tag 1. It has 2$"):
        prepare(asked(image=REFERENCE))
    assert not (foreign.parent / "engine").exists() or not pulls(foreign)
    registry.push(REFERENCE, "a")
    prepare(asked(image=REFERENCE))
    registry.meanings.clear()
    assert "is unknown: r.example/team/train has no tag 1" in str(prepare(asked(image=REFERENCE)).notes)
    with pytest.raises(RegistryError):
        prepare(asked(image=REFERENCE, pull=True))


@pytest.mark.parametrize("known", [True, False])
def test_a_dry_run_pulls_nothing_and_says_what_it_cannot_know(
    foreign: Path, registry: FakeRegistry, known: bool
) -> None:
    if known:
        registry.push(REFERENCE, "a")
    Path("signed.yaml").write_text("name: signed\nextends: generic-slurm\nrequire_signature: true\n")
    cache = foreign.parent / "cache/ctrain/images"
    prepared = prepare(asked("./signed.yaml", image=REFERENCE, dry_run=True))
    named = f"{REFERENCE} (sha256:aaaaaaaaaaaa)" if known else REFERENCE
    note = f"{named} would be pulled into {cache}; until then nothing of it is known or checked"
    assert note in prepared.notes
    image = prepared.launch.plan.image
    assert (image.name, image.digest, image.cuda) == (REFERENCE, "", True)
    assert not cache.exists()
    pulled = plan_of(image=REFERENCE).image.path
    assert Path(image.path).resolve() == Path(pulled)
    for again in (False, known):
        later = prepare(asked(image=REFERENCE, dry_run=True, pull=again))
        assert later.launch.plan.image.path == pulled, "what is pulled is used"
    assert len(pulls(foreign)) == 1


def test_the_image_that_others_have_pulled_is_used_where_it_is(foreign: Path, registry: FakeRegistry) -> None:
    shared = foreign.parent / "shared"
    shared.mkdir()
    Path("shared.yaml").write_text(f"name: shared\nextends: generic-slurm\nimage_cache: {shared}\n")
    registry.push(REFERENCE, "a")
    first = plan_of("./shared.yaml", image=REFERENCE).image.path
    Path("gone.yaml").write_text(f"name: gone\nextends: generic-slurm\nimage_cache: {foreign.parent}/other\n")
    assert plan_of("./gone.yaml", image=REFERENCE).image.path.startswith(f"{foreign.parent}/cache/")
    assert first.startswith(f"{shared}/sha256-")


@pytest.mark.parametrize("image", ["./foreign.sif", REFERENCE, "./box"])
def test_a_site_that_allows_only_images_of_its_stores(foreign: Path, image: str) -> None:
    (foreign.parent / "box/.singularity.d").mkdir(parents=True)
    Path("strict.yaml").write_text("name: strict\nextends: generic-slurm\nimages: store\n")
    refused = r"^site strict runs only images of its stores, not .* \(.*strict.yaml.*\). List them with: ctrain images"
    with pytest.raises(ImageUnusable, match=refused):
        prepare(asked("./strict.yaml", image=image))
    assert not (foreign.parent / "engine").exists(), "nothing was pulled or run"
    inside = str(foreign.parent / "store/pytorch_24.12-hd-py3-r3.sif")
    assert plan_of("./strict.yaml", image=inside).image.version == "24.12-hd-r3"
    assert plan_of("./strict.yaml", image="pytorch").image.version == "24.12-hd-r3"
    Path(inside).with_suffix(".json").unlink()
    with pytest.raises(ImageUnusable, match=refused):  # retired, or never published
        prepare(asked("./strict.yaml", image=inside))


@pytest.mark.parametrize(
    ("image", "complaint"),
    [
        ("./foreign.sif", r"^image .*foreign.sif is not signed .* Ask its publisher to run: apptainer sign "),
        (REFERENCE, r"^image .*sha256-.*.sif is not signed"),
        ("./box", r"requires signatures, and sandbox .*/box cannot have one. Pack it as a .sif$"),
    ],
)
def test_signatures_are_required_of_them_too_before_anything_of_them_runs(
    foreign: Path, image: str, complaint: str
) -> None:
    (foreign.parent / "box/.singularity.d").mkdir(parents=True)
    Path("signed.yaml").write_text(
        f"name: signed\nextends: generic-slurm\nrequire_signature: true\ntrusted_keys: [{'A' * 40}]\n"
    )
    with pytest.raises(ImageUnusable, match=complaint):
        prepare(asked("./signed.yaml", image=image))
    assert " exec " not in (foreign.parent / "engine").read_text()


def test_a_current_directory_that_was_deleted(machine: Path) -> None:
    """The operating system's error; the command line turns it into one line."""
    request = asked(command=("hostname",), image=str(machine / "store/pytorch_24.12-hd-py3-r3.sif"))
    (machine / "gone").mkdir()
    os.chdir(machine / "gone")
    (machine / "gone").rmdir()
    with pytest.raises(FileNotFoundError):
        prepare(request)


ALLOCATION = Allocation("37", nodes=3, partition="gpu", cpus=16, gpus=2)
DEFAULTS = Resources(nodes=2, gpus_per_node=1, ranks_per_node=4, time="2:00:00")


@pytest.mark.parametrize(
    ("options", "cluster", "expected"),
    [
        ({}, Cluster(), (2, 1, 4, "2:00:00", False)),
        ({"nodes": 1, "gpus_per_node": 0}, Cluster(), (1, 0, 4, "2:00:00", False)),
        ({"time": "1:00"}, Cluster(), (2, 1, 4, "1:00", True)),
        ({}, Cluster(allocation=ALLOCATION), ("auto", 1, 4, "2:00:00", False)),
        ({"nodes": 2, "ranks_per_node": 1}, Cluster(allocation=ALLOCATION), (2, 1, 1, "2:00:00", False)),
    ],
)
def test_the_size_that_is_asked_for(options: dict[str, Any], cluster: Cluster, expected: tuple[Any, ...]) -> None:
    size = make_size_request(Options(**options), a_job(resources=DEFAULTS), cluster)
    assert (size.nodes, size.gpus_per_node, size.ranks_per_node, size.time, size.time_is_explicit) == expected


@pytest.mark.parametrize(
    ("options", "short", "expected"),
    [
        (("--partition=a", "-pb"), {"-p": "partition"}, {"partition": "b"}),
        (("-w gpu[1-2]", "--account=it's"), {"-w": "nodelist"}, {"nodelist": "gpu[1-2]", "account": "it's"}),
        (("-q long", "--exclusive", "word"), {"-q": "partition"}, {"partition": "long"}),
        (("-lx=1",), {}, {"-l": "x=1"}),
        ((), {}, {}),
    ],
)
def test_options_of_the_scheduler_that_select(
    options: tuple[str, ...], short: dict[str, str], expected: dict[str, str]
) -> None:
    assert read_options(options, short) == expected


def test_options_of_the_scheduler_count_as_they_do_for_it() -> None:
    """They come after ctrain's own, so they win; the choice of a partition must know them."""
    options = Options(partition="a", settings=(("account", "ai"), ("qos", "normal")))
    further = {"partition": "b", "account": "bio", "nodelist": "n1"}
    size = make_size_request(options, a_job(), Cluster(), None, further)
    assert (size.partition, size.account, size.qos, size.nodelist) == ("b", "bio", "normal", "n1")
