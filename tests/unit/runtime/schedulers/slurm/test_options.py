from __future__ import annotations

import shlex
from typing import Any

import pytest

from ctrain_runtime.cluster.model import Constraint
from ctrain_runtime.errors import UsageError
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.schedulers.slurm.options import REFUSED, SHORT, constraint, gres, passed_options
from samples.plans import a_launch, a_plan, a_site, changed

SPELLINGS = [
    *("--output=x", "--output x", "--out=x", "--o=x", "-o x", "-ox", "-Hox", "-vQo x"),
    *("--error=x", "-e x", "--err=x", "--chdir=/tmp", "-D /tmp", "--requeue", "--requ", "--wrap=true"),
    *("--nodes=4", "-N4", "-N 4", "--node=4", "--ntasks=2", "-n2", "--ntasks-per-node=2", "--ntasks-per-n=2"),
    *("--array=0-3", "-a 1", "--arr=1", "--time=1", "-t1", "--tim=1", "--job-name=x", "-Jx", "--wait", "-W", "-HW"),
    *("--gpus=2", "-G2", "--gpus-per-task=1", "--cpus-per-task=2", "-c2", "--mem=1G", "--mem-per-cpu=1G"),
    *("--clusters=other", "-Mother", "--test-only"),
]


@pytest.mark.parametrize("option", SPELLINGS)
@pytest.mark.parametrize("interactive", [False, True])
def test_what_contradicts_the_plan_is_refused_however_it_is_spelled(option: str, interactive: bool) -> None:
    shell: dict[str, Any] = {"interactive": True, "ranks_per_node": 1, "gpus_per_node": 1} if interactive else {}
    for given in ({"scheduler_options": (option,)}, {"site": a_site(submit=(option,))}):
        with pytest.raises(UsageError) as caught:
            a_launch(a_plan(**given, **shell))
        assert str(caught.value).startswith(f"sbatch option {option!r} is not supported: ")
        assert caught.value.hint


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("-N4", "it contradicts the plan. Use --nodes"),
        ("--out=x", "ctrain reads the job's output in the run directory. Remove it"),
        ("--chdir=x", "the job runs in the run directory. Use --runs DIR for where run directories are"),
        ("--array=0-3", "all tasks of an array would write to one run directory. Submit one run per element"),
    ],
)
def test_the_option_to_use_is_named(option: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        passed_options(a_plan(scheduler_options=(option,)))
    assert str(caught.value) == f"sbatch option {option!r} is not supported: {message}"


@pytest.mark.parametrize(
    ("option", "full"), [("--part=x", "partition"), ("--acco=x", "account"), ("--q=x", "qos"), ("--excl=n", "exclude")]
)
def test_what_ctrain_reads_is_not_abbreviated(option: str, full: str) -> None:
    with pytest.raises(UsageError, match=rf"is abbreviated: ctrain reads it, too\. Write --{full}=VALUE"):
        passed_options(a_plan(scheduler_options=(option,)))


def test_what_ctrain_reads_stands_apart() -> None:
    """Else the job would go to a partition that the plan does not know."""
    with pytest.raises(UsageError) as caught:
        passed_options(a_plan(scheduler_options=("-Hp other",)))
    assert str(caught.value) == "sbatch option '-Hp other' combines letters: ctrain reads -p, too. Write -p VALUE apart"


PASSED = [
    *(
        "--time-min=5",
        "--nodelist=a",
        "-wa",
        "--no-requeue",
        "--exclusive",
        "--signal=USR1@300",
        "--hint=nomultithread",
    ),
    *("--gres-flags=enforce-binding", "--mem-bind=local", "-A ai", "-pgpu", "--wait-all-nodes=1", "-H", "--nice=10"),
    *("--switches=1", "--licenses=x", "--export=NONE", "--gpu-bind=none", "-d afterok:7", "-xn1", "-Cfast"),
]


@pytest.mark.parametrize("option", PASSED)
def test_other_options_pass(option: str) -> None:
    assert passed_options(a_plan(scheduler_options=(option,))) == [option]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ((), "gpu:8"),
        (("--gres=lscratch:100",), "gpu:8,lscratch:100"),
        (("--gres=gpu:a100:8,lscratch:100",), "gpu:a100:8,lscratch:100"),
        (("--gres=lscratch:100", "--gres=gpu:a100:8(S:0-1)"), "gpu:a100:8(S:0-1),lscratch:100"),
    ],
)
def test_other_resources_of_a_node_do_not_replace_its_gpus(options: tuple[str, ...], line: str) -> None:
    plan = a_plan(scheduler_options=options)
    assert gres(plan) == [f"--gres={line}"]
    assert (
        a_launch(plan).scripts["job.sh"].count("#SBATCH --gres") + a_launch(plan).scripts["job.sh"].count("'--gres")
        == 1
    )


def directives(plan: LaunchPlan, *names: str) -> list[str]:
    """The values of options in job.sh, each as the last one says."""
    lines = a_launch(plan).scripts["job.sh"].splitlines()
    options = (shlex.split(line)[1] for line in lines if line.startswith("#SBATCH"))
    found = dict(option.lstrip("-").partition("=")[::2] for option in options)
    return [found.get(name, "") for name in names]


def test_what_keeps_a_job_from_other_nodes() -> None:
    """The last option of a kind is the one that counts for sbatch: it holds the user's, too."""

    def plan(own: Constraint, **options: Any) -> LaunchPlan:
        return changed(a_plan(**options), constraint=own)

    assert constraint(a_plan()) == {}
    named = plan(Constraint(("ib", "a100")), settings={"constraint": "ib"}, scheduler_options=("-Cib",))
    assert directives(named, "constraint", "gres") == ["ib&a100", "gpu:8"]
    script = a_launch(named).scripts["job.sh"]
    assert script.count("--constraint") == 1
    assert script.index("-Cib") < script.index("--constraint")
    typed = plan(Constraint(gpu_type="a100"), settings={"constraint": "[r1|r2]"})
    assert directives(typed, "constraint", "gres") == ["[r1|r2]", "gpu:a100:8"]
    assert gres(plan(Constraint(gpu_type="a100"), scheduler_options=("--gres=lscratch:1",))) == [
        "--gres=gpu:a100:8,lscratch:1"
    ]
    assert gres(plan(Constraint(gpu_type="a100"), scheduler_options=("--gres=gpu:8",))) == ["--gres=gpu:a100:8"]
    apart = plan(Constraint(excluded=("n7", "v01", "v02", "v03")), settings={"exclude": "n7"})
    assert directives(apart, "exclude") == ["n7,v[01-03]"]
    shell = plan(Constraint(("a100",)), interactive=True, ranks_per_node=1, gpus_per_node=1)
    assert "--constraint=a100" in a_launch(shell).argv


@pytest.mark.parametrize("option", ["--gres=gpu:4", "--gres=gpu", "--gres gpu:a100:4"])
def test_another_number_of_gpus_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match=r"it contradicts the plan\. Use --gpus-per-node"):
        a_launch(a_plan(scheduler_options=(option,)))


def test_every_short_option_is_in_the_table() -> None:
    assert set(SHORT.values()) <= set(REFUSED)


def test_a_run_after_another_depends_on_its_job() -> None:
    launch = a_launch(a_plan(after="41"))
    assert "#SBATCH --dependency=afterok:41\n" in launch.scripts["job.sh"]
    assert "dependency" not in a_launch(a_plan()).scripts["job.sh"]
    for option in ("--dependency=singleton", "--depend=after:3", "-dafter:3"):
        with pytest.raises(UsageError, match=r"is not supported: --after sets it\. Leave out one of them$"):
            passed_options(a_plan(after="41", scheduler_options=(option,)))
        assert passed_options(a_plan(scheduler_options=(option,))) == [option]
