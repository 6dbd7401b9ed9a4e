"""What task.sh and rank.sh do, seen by running them with a fake engine; their text is in tests/golden."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Optional

import pytest

from ctrain_runtime import payload
from ctrain_runtime.base import run_files
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import ConfigError
from ctrain_runtime.gpus import COMPAT_DIRS, DRIVER_FILE, HOST_LIBRARIES
from ctrain_runtime.launchers import fragments
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.plan.task import TaskIdentity
from samples.layers import a_layer
from samples.plans import a_job, a_plan, a_site, an_image, changed, some_facts
from samples.programs import SYSTEM, write_program
from samples.scripts import NO_LAYERS, Scripts, slurm_task, wait_until

# --- who a rank is, and how it ends


def test_a_rank_runs_the_program_and_records_how_it_ended(scripts: Scripts) -> None:
    say = "echo $RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE node $NODE_RANK in $PWD; exit 3"
    plan = scripts.plan("bash", "-c", say, nodes=2, ranks_per_node=2)
    assert scripts.execute(plan, **slurm_task(rank=3, size=4, per_node=2)) == 3
    assert scripts.log(3) == f"3/4 local 1/2 node 1 in {scripts.folder}\n"
    assert scripts.node_events(1) == [
        {"stage": "run", "what": "started", "rank": 3},
        {"stage": "run", "what": "ended", "rank": 3, "code": 3},
    ]


def test_events_say_when_and_where_in_every_locale(scripts: Scripts) -> None:
    """Some locales write the comma of EPOCHREALTIME as a comma; a test machine may lack them, so it is set here."""
    scripts.create(scripts.plan("true"))
    head = fragments.head(scripts.plan("true"), "")
    code = f"{head}\nunset EPOCHREALTIME; EPOCHREALTIME=1700000000,123456\nNODE_RANK=0\nnode_event started"
    subprocess.run(["/bin/bash", "-p", "-c", code], check=True)
    event = json.loads((scripts.run / "nodes/0.jsonl").read_text())
    host = subprocess.run(["uname", "-n"], capture_output=True, text=True, check=True).stdout.split(".")[0].strip()
    assert event == {"time": 1700000000.123456, "stage": "run", "node": host, "what": "started"}


def test_a_rank_in_a_world_of_another_size_stops(scripts: Scripts) -> None:
    assert scripts.execute(scripts.plan("true", ranks_per_node=2), **slurm_task(size=1)) == 72
    message = "srun started 1 ranks, but the plan has 2"
    assert scripts.log() == f"ctrain: {message}\n"
    assert scripts.node_events() == [{"stage": "run", "what": "refused", "rank": 0, "code": 72, "message": message}]


def test_ranks_of_a_large_run_share_the_log_of_their_node(scripts: Scripts) -> None:
    plan = scripts.plan("bash", "-c", "echo one; echo two >&2", nodes=8, ranks_per_node=40)
    scripts.create(plan)
    for rank in (0, 41, 42):
        assert scripts.start("task.sh", **slurm_task(rank, size=320, per_node=40)).wait() == 0
    assert scripts.log() == "one\ntwo\n"
    shared = scripts.run / run_files.rank_log(41, 1, plan.size.world_size)
    lines = [f"[{rank}] {word}" for rank in (41, 42) for word in ("one", "two")]
    wait_until(lambda: sorted(shared.read_text().splitlines()) == lines)
    assert [path.name for path in sorted((scripts.run / "logs").iterdir())] == ["job.log", "node1.log", "rank0.log"]


def test_an_engine_that_no_module_loads(scripts: Scripts) -> None:
    plan = scripts.plan("true")
    plan = changed(plan, engine=Engine("apptainer", "no-engine", "1.4.5"), modules=("apptainer/9",))
    assert scripts.execute(plan, **slurm_task()) == 73
    (event,) = scripts.node_events()
    assert event["message"].startswith("the engine is not on PATH on ")


# --- what reaches the program


def environment_of_program(scripts: Scripts, **environment: str) -> dict[str, str]:
    dump = write_program(
        scripts.bin / "dump", "#!/usr/bin/env python3\nimport json, os; print(json.dumps(dict(os.environ)))"
    )
    code = scripts.execute(scripts.plan(str(dump), env={"OMP_NUM_THREADS": "7", "WANDB_API_KEY": None}), **environment)
    assert code == 0, scripts.log()
    seen: dict[str, str] = json.loads(scripts.log())
    assert seen.pop("PYTHONPATH") == f"{seen['HOME']}/.startup"
    assert seen["CTRAIN_HEARTBEAT"] == f"{seen['HOME']}/.heartbeat/0"
    return {
        name: value
        for name, value in seen.items()
        if name not in ("HOME", "CTRAIN_HEARTBEAT", "PWD", "SHLVL", "_", "LC_CTYPE")
    }


def test_what_passes_from_the_node_into_the_container(scripts: Scripts) -> None:
    passed = {"CUDA_VISIBLE_DEVICES": "0,1", "TERM": "", "SLURM_CPUS_PER_TASK": "4", "WANDB_API_KEY": "k'1"}
    leaks = {"PYTHONPATH": "/host", "CONDA_PREFIX": "/host", "USER": "kim", "MPI_HOME": "/host"}
    task = slurm_task()
    assert environment_of_program(scripts, **passed, **leaks, **task) == {
        **passed,
        **task,
        "PATH": f"{scripts.bin}:{SYSTEM}",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "NODE_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "gpu01",
        "MASTER_PORT": seen_port(scripts),
        "OMP_NUM_THREADS": "7",
        "CTRAIN_RUN_DIR": str(scripts.run),  # what the user sets wins
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "BASH_ENV": "",
        "ENV": "",
        "TORCHINDUCTOR_CACHE_DIR": "/home/ctrain/.cache/torchinductor",
        "TORCH_EXTENSIONS_DIR": "/home/ctrain/.cache/torch_extensions",
    }


@pytest.mark.parametrize(
    "name",
    ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"],
)
def test_all_gpus_of_the_job_are_visible_to_each_rank(scripts: Scripts, name: str) -> None:
    """No device of these kinds here: what the scheduler sets must arrive."""
    assert environment_of_program(scripts, **{name: "2,3"}, **slurm_task())[name] == "2,3"


@pytest.mark.parametrize(
    ("given", "numbers", "expected"),
    [
        ("0,1,2,3", None, "3,2,1,0"),
        (None, None, "3,2,1,0"),  # the job has all GPUs of the node
        ("1,2", None, "2,1"),
        ("0,1", "1,3", "1,0"),  # in a cgroup
        ("GPU-a1,GPU-b2", "0,2", "GPU-b2,GPU-a1"),
        ("GPU-a1,GPU-b2", None, "GPU-a1,GPU-b2"),
        ("MIG-a1,MIG-b2", "0,0", "MIG-a1,MIG-b2"),
        ("0,1", "0,1,2,3", "0,1"),  # the step's GPUs, of which a task has some
        ("2", "0,1,2,3", "2"),
        ("0", "3", "0"),
        ("0,7", None, "0,7"),
        ("0,1,2", "0,1", "0,1,2"),
        ("NoDevFiles", None, "NoDevFiles"),
        ("", None, ""),
    ],
)
def test_gpus_come_in_the_order_of_the_cores_next_to_them(
    scripts: Scripts, given: Optional[str], numbers: Optional[str], expected: str
) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": given, "SLURM_STEP_GPUS": numbers}
    plan = changed(scripts.plan("printenv", "CUDA_VISIBLE_DEVICES"), gpu_order=(3, 2, 1, 0), gpus_per_node=4)
    present = {name: value for name, value in environment.items() if value is not None}
    assert scripts.execute(plan, **slurm_task(), **present) == 0
    assert scripts.log() == f"{expected}\n"


def test_amd_gpus_have_a_variable_of_their_own(scripts: Scripts) -> None:
    """CUDA_VISIBLE_DEVICES, which ROCm reads, too, stays: it counts what ROCR_VISIBLE_DEVICES has left."""
    plan = scripts.plan("sh", "-c", "echo $ROCR_VISIBLE_DEVICES $CUDA_VISIBLE_DEVICES")
    image = dataclasses.replace(plan.image, cuda=False, rocm=True)
    plan = changed(plan, image=image, gpu_order=(4, 5, 2, 3, 6, 7, 0, 1), gpus_per_node=8)
    given = "0,1,2,3,4,5,6,7"
    assert scripts.execute(plan, **slurm_task(), ROCR_VISIBLE_DEVICES=given, CUDA_VISIBLE_DEVICES=given) == 0
    assert scripts.log() == f"4,5,2,3,6,7,0,1 {given}\n"


def test_gpus_that_no_variable_names_stay_as_they_are_for_a_part_of_a_node(scripts: Scripts) -> None:
    """Which ones the job has is not known: a number of one that it lacks would hide those after it."""
    plan = changed(scripts.plan("printenv", "CUDA_VISIBLE_DEVICES"), gpu_order=(3, 2, 1, 0), gpus_per_node=2)
    assert scripts.execute(plan, **slurm_task()) == 1
    assert scripts.log() == ""


def seen_port(scripts: Scripts) -> str:
    return str(json.loads(scripts.log())["MASTER_PORT"])


HOSTILE = {
    "APPTAINER_BIND": "/etc:/data",
    "APPTAINER_NV": "1",
    "APPTAINERENV_LEAK": "x",
    "SINGULARITY_BINDPATH": "/etc:/data",
    "SINGULARITYENV_LEAK": "x",
    "LD_LIBRARY_PATH": "/nowhere",
    "LD_PRELOAD": "libc.so.6",
    "BASH_FUNC_date%%": "() { echo hijacked; exit 1; }",
    "BASH_FUNC_uname%%": "() { echo hijacked; exit 1; }",
    "BASH_FUNC_flock%%": "() { echo hijacked; exit 1; }",
    "CDPATH": "/etc",
    "IFS": "aeiou/",
    "GLOBIGNORE": "*",
    "SHELLOPTS": "errexit:noexec:nounset:xtrace",
    "BASHOPTS": "nullglob:failglob",
    "PS4": "hijacked",
    "TMPDIR": "/nowhere/at/all",
    "LC_ALL": "POSIX",
    "RANK": "9",
    "WORLD_SIZE": "9",
    "CTRAIN_RUN_DIR": "/nowhere",
}


def test_a_hostile_callers_environment_changes_nothing(scripts: Scripts) -> None:
    """Neither what the program sees nor what the scripts do."""
    trap = scripts.folder / "trap"
    trap.write_text("echo hijacked; exit 1\n")
    plain = environment_of_program(scripts, **slurm_task())
    events = scripts.node_events()
    shutil.rmtree(scripts.run)
    hostile = environment_of_program(scripts, **{**HOSTILE, "BASH_ENV": str(trap), "ENV": str(trap)}, **slurm_task())
    assert hostile == plain
    assert scripts.node_events() == events
    assert scripts.job_log() == ""


def test_nothing_of_a_hostile_callers_environment_reaches_the_engine(scripts: Scripts) -> None:
    """It may be a script of the site's, and it has settings of its own."""
    show = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
    write_program(scripts.bin / "apptainer", f"#!/usr/bin/env python3\n{show}\n")
    plan = scripts.plan("true")
    assert scripts.execute(plan, **slurm_task()) == 0
    plain_argv, plain = json.loads(scripts.log())
    shutil.rmtree(scripts.run)
    strange = {"APPTAINERENV_A.B": "leak", "BASH_FUNC_env%%": "() { echo hijacked; }"}
    hostile = {**HOSTILE, **strange, "TMPDIR": str(scripts.homes), "BASH_ENV": "/nowhere", "ENV": "/nowhere"}
    assert scripts.execute(plan, **hostile, **slurm_task()) == 0
    argv, environment = json.loads(scripts.log())
    assert argv == plain_argv
    caught = ("APPTAINER", "SINGULARITY", "BASH_FUNC", "BASH_ENV", "ENV", "LD_")
    assert {name: value for name, value in environment.items() if name.startswith(caught)} == {
        name: value for name, value in plain.items() if name.startswith(caught)
    }


def test_posix_mode_of_the_callers_shell_changes_nothing(scripts: Scripts) -> None:
    plan = scripts.plan("echo", "here")
    assert scripts.execute(plan, POSIXLY_CORRECT="1", **slurm_task()) == 0
    assert (scripts.log(), scripts.job_log()) == ("here\n", "")


# --- what is checked inside


def test_a_rank_without_the_upper_layers_of_its_image_stops(scripts: Scripts) -> None:
    plan = scripts.plan("true", image=an_image())
    assert plan.image.marker == "k1"
    assert scripts.execute(plan, **slurm_task()) == 73
    assert scripts.log().startswith("ctrain: this engine ignores the layers of the image")
    started, refused, ended = scripts.node_events()
    assert (started["what"], ended["what"], ended["code"]) == ("started", "ended", 73)
    assert (refused["what"], refused["rank"], refused["code"]) == ("refused", 0, 73)


def test_a_rank_without_the_user_layer_of_its_plan_stops(scripts: Scripts) -> None:
    plan = scripts.plan("true", layers=(a_layer("/home/kim/it's \\n $HOME.sqsh"),))
    assert scripts.execute(plan, **slurm_task()) == 73
    message = "layer /home/kim/it's \\n $HOME.sqsh differs from the plan; was it rebuilt after submission?"
    assert scripts.log() == f"ctrain: {message}\n"
    assert scripts.node_events()[1]["message"] == message


HOSTILE_NAMES = [
    "no-such",
    "it's",
    'a "b"',
    "$HOME",
    "`id`",
    "a\\nb",
    "a\nb",
    "\\c",
    "%s%d",
    "*",
    "é 대전",
    "\udcff",
    "a;b",
]


@pytest.mark.parametrize("name", [*HOSTILE_NAMES, "./train", "/no/such", ""])
def test_a_command_that_the_image_lacks_is_named(scripts: Scripts, name: str) -> None:
    assert scripts.execute(scripts.plan(name), **slurm_task()) == 127
    assert scripts.log() == f"ctrain: command not found in the image: {name}\n"
    refused = scripts.node_events()[1]
    message = f"command not found in the image: {name}"
    assert refused == {"what": "refused", "stage": "run", "rank": 0, "code": 127, "message": message}


NSYS = """\
#!/bin/sh
printf '%s\\n' "$@" >"$CTRAIN_RUN_DIR/nsys"
shift
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""


def test_chosen_ranks_run_under_nsight_systems(scripts: Scripts) -> None:
    """Of a stand-in, with the command line that its manual has."""
    plan = scripts.plan("echo", "it's here", profile="nsys")
    assert scripts.execute(plan, **slurm_task()) == 127
    assert scripts.log() == "ctrain: command not found in the image: nsys (--profile nsys)\n"
    shutil.rmtree(scripts.run)
    write_program(scripts.bin / "nsys", NSYS)
    assert scripts.execute(plan, **slurm_task()) == 0
    assert scripts.log() == "it's here\n"
    assert (scripts.run / "nsys").read_text().splitlines() == [
        "profile",
        f"--output={scripts.run}/profiles/rank0",
        "--force-overwrite=true",
        "--trace=cuda,nvtx,osrt",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "echo",
        "it's here",
    ]
    assert (scripts.run / "profiles").is_dir()


def inside(plan: LaunchPlan, script: Path, *command: str) -> list[str]:
    """The arguments of sh in the container of a rank without a number, on node 0."""
    words = shlex.split(fragments.inside(plan))[4:]
    return [str(script), "", "0", *words, *command]


@pytest.mark.parametrize("shell", [["bash"], ["bash", "--posix"], ["dash"], ["busybox", "sh"]])
@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_refusals_are_json_under_every_sh(tmp_path: Path, shell: list[str], name: str) -> None:
    if not shutil.which(shell[0]):
        pytest.skip(f"{shell[0]} is not on PATH")
    (tmp_path / "nodes").mkdir()
    argv = inside(a_plan(job=a_job(command=(name,)), image=NO_LAYERS), payload.FOLDER / "inside.sh", name)
    environment = {"CTRAIN_RUN_DIR": str(tmp_path), "NODE_RANK": "0", "PATH": "/nonexistent"}
    program = str(shutil.which(shell[0]))
    done = subprocess.run([program, *shell[1:], *argv], env=environment, capture_output=True)
    assert (done.returncode, os.fsdecode(done.stderr)) == (127, f"ctrain: command not found in the image: {name}\n")
    event = json.loads((tmp_path / "nodes/0.jsonl").read_text(errors="surrogateescape"))
    assert (event["message"], event["rank"]) == (f"command not found in the image: {name}", None)


def test_a_path_without_programs_is_no_missing_layer(scripts: Scripts) -> None:
    """Only builtins check the layers. The marker is where the fake engine's root has it, so PATH is what is missing."""
    write_program(scripts.bin / "program", "#!/bin/sh\n")
    plan = scripts.plan("program", env={"PATH": "/nonexistent"})
    assert scripts.execute(plan, **slurm_task()) == 127
    assert scripts.log() == "ctrain: command not found in the image: program\n"
    shutil.rmtree(scripts.run)
    plan = scripts.plan("/bin/echo", "runs", env={"PATH": "/nonexistent"})
    assert scripts.execute(plan, **slurm_task()) == 0
    assert scripts.log() == "runs\n"


# The first line of /proc/driver/nvidia/version: of the proprietary and of the open kernel modules.
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Sat Aug 19 01:15:15 UTC 2023\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder)\n"


@pytest.mark.parametrize("shell", [["bash"], ["dash"], ["busybox", "sh"]])
@pytest.mark.parametrize(
    ("driver", "libraries", "before", "path"),
    [
        (PROPRIETARY.format("470.57.02"), ("lib.real", ""), "/image", "{compat}/lib.real:/image"),
        (OPEN.format("515.65.01"), ("lib",), None, "{compat}/lib"),
        (PROPRIETARY.format("470.57.02"), ("",), "", "{compat}"),
        (PROPRIETARY.format("470.57.02"), (), "/image", "/image"),
        (PROPRIETARY.format("470.57.02"), ("lib.real",), "/i:{compat}/lib", "{compat}/lib.real:/i:{compat}/lib"),
        (PROPRIETARY.format("525.60.13"), ("lib.real", "lib"), "/image", "/image"),
        (OPEN.format("580.95.05"), ("lib",), "/i:{compat}/lib:/j", "{host}:/i:{compat}/lib:/j"),
        (OPEN.format("580.95.05"), ("lib.real",), None, None),
        ("", ("lib.real",), "/image", "/image"),
        (None, ("lib.real",), "/image", "/image"),
    ],
)
def test_the_driver_libraries_that_fit_the_nodes_driver_come_first(
    tmp_path: Path,
    shell: list[str],
    driver: Optional[str],
    libraries: tuple[str, ...],
    before: Optional[str],
    path: Optional[str],
) -> None:
    if not shutil.which(shell[0]):
        pytest.skip(f"{shell[0]} is not on PATH")
    compat, host, version = tmp_path / "compat", tmp_path / "host", tmp_path / "version"
    for directory in (host, *(compat / name for name in libraries)):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "libcuda.so.1").touch()
    if driver is not None:
        version.write_text(driver)
    plan = a_plan(job=a_job(command=("env",)), image=an_image(layers=NO_LAYERS.manifest.layers))
    text = payload.text("inside.sh").replace(str(DRIVER_FILE), str(version))
    text = text.replace(COMPAT_DIRS[-1], str(compat)).replace(HOST_LIBRARIES, str(host))
    (tmp_path / "inside.sh").write_text(text)
    argv = inside(plan, tmp_path / "inside.sh", "env")
    given = {} if before is None else {"LD_LIBRARY_PATH": before.format(compat=compat)}
    environment = {"PATH": SYSTEM, **given}
    program = str(shutil.which(shell[0]))
    done = subprocess.run([program, *shell[1:], *argv], env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    found = [line for line in done.stdout.splitlines() if line.startswith("LD_LIBRARY_PATH=")]
    assert found == ([] if path is None else [f"LD_LIBRARY_PATH={path.format(compat=compat, host=host)}"])


def test_images_without_cuda_have_no_forward_compatibility() -> None:
    assert "driver" not in fragments.inside(a_plan(image=an_image(software={}))).split()


AN_IDENTITY = TaskIdentity("srun", "")


def test_user_layers_lie_over_the_image() -> None:
    plan = a_plan(layers=(a_layer("/my layer.sqsh"),))
    bash = fragments.container(plan, AN_IDENTITY)
    assert bash[-2:] == ["launch+=(--overlay '/my layer.sqsh:ro')", f"enter /home/ctrain {plan.image.path}"]


def test_userns_only_for_root_and_nv_only_for_cuda_images() -> None:
    def options(plan: LaunchPlan) -> list[str]:
        return " ".join(fragments.container(plan, AN_IDENTITY)).replace(")", " ").split()

    assert "--userns" in options(a_plan(facts=some_facts(is_root=True)))
    assert "--nv" not in options(a_plan(image=an_image(software={})))
    assert "--rocm" in options(a_plan(image=an_image(software={"rocm": "6.2.4"})))


@pytest.mark.parametrize("shell", [["bash"], ["dash"], ["busybox", "sh"]])
@pytest.mark.parametrize(
    ("before", "after"),
    [(None, "{0}/mpi-2/lib:{0}/mpi-1/lib:{0}/hwloc"), ("/x", "{0}/mpi-2/lib:{0}/mpi-1/lib:{0}/hwloc:/x")],
)
def test_directories_of_libraries(tmp_path: Path, shell: list[str], before: Optional[str], after: str) -> None:
    """Of several versions of libfabric the oldest came first."""
    if not shutil.which(shell[0]):
        pytest.skip(f"{shell[0]} is not on PATH")
    for name in ("mpi-1/lib", "mpi-2/lib", "mpi-3", "hwloc"):
        (tmp_path / name).mkdir(parents=True)
    patterns = tuple(f"{tmp_path}/{name}" for name in ("mpi-*/lib", "missing", "hwloc"))
    plan = changed(
        a_plan(job=a_job(command=("env",)), image=an_image(software={}, layers=NO_LAYERS.manifest.layers)),
        library_paths=patterns,
    )
    argv = inside(plan, payload.FOLDER / "inside.sh", "env")
    environment = {"PATH": SYSTEM, **({"LD_LIBRARY_PATH": before} if before else {})}
    argv = [str(shutil.which(shell[0])), *shell[1:], *argv]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert f"LD_LIBRARY_PATH={after.format(tmp_path)}" in done.stdout.splitlines()


@pytest.mark.parametrize("path", ["usr/lib64", "/usr/lib 64", "/x;touch /y", "/$(x)", "/a:b"])
def test_paths_of_libraries_are_no_shell(path: str) -> None:
    for key in ("host_libraries", "library_paths"):
        with pytest.raises(ConfigError, match=f"^site neuron: {key}: "):
            a_plan(site=a_site(**{key: (path,)}))
