from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime import schedulers
from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.errors import (
    CtrainError,
    DataError,
    ImageNotFound,
    ImageUnusable,
    JobError,
    ResourceError,
    SchedulerError,
    UsageError,
)
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.run import directory, outside_paths, parent_directories, record
from ctrain_runtime.run.ending import Ending
from ctrain_runtime.run.prepare import prepare
from ctrain_runtime.run.record import Exit
from ctrain_runtime.run.request import Prepared
from samples import programs as fakes
from samples.run_requests import GPU, HERE, asked, make_machine, plan_of
from samples.runs import StandIn, submitted
from samples.sample_images import sif, write_image


@pytest.fixture(autouse=True)
def machine(programs: Path, tmp_path: Path) -> Path:
    return make_machine(programs, tmp_path)


def test_a_launch_is_complete_and_nothing_but_its_empty_directory_is_left(machine: Path) -> None:
    before = sorted(machine.rglob("*"))
    prepared = prepare(asked(name="one", options={"nodes": 2}))
    assert isinstance(prepared, Prepared)
    assert (prepared.notes, prepared.image_source) == ((), "")
    assert prepared.launch.plan.run_directory == f"{machine}/ctrain-runs/one"
    assert {"job.sh", "task.sh"} <= set(prepared.launch.scripts)
    assert prepared.launch.argv[0] == "sbatch"
    calls = {machine / "programs" / f"{name}.calls" for name in ("srun", "scontrol", "apptainer")}
    changed = {path for path in set(machine.rglob("*")) - set(before) if machine / "cache" not in (path, *path.parents)}
    reserved = {machine / "ctrain-runs", machine / "ctrain-runs/one"}
    assert changed - calls == reserved  # nothing was submitted, nothing written


def test_a_mistyped_job_is_refused_before_the_scheduler_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    event = threading.Event()

    def answer(*_: Any) -> Cluster:
        event.wait(60)
        raise AssertionError("not needed")

    monkeypatch.setattr(type(schedulers.get("slurm")), "facts", answer)
    try:
        with pytest.raises(JobError, match=r"/jbo/job\.yaml not found"):
            prepare(asked(job="./jbo"))
        assert not event.is_set()
    finally:
        event.set()


def test_the_command_line_comes_before_torchrun_and_that_before_the_job() -> None:
    command = ("torchrun", "--nnodes", "3", "--nproc-per-node", "2", "--max-restarts", "5", "train.py", "--lr", "1")
    request = asked(command=command, image="pytorch")
    Path("train.py").touch()
    prepared = prepare(request)
    plan = prepared.launch.plan
    assert (plan.program.launcher, plan.program.command) == ("torchrun", ("python", "train.py", "--lr", "1"))
    assert (plan.size.nodes, plan.size.ranks_per_node) == (3, 2)
    assert prepared.notes == ("--max-restarts of torchrun has no effect here",)
    plan = plan_of(command=command, image="pytorch", options={"nodes": 1, "ranks_per_node": 1, "launcher": "env"})
    assert (plan.program.launcher, plan.size.nodes, plan.size.ranks_per_node) == ("env", 1, 1)
    assert plan.program.command == ("python", "train.py", "--lr", "1")


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
    assert (plan.program.launcher, (plan.size.nodes, plan.size.ranks_per_node), " ".join(plan.program.command)) == (
        launcher,
        size,
        program,
    )


def test_ranks_that_cannot_be_spread_evenly() -> None:
    Path("app").touch(0o755)
    with pytest.raises(UsageError, match=r"^5 ranks cannot be spread evenly over 2 nodes\. Pass --nodes N and "):
        plan_of(command=("mpirun", "-np", "5", "./app"), image="pytorch", options={"nodes": 2})
    size = {"nodes": 1, "ranks_per_node": 3}
    assert plan_of(command=("mpirun", "-np", "5", "./app"), image="pytorch", options=size).size.world_size == 3


def test_variables_of_mpirun_come_before_those_of_the_command_line() -> None:
    Path("app").touch(0o755)
    command = ("mpirun", "-x", "A=1", "-x", "B=1", "-x", "MY_TOKEN", "./app")
    plan = plan_of(command=command, image="pytorch", options={"env": {"B": "2"}})
    assert (plan.environment.variables["A"], plan.environment.variables["B"], plan.environment.passed) == (
        "1",
        "2",
        ("MY_TOKEN",),
    )


def test_a_variable_that_is_not_set_is_missed_before_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"^--env HF_TOKEN: not set in this shell. Export it, or pass --env HF_TOKEN="):
        prepare(asked(options={"env": {"A": "1", "HF_TOKEN": None}}))
    monkeypatch.setenv("HF_TOKEN", "")
    assert plan_of(options={"env": {"A": "1", "HF_TOKEN": None}}).environment.passed == ("HF_TOKEN",)
    Path("app").touch(0o755)
    command = ("mpirun", "-x", "NOT_SET", "./app")  # only a warning there
    assert plan_of(command=command, image="pytorch").environment.passed == ("NOT_SET",)


def test_paths_that_the_program_cannot_see_are_noted(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside_paths, "_OF_THE_IMAGE", set())  # the tests' own directory may be below /tmp
    (machine / "data").mkdir()
    unless = "unless the engine's configuration does"
    note = f"no mount shows {machine}/data to the program, {unless}: --mount {machine}/data"
    assert note in prepare(asked(command=("--data", f"{machine}/data"))).notes
    mounted = {"mounts": (f"{machine}/data",)}
    assert note not in prepare(asked(command=("--data", f"{machine}/data"), options=mounted)).notes


def test_a_command_that_cannot_be_translated_starts_the_ranks_of_one_node() -> None:
    Path("train.py").touch()
    command = ("accelerate", "launch", "--use_fsdp", "train.py")
    with pytest.raises(UsageError, match=r"ctrain has no equivalent of --use_fsdp"):
        plan_of(command=command, image="pytorch", options={"nodes": 2})
    for ranks in (1, 2):
        prepared = prepare(asked(command=command, image="pytorch", options={"ranks_per_node": ranks}))
        plan = prepared.launch.plan
        assert (plan.program.command, plan.program.launcher, plan.tasks, plan.size.world_size) == (
            command,
            "node",
            1,
            ranks,
        )
        note = "launcher node: ctrain has no equivalent of --use_fsdp, so accelerate itself starts the ranks"
        assert note in prepared.notes


def test_a_shell_that_starts_ranks_runs_once_per_node() -> None:
    """As ranks, two of these would be two worlds, with exit code 0."""
    command = ("bash", "-c", "torchrun --nproc-per-node 2 x.py")
    plan = plan_of(command=command, image="pytorch", options={"nodes": 2})
    assert (plan.program.launcher, plan.program.command, plan.tasks, plan.size.ranks_per_node) == (
        "node",
        command,
        2,
        2,
    )
    with pytest.raises(UsageError, match=r"^torchrun would run in each of the 4 ranks, and start its own. Let it"):
        plan_of(command=command, image="pytorch", options={"nodes": 2, "launcher": "env"})
    with pytest.raises(UsageError, match=r"^deepspeed would make a world of its own on each of 2 nodes. ctrain run"):
        plan_of(command=("sh", "-c", "deepspeed x.py"), image="pytorch", options={"nodes": 2})
    plan = plan_of(command=("sh", "-c", "deepspeed --num_gpus 2 x.py"), image="pytorch")
    assert (plan.program.launcher, plan.size.nodes, plan.size.ranks_per_node) == ("node", 1, 2)


def test_launcher_node_translates_nothing(machine: Path) -> None:
    Path("x.py").touch()
    command = ("torchrun", "--nproc-per-node", "2", "--virtual-local-rank", "x.py", "c.yaml")
    with pytest.raises(UsageError, match="ctrain has no equivalent of --virtual-local-rank"):
        plan_of(command=command, image="pytorch", options={"nodes": 2})
    plan = plan_of(command=command, image="pytorch", options={"nodes": 2, "launcher": "node"})
    assert (plan.program.launcher, plan.program.command) == ("node", command)
    (machine / "job/job.yaml").write_text("command: [torchrun, train.py]\nimage: pytorch\nlauncher: node\n")
    assert plan_of(options={"nodes": 2}).program.command == ("torchrun", "train.py")
    with pytest.raises(UsageError, match=r"^torchrun --standalone would make a world of its own on each of 2 nodes"):
        alone = ("torchrun", "--standalone", "x.py")
        plan_of(command=alone, image="pytorch", options={"nodes": 2, "launcher": "node"})


def test_how_many_hosts_a_file_names_is_asked_for() -> None:
    Path("train.py").touch()
    for command in ("deepspeed --hostfile h train.py", "mpirun -np 4 --hostfile h python train.py"):
        name = f"{command.split()[0]} --hostfile"
        with pytest.raises(UsageError, match=f"^{name}: ctrain chooses the hosts, and does not read the file. Pass"):
            plan_of(command=tuple(command.split()), image="pytorch")
        assert plan_of(command=tuple(command.split()), image="pytorch", options={"nodes": 2}).size.nodes == 2
    assert plan_of(command=("deepspeed", "-H", "h", "--num_nodes", "2", "train.py"), image="pytorch").size.nodes == 2


def test_independent_tasks_run_the_command_as_it_is(machine: Path) -> None:
    Path("train.py").write_text("from mpi4py import MPI\n")
    command = ("torchrun", "--nproc-per-node", "2", "train.py")
    for given in (command, ("python", "train.py")):
        plan = plan_of(command=given, image="pytorch", options={"nodes": 2, "independent": True})
        assert (plan.program.command, plan.program.launcher, plan.program.independent, plan.tasks) == (
            given,
            "env",
            True,
            4,
        )
        assert plan.checks.preflight is None
    with pytest.raises(UsageError, match=r"^independent ranks have no launcher mpi\. Leave out --launcher$"):
        plan_of(command=command, image="pytorch", options={"independent": True, "launcher": "mpi"})
    (machine / "job/job.yaml").write_text("command: [torchrun, train.py]\nimage: pytorch\nranks: independent\n")
    plan = plan_of(options={"nodes": 2})
    assert (plan.program.command, plan.program.independent) == (("torchrun", "train.py"), True)


@pytest.mark.parametrize("given", [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": None}, {}])
def test_independent_tasks_with_the_same_gpus_are_announced(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("train.py").touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    options: dict[str, Any] = {"nodes": 2, "independent": True, "env": given}
    notes = prepare(asked(command=("python", "train.py"), image="pytorch", options=options)).notes
    note = "all 4 tasks have the same CUDA_VISIBLE_DEVICES; without it, each has GPUs of its own"
    assert (note in notes) is bool(given)


def test_one_rank_alone_has_no_rank_unless_its_program_needs_it() -> None:
    """nanoGPT asks for RANK, and starts NCCL if there is one."""
    asks = "import os, torch\nddp = int(os.environ.get('RANK', -1)) != -1\nif ddp: torch.init_process_group('nccl')\n"
    for text, independent in ((asks, True), ("import torch\ntorch.distributed.init_process_group('nccl')\n", False)):
        Path("train.py").write_text(text)
        one = {"ranks_per_node": 1}
        prepared = prepare(asked(command=("python", "train.py"), image="pytorch", options=one))
        assert (prepared.launch.plan.program.independent, prepared.launch.plan.program.launcher) == (independent, "env")
        alone = "one rank alone: without RANK, WORLD_SIZE and MASTER_ADDR (--launcher env sets them)"
        assert (alone in prepared.notes) is independent
        for options in ({**one, "launcher": "env"}, {"ranks_per_node": 2}):
            assert not plan_of(command=("python", "train.py"), image="pytorch", options=options).program.independent
    assert not plan_of(command=("torchrun", "train.py"), image="pytorch", options=one).program.independent


def test_the_launcher_is_proposed_and_the_reason_noted(machine: Path) -> None:
    Path("train.py").write_text("import horovod.torch as hvd\n")
    prepared = prepare(asked(command=("python", "train.py"), image="pytorch"))
    assert prepared.launch.plan.program.launcher == "gloo"  # this image records no MPI
    assert prepared.notes == ("launcher gloo: train.py imports horovod, and the image has no MPI",)
    with pytest.raises(UsageError, match=r"^train.py imports horovod: with launcher env each of 4 ranks would train"):
        plan_of(command=("python", "train.py"), image="pytorch", options={"nodes": 2, "launcher": "env"})
    write_image(machine / "store", name="with-mpi", software={"mpi": "Open MPI 4.1.4"})
    prepared = prepare(asked(command=("hostname",), image="with-mpi"))
    assert (prepared.launch.plan.program.launcher, prepared.notes) == ("mpi", ("launcher mpi: the image has MPI",))


def test_a_program_that_is_missing_is_noticed_behind_a_launcher() -> None:
    with pytest.raises(UsageError, match=r"^trian.py not found in "):
        plan_of(command=("deepspeed", "trian.py"), image="pytorch")


@pytest.mark.parametrize("command", [(), ("",), ("", "x")])
def test_without_job_and_command_there_is_nothing_to_run(command: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"^no job or command given"):
        plan_of(command=command, image="pytorch")


def test_arguments_go_to_the_job_they_are_not_a_command() -> None:
    plan = plan_of(command=("--lr", "0.1", ""))
    assert plan.program.command == ("python", "train.py", "--lr", "0.1", "")


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
        ({"job": "resnet5"}, JobError, "unknown job 'resnet5'"),
        ({"job": "./nowhere"}, JobError, "/.*/nowhere/job.yaml not found"),
        ({"options": {"nodes": 5}}, ResourceError, "partition gpu has 4 usable nodes, 5 requested"),
        ({"options": {"time": "2-0"}}, ResourceError, "partition gpu allows 1-00:00:00, 2-0 requested"),
        ({"options": {"mounts": ("/not/there",)}}, DataError, "cannot mount /not/there at /not/there: not found"),
        ({"options": {"data": "/not/there"}}, DataError, "cannot mount /not/there at /data: not found"),
        ({"resume": "gone"}, DataError, "run 'gone' not found in /.*/ctrain-runs"),
        ({"resume": "./gone"}, DataError, "run gone has no checkpoint to resume from"),
        ({"layers": ("no.sqsh",)}, ImageUnusable, "cannot read layer no.sqsh"),
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


def test_submissions_of_one_second_get_names_of_their_own(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the first one takes its name after the second one has chosen the same."""
    monkeypatch.setattr(directory.time, "strftime", lambda _: "1121-041213")
    reserve = directory.reserve
    names: list[str] = []

    def after_another(plan: LaunchPlan) -> bool:
        if not names:
            Path(plan.run_directory).mkdir(parents=True)
        names.append(plan.run)
        return reserve(plan)

    monkeypatch.setattr(directory, "reserve", after_another)
    launch = prepare(asked()).launch
    assert (names, launch.plan.run) == (["job-1121-041213", "job-1121-041213-2"], "job-1121-041213-2")
    assert f"{machine}/ctrain-runs/job-1121-041213-2" in launch.scripts["job.sh"]


def test_a_partition_with_nodes_of_several_kinds(programs: Path) -> None:
    """From the answers of Slurm to the script: the site's constraint stays, and the image is for the GPUs."""
    kinds = {"c": (1, "(null)", "ib"), "v": (2, "gpu:v100:2", "ib,v100"), "a": (3, "gpu:a100:4", "ib,a100")}
    nodes = "".join(
        f"NodeName={name}{number} State=IDLE Arch={HERE} CPUTot=16 ActiveFeatures={features} "
        f"Gres={gres} Partitions=gpu\n"
        for name, (count, gres, features) in kinds.items()
        for number in range(count)
    )
    fakes.scontrol(programs, node=nodes, partition="PartitionName=gpu Default=YES State=UP\n", config="A = b\n")
    prepared = prepare(asked(options={"nodes": 2, "gpus_per_node": 2, "scheduler_options": ("-C ib",)}))
    assert "#SBATCH '--constraint=ib&a100'" in prepared.launch.scripts["job.sh"]
    assert prepared.notes == (
        "partition gpu: sized for its 3 nodes with 4 GPUs (a100), asked for by feature a100;"
        " it also has 1 node without GPUs, 2 nodes with 2 GPUs (v100)",
    )
    plan = plan_of(options={"nodes": 2, "settings": {"constraint": "v100"}})
    assert (plan.size.gpus_per_node, plan.placement.constraint, plan.size.cpus_per_rank) == (2, None, 8)
    with pytest.raises(ResourceError, match=r"^partition gpu has 3 suitable nodes, 4 requested \(gpu has 3 nodes with"):
        prepare(asked(options={"nodes": 4, "gpus_per_node": 4}))


def test_resume_takes_a_run_by_name_or_path(machine: Path) -> None:
    for parent in ("ctrain-runs", "elsewhere"):
        (machine / parent / "old/checkpoint").mkdir(parents=True)
        (machine / parent / "old/checkpoint/step-1.pt").touch()
    assert plan_of(resume="old").mounts.resume == f"{machine}/ctrain-runs/old/checkpoint"
    assert plan_of(resume="elsewhere/old").mounts.resume == f"{machine}/elsewhere/old/checkpoint"
    assert "CTRAIN_RESUME" in plan_of(resume="old").environment.variables


def test_resume_takes_a_run_of_any_parent_directory_by_its_job(machine: Path) -> None:
    run = submitted(machine / "elsewhere/old", StandIn())
    (run.path / "checkpoint/step-1.pt").touch()
    parent_directories.remember(machine / "elsewhere")
    for reference in ("old", "7", "job 7", "last"):
        assert plan_of(resume=reference).mounts.resume == f"{run.path}/checkpoint"


def test_a_run_that_was_done_is_named_before_it_is_resumed(machine: Path) -> None:
    run = submitted(machine / "ctrain-runs/old", StandIn())
    (run.path / "checkpoint/step-1.pt").touch()
    note = "run old has completed: resumed, it ends at once unless it is to train longer"
    assert note not in prepare(asked(resume="old")).notes
    for code, ending in ((143, Ending.TIME_LIMIT), (0, Ending.COMPLETED)):
        record.save(dataclasses.replace(run.record, exit=Exit(code, "why", "program", ending)))
        assert (note in prepare(asked(resume="old")).notes) is (code == 0)


def test_a_current_directory_that_was_deleted(machine: Path) -> None:
    """The operating system's error; the command line turns it into one line."""
    request = asked(command=("hostname",), image=str(machine / "store/pytorch_24.12-hd-py3-r3.sif"))
    (machine / "gone").mkdir()
    os.chdir(machine / "gone")
    (machine / "gone").rmdir()
    with pytest.raises(FileNotFoundError):
        prepare(request)


@pytest.mark.parametrize(
    ("submit", "options", "directive"),
    [
        ("--constraint=gpu", {"settings": {"constraint": "gpu&hbm80g"}}, "--constraint='gpu&hbm80g'"),
        ("-C gpu", {"settings": {"constraint": "a100"}}, "--constraint=a100"),
        ("--account=ours", {"settings": {"account": "mine"}}, "--account=mine"),
        ("-A ours", {"settings": {"account": "mine"}}, "--account=mine"),
        ("-x n1", {"settings": {"exclude": "n2"}}, "--exclude=n2"),
        ("--partition=other", {"partition": "gpu"}, "--partition=gpu"),
    ],
)
def test_the_command_line_replaces_the_options_of_a_site(submit: str, options: dict[str, Any], directive: str) -> None:
    """Of what is given twice sbatch takes the last: the site's came last, and another account was charged."""
    Path("ours.yaml").write_text(f"scheduler: slurm\nsubmit: ['{submit}', --exclusive]\n")
    prepared = prepare(asked("./ours.yaml", options))
    assert prepared.launch.plan.placement.options == ("--exclusive",)
    lines = [line.replace("'", "") for line in prepared.launch.scripts["job.sh"].splitlines()]
    assert f"#SBATCH {directive}".replace("'", "") in lines
    name, _, value = directive.partition("=")
    assert f"{name} {value} replaces {submit} of site ours".replace("'", "") in prepared.notes


def test_options_of_a_site_that_nobody_replaces() -> None:
    Path("ours.yaml").write_text("scheduler: slurm\nsubmit: [--constraint=gpu, -A ours]\n")
    prepared = prepare(asked("./ours.yaml", {"settings": {"qos": "long"}}))
    assert prepared.launch.plan.placement.options == ("--constraint=gpu", "-A ours")
    assert not [note for note in prepared.notes if "replaces" in note]


@pytest.mark.parametrize(
    ("command", "origin"),
    [
        ("torchrun --nproc-per-node 300 train.py", " (torchrun --nproc-per-node 300)"),
        ("torchrun --nnodes=40 --nproc-per-node=2 -m json", " (torchrun --nnodes 40 --nproc-per-node 2)"),
        ("bash -c 'torchrun --nnodes 40 train.py'", " (torchrun --nnodes 40)"),
    ],
)
def test_a_refusal_names_the_options_of_the_command(command: str, origin: str) -> None:
    Path("train.py").touch()
    with pytest.raises(ResourceError) as caught:
        prepare(asked(command=tuple(shlex.split(command)), image="pytorch"))
    assert caught.value.message.endswith(origin)
