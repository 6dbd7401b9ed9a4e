from __future__ import annotations

import dataclasses
from typing import Any, Optional

import pytest

from ctrain_runtime.errors import ConfigError, CtrainError, JobError, UsageError
from ctrain_runtime.plan import site_notes
from ctrain_runtime.plan.environment import IDENTITY, passed_names, secret_names
from ctrain_runtime.plan.options import parse_env
from ctrain_runtime.site.model import Conditional
from samples.plans import CLUSTER, LOCAL, RUN, a_job, a_plan, a_site, an_image


def test_the_environment_and_who_wins() -> None:
    site = a_site(env={"A": "site", "B": "site", "C": "site"})
    job = a_job(launcher="env", env={"B": "job", "C": "job"})
    assert a_plan(site=site, job=job, env={"C": "option=x", "D": ""}).environment.variables == {
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "BASH_ENV": "",
        "ENV": "",
        "TORCHINDUCTOR_CACHE_DIR": "/home/ctrain/.cache/torchinductor",
        "TORCH_EXTENSIONS_DIR": "/home/ctrain/.cache/torch_extensions",
        "CTRAIN_RUN_DIR": str(RUN),
        "A": "site",
        "B": "job",
        "C": "option=x",
        "D": "",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{RUN}/collectives/rank",
    }


def test_the_origin_of_each_variable() -> None:
    plan = a_plan(
        site=a_site(name="neuron", env={"A": "site", "B": "site"}, cache="/cache"),
        job=a_job(env={"B": "job"}),
        env={"C": "option", "UCX_TLS": "tcp", "PASSED": None},
    )
    assert plan.environment.origins.keys() == plan.environment.variables.keys()
    assert {
        name: plan.environment.origins[name]
        for name in ("BASH_ENV", "OMPI_MCA_smsc", "HF_HOME", "A", "B", "C", "UCX_TLS")
    } == {
        "BASH_ENV": "ctrain",
        "OMPI_MCA_smsc": "ctrain, for MPI",
        "HF_HOME": "site neuron: cache",
        "A": "site neuron: env",
        "B": "job digits: env",
        "C": "option",
        "UCX_TLS": "option",
    }


def test_variables_of_several_nodes() -> None:
    """Slingshot is not configured for jobs on one node: a network that NCCL must take would fail there."""
    site = a_site(env={"A": "site", "FI": "site"}, env_multinode={"A": "several", "NCCL_NET": "AWS Libfabric"})
    one, two = (a_plan(site=site, nodes=nodes) for nodes in (1, 2))
    assert {name: one.environment.variables.get(name) for name in ("A", "FI", "NCCL_NET")} == {
        "A": "site",
        "FI": "site",
        "NCCL_NET": None,
    }
    assert (two.environment.variables["A"], two.environment.variables["NCCL_NET"]) == ("several", "AWS Libfabric")
    assert two.environment.origins["NCCL_NET"] == "site neuron: env_multinode"
    job = a_job(env={"NCCL_NET": "Socket"})
    assert a_plan(site=site, job=job, nodes=2).environment.variables["NCCL_NET"] == "Socket"
    assert (
        "NCCL_NET"
        not in a_plan(**{**LOCAL, "site": dataclasses.replace(site, scheduler="local")}, nodes=2).environment.variables
    )


@pytest.mark.parametrize(
    ("nccl", "value", "lines"),
    [
        ("2.26.5", None, 0),
        ("2.27", "^LL128", 0),
        ("2.27.3", "^LL128", 0),
        ("2.100", "^LL128", 0),
        ("", None, 1),
    ],
)
def test_variables_of_a_version_of_nccl(nccl: str, value: Optional[str], lines: int) -> None:
    site = a_site(env_multinode={"NCCL_PROTO": Conditional("^LL128", "2.27")})
    software = {"torch": "2.6.0", "cuda": "12.6", "mpi": "Open MPI 4.1.7", **({"nccl": nccl} if nccl else {})}
    plan = a_plan(site=site, image=an_image(software=software), nodes=2)
    assert plan.environment.variables.get("NCCL_PROTO") == value
    unknown = "NCCL_PROTO=^LL128 is for NCCL 2.27 and newer; the image's is unknown: not set"
    assert site_notes.notes(plan, site, CLUSTER, software) == (unknown,) * lines
    assert site_notes.notes(a_plan(site=site, nodes=1), site, CLUSTER, software) == ()


def test_a_version_of_nccl_that_is_none() -> None:
    site = a_site(env_multinode={"NCCL_PROTO": Conditional("^LL128", "new")})
    with pytest.raises(
        ConfigError, match=r"^site neuron: env_multinode.NCCL_PROTO: since_nccl must be a version of NC"
    ):
        a_plan(site=site, nodes=2)


def recorder(software: dict[str, str], **parts: Any) -> dict[str, str]:
    """The variables of torch's recorder of collectives in a plan."""
    environment = a_plan(image=an_image(software=software), **{"nodes": 2, **parts}).environment
    names = [name for name in environment.variables if name.startswith(("TORCH_NCCL_", "TORCH_FR_"))]
    return {name: environment.variables[name] for name in names}


@pytest.mark.parametrize(
    ("torch", "names"),
    [
        ("2.6.0a0+df5bbc09d1.nv24.12", ["TRACE_BUFFER_SIZE", "DUMP_ON_TIMEOUT", "DEBUG_INFO_TEMP_FILE"]),
        ("2.7.1", ["TRACE_BUFFER_SIZE", "DUMP_ON_TIMEOUT", "DEBUG_INFO_TEMP_FILE"]),
        ("2.8.0", ["TRACE_BUFFER_SIZE", "DUMP_ON_TIMEOUT", "FR_DUMP_TEMP_FILE"]),
        ("2.10.0+cu128", ["TRACE_BUFFER_SIZE", "DUMP_ON_TIMEOUT", "FR_DUMP_TEMP_FILE"]),
        ("2.11.0", ["DUMP_ON_TIMEOUT", "FR_DUMP_TEMP_FILE"]),
        ("unknown", []),
        ("", []),
    ],
)
def test_last_collectives_by_the_version_of_torch(torch: str, names: list[str]) -> None:
    known = recorder({"torch": torch, "cuda": "12.6"})
    assert [name.removeprefix("TORCH_").removeprefix("NCCL_") for name in known] == names
    values = {"TRACE_BUFFER_SIZE": "2000", "DUMP_ON_TIMEOUT": "1"}
    assert list(known.values()) == [values.get(name, f"{RUN}/collectives/rank") for name in names]


@pytest.mark.parametrize("name", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"])
def test_a_recorder_of_the_users_is_left_alone(name: str) -> None:
    """Of two names of the same, torch takes the newer one."""
    software = {"torch": "2.8.0", "cuda": "12.6"}
    for parts in (
        {"env": {name: "/mine"}},
        {"site": a_site(env={name: "/mine"})},
        {"job": a_job(env={name: "/mine"})},
    ):
        assert recorder(software, **parts) == {name: "/mine"}
    assert recorder(software, env={name: None}) == {}


def test_who_has_no_collectives_of_nccl() -> None:
    assert recorder({"torch": "2.6.0"}) == {}
    assert recorder({"torch": "2.6.0", "cuda": "12.6"}, nodes=1, ranks_per_node=1) == {}, "one rank"
    assert recorder({"torch": "2.6.0", "cuda": "12.6"}, job=a_job(independent=True, launcher="env")) == {}


@pytest.mark.parametrize("name", ["BASH_ENV", "ENV", "TORCHINDUCTOR_CACHE_DIR"])
def test_what_images_and_tools_would_do_can_be_asked_for(name: str) -> None:
    assert a_plan(env={name: "/x"}).environment.variables[name] == "/x"
    assert name not in a_plan(env={name: None}).environment.variables


def test_settings_of_mpi_can_be_overridden() -> None:
    assert a_plan().environment.variables["UCX_TLS"] == "^cma"
    assert a_plan(site=a_site(env={"UCX_TLS": "tcp"})).environment.variables["UCX_TLS"] == "tcp"


def test_the_checkpoint_to_resume_from() -> None:
    assert a_plan(resume="/old/checkpoint").environment.variables["CTRAIN_RESUME"] == "/resume"
    assert "CTRAIN_RESUME" not in a_plan().environment.variables


@pytest.mark.parametrize("text", ["=b", "1A=b", "A-B=c", "A B=c", "É=c", "", "A;B=c", "A B", "1", "$(x)", "A\n=b"])
def test_texts_that_are_no_variables(text: str) -> None:
    with pytest.raises(UsageError, match=r"--env"):
        a_plan(env=parse_env([text]))


def test_the_form_of_a_variable_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        a_plan(env={"A-B": "c"})
    assert str(caught.value) == "--env 'A-B=c' is not NAME=VALUE or NAME. As in: --env NCCL_DEBUG=INFO"


@pytest.mark.parametrize(
    ("parts", "kind", "complaint"),
    [
        ({"job": a_job(env={"A;B": "c"})}, JobError, "job digits: env: invalid variable name 'A;B'"),
        ({"site": a_site(env={"A B": "c"})}, ConfigError, "site neuron: env: invalid variable name 'A B'"),
    ],
)
def test_names_from_files_never_become_shell_code(
    parts: dict[str, Any], kind: type[CtrainError], complaint: str
) -> None:
    with pytest.raises(kind) as caught:
        a_plan(**parts)
    assert caught.value.message == complaint


@pytest.mark.parametrize("name", IDENTITY)
def test_who_a_rank_is_cannot_be_set(name: str) -> None:
    for parts in ({"env": {name: "1"}}, {"env": {name: None}}, {"job": a_job(env={name: "1"})}):
        with pytest.raises(CtrainError) as caught:
            a_plan(**parts)
        assert caught.value.message.endswith(f": {name} is set by ctrain for each rank")
    with pytest.raises(ConfigError):
        a_plan(site=a_site(env={name: "1"}))


@pytest.mark.parametrize("name", ["PET_NNODES", "PET_RDZV_ENDPOINT", "CTRAIN_HOSTS"])
def test_the_world_of_launcher_node_cannot_be_set(name: str) -> None:
    """PET_NNODES=1 would make a world of each node."""
    by_node, same = a_job(launcher="node"), {name: "1"}
    for origin, parts in (
        ("option", {"job": by_node, "env": same}),
        ("option", {"job": by_node, "env": {name: None}}),
        ("site neuron: env", {"job": by_node, "site": a_site(env=same)}),
        ("job digits: env", {"job": a_job(launcher="node", env=same)}),
    ):
        with pytest.raises(UsageError) as caught:
            a_plan(**parts)
        assert caught.value.message == f"{origin}: {name} is set by ctrain for each node"
    assert a_plan(job=a_job(launcher="torchrun"), env=same).environment.variables[name] == "1"


def test_a_name_alone_passes_the_callers_value_and_leaves_no_trace_in_the_plan() -> None:
    plan = a_plan(env={"WANDB_API_KEY": None, "A": "b"})
    assert plan.environment.passed == ("WANDB_API_KEY",)
    assert "WANDB_API_KEY" not in plan.environment.variables
    assert passed_names({"A": "b", "C": None}) == ("C",)


def test_secrets_are_known_by_their_names() -> None:
    names = (
        *("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "my_password", "DB_PASSWD", "CLIENT_SECRET"),
        *("TOKEN", "PASSWORD", "PASSWD", "APIKEY", "API_KEY", "WANDB_APIKEY", "SECRET", "GITHUB_PAT", "PGPASSWORD"),
        *("MYSQL_PWD", "SSHPASS", "REDIS_PASS", "REGISTRY_AUTH", "AZURE_CREDENTIAL", "HFTOKEN", "OPENAI_API_KEYS"),
    )
    others = (
        *("KEY", "TOKENS", "KEYBOARD", "NCCL_DEBUG", "TOKEN_PATH", "TOKENIZERS_PARALLELISM", "MAX_TOKENS"),
        *("PWD", "OLDPWD", "PATH", "COMPASS", "AUTHOR", "PATIENCE"),
    )
    assert secret_names(dict.fromkeys((*names, *others), "")) == names


def test_a_url_with_a_password_is_a_secret() -> None:
    secret = {"https_proxy": "http://kim:pw@proxy:3128", "DATABASE_URL": "postgres://kim:p%40w@db/x"}
    plain = {"http_proxy": "http://proxy:3128", "MLFLOW": "http://host:5000/a@b", "REMOTE": "ssh://git@host/x"}
    assert secret_names({**secret, **plain}) == tuple(secret)


@pytest.mark.parametrize(
    "parts", [{"env": {"HF_TOKEN": "x"}}, {"job": a_job(env={"A_KEY": "x"})}, {"site": a_site(env={"B_PASSWORD": "x"})}]
)
def test_a_run_with_secrets_is_private_on_every_site(parts: dict[str, Any]) -> None:
    site = dataclasses.replace(parts.pop("site", a_site()), share_runs=True)
    assert a_plan(site=site, **parts).private


def test_a_run_is_private_unless_the_site_shares_runs() -> None:
    assert a_plan().private
    assert not a_plan(site=a_site(share_runs=True)).private


def test_a_local_run_and_one_without_mpi() -> None:
    assert a_plan(**LOCAL).environment.variables["OMPI_ALLOW_RUN_AS_ROOT"] == "1"
    assert not any(
        name.startswith(("OMPI", "PMIX", "UCX")) for name in a_plan(job=a_job(launcher="env")).environment.variables
    )
