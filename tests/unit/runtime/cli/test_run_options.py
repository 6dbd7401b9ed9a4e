from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.api.job import Job
from ctrain_runtime.cli import run_options
from ctrain_runtime.cli.main import Parser
from ctrain_runtime.errors import ConfigError, SiteError, UsageError
from ctrain_runtime.plan.options import Options
from ctrain_runtime.run.request import Request


def parsed(*arguments: str, rest: tuple[str, ...] = ()) -> argparse.Namespace:
    """A command line; `rest` are the arguments after --."""
    parser = Parser(prog="ctrain run", allow_abbrev=False)
    run_options.add_arguments(parser)
    return parser.parse_args(arguments, argparse.Namespace(rest=list(rest)))


def request(*arguments: str, rest: tuple[str, ...] = ()) -> Request:
    return run_options.request_of(parsed(*arguments, rest=rest))


@pytest.mark.usefixtures("programs")  # without Slurm
def test_nothing_given_is_nothing_asked_for() -> None:
    asked = request("resnet50")
    assert asked.options == Options("resnet50")
    assert (asked.site.site.name, asked.site.explicit) == ("local", False)


def test_every_option_reaches_the_request(tmp_path: Path) -> None:
    numbers = ("--nodes", "2", "--gpus-per-node", "0", "--ranks-per-node", "3")
    words = (
        "--launcher",
        "env",
        "--partition",
        "gpu",
        "--time",
        "1:30",
        "--cpu-bind",
        "none",
        "--data",
        "d",
        "--stage",
        "never",
    )
    texts = (
        "--image",
        "pytorch:dev",
        "--name",
        "one",
        "--resume",
        "old",
        "--restarts",
        "2",
        "--layer",
        "a.sqsh",
        "--layer",
        "/b.sqsh",
    )
    slurm = ("--account", "ai", "--qos", "high", "--mem", "4G", "--comment", "a b", "--scheduler-option=--licenses=x")
    asked = request("job", *numbers, *words, *texts, *slurm, "--env", "A=b=c", "--env", "B", rest=("--lr", "0.1"))
    assert asked.options == Options(
        job="job",
        command=("--lr", "0.1"),
        image="pytorch:dev",
        layers=("a.sqsh", "/b.sqsh"),
        name="one",
        resume="old",
        stage="never",
        nodes=2,
        gpus_per_node=0,
        ranks_per_node=3,
        launcher="env",
        partition="gpu",
        time="1:30",
        cpu_bind="none",
        settings={"account": "ai", "qos": "high", "mem": "4G", "comment": "a b"},
        scheduler_options=("--licenses=x",),
        data=f"{tmp_path}/d",
        env={"A": "b=c", "B": None},
        restarts=2,
    )


def test_every_option_has_one_name() -> None:
    """On the command line and in programs; only those of several words there are made of others here."""
    names = {each.name for each in dataclasses.fields(Options)}
    parser = Parser(prog="ctrain run")
    run_options.add_arguments(parser)
    assert names - {action.dest for action in parser._actions} == {"command", "parameters", "settings"}
    assert names == {each.name for each in dataclasses.fields(Job)}


def test_a_command_line_is_the_job_that_a_program_describes() -> None:
    line = ("--set", "lr=1", "--env", "A=b=c", "--env", "TOKEN", "--mount", "d:/d:ro", "--qos", "high", "--nodes", "2")
    described = Job(
        "job",
        command=("x",),
        parameters={"lr": "1"},
        env={"A": "b=c", "TOKEN": None},
        mounts=("d:/d:ro",),
        settings={"qos": "high"},
        nodes=2,
    )
    assert vars(run_options.options_of(parsed("job", *line, rest=("x",)))) == vars(described)
    assert vars(run_options.options_of(parsed())) == vars(Job())


def test_of_an_option_that_is_given_twice_the_last_one_counts() -> None:
    asked = request("job", "--nodes", "2", "--nodes", "3", "--site", "nowhere", "--site", "generic-slurm")
    assert (asked.options.nodes, asked.site.site.name) == (3, "generic-slurm")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--nodes", "1e3"), "argument --nodes: invalid int value: '1e3'"),
        (("--nodes", ""), "argument --nodes: invalid int value: ''"),
        pytest.param(
            ("--nodes", "9" * 5000),  # more digits than Python converts
            "argument --nodes: invalid int value: '9999",
            marks=pytest.mark.skipif(not hasattr(sys, "set_int_max_str_digits"), reason="this Python converts all"),
        ),
        (("--nodes",), "argument --nodes: expected one argument"),
        (("--launcher", "MPI"), "argument --launcher: invalid choice: 'MPI'"),
        (("--scheduler-option", "--licenses=x"), "argument --scheduler-option: expected one argument"),
    ],
)
def test_a_value_that_is_none(arguments: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        request("job", *arguments)
    assert caught.value.message.startswith(complaint)
    assert caught.value.hint.endswith("See: ctrain run --help")


@pytest.mark.parametrize(
    ("mount", "made"),
    [
        ("data", "{here}/data"),
        ("data:/d:ro", "{here}/data:/d:ro"),
        ("./../data/", "{parent}/data"),
        ("/a/../b", "/b"),
        ("~/data:/d", "{here}/home/data:/d"),
        ("~nobody-of-this-name/x", "{here}/~nobody-of-this-name/x"),  # the check of mount sources then names it
        ("", ""),  # refused when the plan is made, as is ":"
        (":", ":"),
        ("a b\nc:/d", "{here}/a b\nc:/d"),
        ("\udcff:/d", "{here}/\udcff:/d"),  # a file name that is no UTF-8
    ],
)
def test_sources_of_mounts_are_absolute(mount: str, made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert request("job", "--mount", mount).options.mounts == (made.format(here=tmp_path, parent=tmp_path.parent),)


def test_the_path_of_data_is_absolute(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("directory")
    assert request("job", "--data", "link").options.data == f"{tmp_path}/directory"
    assert request("job", "--data", "").options.data == ""


@pytest.mark.parametrize(
    ("arguments", "error", "complaint"),
    [
        (("--site", "nowhere"), SiteError, "unknown site 'nowhere'"),
        (("--site", "./no.yaml"), SiteError, "site file not found: ./no.yaml"),
        (("--site", "bad.yaml/"), SiteError, "site file not found: bad.yaml/"),
    ],
)
def test_a_site_that_is_none(arguments: tuple[str, ...], error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=f"^{complaint}"):
        request("job", *arguments)


def test_options_override_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTRAIN_STORE", "/from/the/shell")
    monkeypatch.setenv("CTRAIN_RUNS", "/runs/of/the/shell")
    (tmp_path / "mine.yaml").write_text("name: mine\nscheduler: local\nstores: [/a, /b]\nruns: /c\ncomment: site\n")
    site = request("job", "--site", "./mine.yaml", "--store", "/mine", "--comment", "mine").site
    assert site.store_dirs() == ("/mine",)
    assert (site.site.runs, site.site.comment) == ("/runs/of/the/shell", "mine")
    assert site.sources["stores"] == "--store"
    plain = request("job", "--site", "./mine.yaml").site
    assert (plain.store_dirs(), plain.sources["stores"]) == (("/from/the/shell",), "CTRAIN_STORE")


def test_a_store_whose_variable_is_not_set_is_named_with_its_origin() -> None:
    site = request("job", "--store", "$NOT_SET/store").site
    with pytest.raises(ConfigError, match=r"^--store: stores: variable not set in '\$NOT_SET/store': 'NOT_SET'$"):
        site.store_dirs()


@pytest.mark.parametrize("option", ["--account", "--qos", "--constraint", "--mem", "--nodelist", "--exclude"])
def test_settings_pass_any_text(option: str) -> None:
    """Whether the scheduler takes it, it says itself, before anything is queued."""
    hostile: Any = 'a\'b "c" $(touch x) ; é'
    assert request("job", option, hostile).options.settings == {option[2:]: hostile}
