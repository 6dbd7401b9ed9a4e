from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ctrain_runtime.cluster.model import Cluster, Constraint
from ctrain_runtime.errors import UsageError
from ctrain_runtime.schedulers.pbs.options import job_options
from ctrain_runtime.site.model import Site
from samples import pbs_stand_in
from samples.plans import GPU_PARTITION, a_job, a_plan, changed, some_facts

OWN = {"Job_Name": "digits-1", "select": "2:ncpus=64:mpiprocs=8:ngpus=8", "walltime": "01:00:00"}


def words(*options: str, site: tuple[str, ...] = (), **parts: Any) -> list[list[str]]:
    cluster = Cluster((dataclasses.replace(GPU_PARTITION, cpu_bind=""),))
    plan = a_plan(
        site=Site(name="ours", scheduler="pbs", submit=site),
        facts=some_facts(cluster=cluster, umask=parts.pop("umask", "")),
        job=a_job(launcher="env"),
        scheduler_options=options,
        **{"nodes": 2, **parts},
    )
    return job_options(plan)


def requested(*options: str, **parts: Any) -> dict[str, str]:
    """The resources as qsub understands them, and a few attributes: of what is given twice the first wins."""
    given, resources = pbs_stand_in.read_options([word for line in words(*options, **parts) for word in line])
    return {**resources, "Job_Name": given["N"], "Account": given.get("A", "")}


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ((), "scatter"),
        (("-l place=scatter:excl",), "scatter:excl"),
        (("-lplace=scatter:excl",), "scatter:excl"),
        (("-hl place=free",), "free"),
        (("-l PLACE=vscatter:shared",), "vscatter:shared"),
        (("-lplace=excl",), "scatter:excl"),  # as the docs say it, with ctrain's arrangement
        (("-lplace=group=switch",), "scatter:group=switch"),
        (("-l filesystems=home,place=scatter:exclhost",), "scatter:exclhost"),
        (("-l place=free", "-l place=scatter:excl"), "scatter:excl"),
    ],
)
def test_the_users_place_replaces_that_of_ctrain(options: tuple[str, ...], place: str) -> None:
    found = requested(*options)
    assert found["place"] == place
    assert {name: found[name] for name in OWN} == OWN
    assert sum("place=" in word for line in words(*options) for word in line) == 1


def test_chunks_select_hosts_by_the_features_of_the_plan() -> None:
    """Among which are the user's own."""
    plan = a_plan(
        site=Site(name="ours", scheduler="pbs"),
        job=a_job(launcher="env"),
        settings={"constraint": "tier0=a"},
    )
    own = changed(plan, constraint=Constraint(("tier0=a", "gpu_type=v100")))
    select = "1:ncpus=64:mpiprocs=8:ngpus=8:tier0=a"
    assert [words[1] for words in job_options(plan) if words[1].startswith("select=")] == [f"select={select}"]
    assert ["-l", f"select={select}:gpu_type=v100"] in job_options(own)


def test_the_rest_of_an_option_with_a_place_stays() -> None:
    assert requested("-l filesystems=home:eagle,place=excl,x=1")["filesystems"] == "home:eagle"
    assert requested("-l filesystems=home:eagle,place=excl,x=1")["x"] == "1"
    assert ["-h"] in words("-hl place=free")


def test_a_place_on_one_host_is_refused_for_several_nodes() -> None:
    with pytest.raises(UsageError) as caught:
        words("-l place=pack")
    problem = "qsub option '-l place=pack' is not supported: it would put 2 nodes on one host"
    assert str(caught.value) == f"{problem}. Use place=scatter"
    assert requested("-l place=pack", nodes=1)["place"] == "pack"


def test_the_last_of_several_options_counts() -> None:
    """A user's option comes after that of the site file, and qsub takes the first."""
    site = ("-l filesystems=home:eagle", "-A site")
    assert requested("-l filesystems=home", "-A mine", site=site)["filesystems"] == "home"
    assert requested("-l filesystems=home", "-A mine", site=site)["Account"] == "mine"
    assert requested("-A mine", settings={"account": "option"})["Account"] == "mine"


PLANNED, LOGGED = "it contradicts the plan", "ctrain reads the job's output in the run directory. Remove it"
AGAIN = "a second start would mix its records with those of the first. Remove it; --retries N queues a job again"


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("-l select=4:ncpus=1", f"{PLANNED}. Use --nodes, --gpus-per-node and --constraint"),
        ("-lselect=4", f"{PLANNED}. Use --nodes, --gpus-per-node and --constraint"),
        ("-l nodes=4:ppn=8", f"{PLANNED}. Use --nodes, --gpus-per-node and --constraint"),
        ("-l walltime=1:00:00", f"{PLANNED}. Use --time"),
        ("-l place=excl,walltime=1:00:00", f"{PLANNED}. Use --time"),
        ("-l filesystems=home, WallTime=1:00:00", f"{PLANNED}. Use --time"),
        ("-hlwalltime=1:00:00", f"{PLANNED}. Use --time"),
        ("-l ngpus=2", f"{PLANNED}. Use --gpus-per-node"),
        ("-l ncpus=2", f"{PLANNED}. Use --ranks-per-node"),
        ("-l mem=2gb", f"{PLANNED}. Use --mem"),
        ("-ry", AGAIN),
        ("-r y", AGAIN),
        ("-hry", AGAIN),
        ("-o /tmp/x", LOGGED),
        ("-o/tmp/x", LOGGED),
        ("-e x", LOGGED),
        ("-j n", LOGGED),
        ("-N mine", f"{PLANNED}. Use --name NAME"),
        ("-Nmine", f"{PLANNED}. Use --name NAME"),
        ("-z", "ctrain needs the id that qsub prints. Remove it"),
        ("-hz", "ctrain needs the id that qsub prints. Remove it"),
        ("-W block=true", "qsub would wait for the end of the job. Remove it; ctrain run waits"),
        ("-Wdepend=afterok:7,block=true", "qsub would wait for the end of the job. Remove it; ctrain run waits"),
        ("-hI", "an interactive job runs no script. Remove it"),
        ("-J0-3", "all subjobs of an array would write to one run directory. Submit one run per element"),
    ],
)
def test_what_contradicts_the_plan_is_refused(option: str, reason: str) -> None:
    for given in ({"site": (option,)}, {"settings": {}}):
        with pytest.raises(UsageError) as caught:
            words(*(() if "site" in given else (option,)), **given)
        assert str(caught.value) == f"qsub option {option!r} is not supported: {reason}"


def test_the_queue_stands_apart() -> None:
    """Else the job would go to a queue that the plan does not know."""
    with pytest.raises(UsageError) as caught:
        words("-hq other")
    assert str(caught.value) == "qsub option '-hq other' combines letters: ctrain reads -q, too. Write -q QUEUE apart"


@pytest.mark.parametrize("option", ["-m ae", "-Wumask=022", "-p 10", "-P project", "-l filesystems=select=2", "-koed"])
def test_other_options_pass(option: str) -> None:
    assert " ".join(words(option)[-1]) == option


def test_files_of_a_job_have_the_modes_that_the_users_umask_leaves() -> None:
    assert ["-W", "umask=027"] in words(umask="027")
    for own in ("-Wumask=022", "-W group_list=ai,umask=022"):
        assert [line for line in words(own, umask="027") if "umask" in line[-1]] == [words(own)[-1]]
    assert not [line for line in words() if "umask" in line[-1]]


def test_a_run_after_another_depends_on_its_job() -> None:
    assert ["-W", "depend=afterok:41.login01"] in words(after="41.login01")
    assert ["-W", "depend=afterany:41.login01"] in words(after="41.login01", after_any=True)
    with pytest.raises(UsageError, match=r"is not supported: --after sets it\. Leave out one of them$"):
        words("-Wdepend=after:7", after="41.login01")
    assert ["-Wdepend=after:7"] in words("-Wdepend=after:7")
