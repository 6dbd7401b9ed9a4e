from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.errors import CtrainError, UsageError
from ctrain_runtime.job import Job, Resources
from ctrain_runtime.run.parameters import parse_setting, with_settings, words
from ctrain_runtime.run.prepare import prepare
from samples.run_requests import asked, make_machine, plan_of
from samples.runs import Bench, ended


def a_job(*command: str, **parts: Any) -> Job:
    return Job("train", command or ("python", "train.py"), (), "auto", Resources(), None, {}, "/x", **parts)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("lr=0.1", ("lr", "0.1")), ("a.b=x=y", ("a.b", "x=y")), ("+new/one=", ("+new/one", "")), ("lr=-1", ("lr", "-1"))],
)
def test_a_setting(text: str, parsed: tuple[str, str]) -> None:
    assert parse_setting(text) == parsed


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("lr", "--set lr is not NAME=VALUE. As in: --set lr=0.1"),
        ("=1", "--set =1 is not NAME=VALUE. As in: --set lr=0.1"),
        ("a b=1", "--set a b=1 is not NAME=VALUE. As in: --set lr=0.1"),
        ("--lr=0.1", "--set --lr=0.1: a parameter has no dashes here. Write: --set lr=0.1"),
    ],
)
def test_no_setting(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_setting(text)
    assert str(error.value) == complaint


def test_words_of_either_style_and_the_last_value_of_each() -> None:
    job = a_job(parameters={"lr": "0.1", "seed": "1"})
    assert words(job) == ("--lr", "0.1", "--seed", "1")
    assert words(with_settings(job, {"seed": "2"}, "key=value")) == ("lr=0.1", "seed=2")
    assert words(a_job()) == ()


def test_a_job_that_declares_its_parameters_has_no_others() -> None:
    with pytest.raises(UsageError) as error:
        with_settings(a_job(parameters={"batch_size": "1", "lr": "2"}), {"batch-size": "3"})
    hint = "Did you mean 'batch_size'? Its parameters: batch_size, lr"
    assert str(error.value) == f"job train has no parameter 'batch-size'. {hint}"
    assert with_settings(a_job(), {"anything": "3"}).parameters == {"anything": "3"}


@pytest.mark.parametrize(("text", "fits"), [("python x.py", False), ('python x.py "$@"', True), ("echo ${1}", True)])
def test_a_text_for_a_shell_has_to_use_its_arguments(text: str, fits: bool) -> None:
    job = a_job("bash", "-lc", text)
    assert with_settings(job, {}) == job
    if fits:
        assert words(with_settings(job, {"a": "1"})) == ("--a", "1")
    else:
        with pytest.raises(UsageError, match="bash -c"):
            with_settings(job, {"a": "1"})


def test_parameters_come_after_the_command_and_before_the_arguments(programs: Path, tmp_path: Path) -> None:
    folder = make_machine(programs, tmp_path) / "job"
    text = "command: [torchrun, --nproc-per-node, 2, train.py]\nimage: pytorch\nparameters: {lr: 1.0e-4}\n"
    (folder / "job.yaml").write_text(text)
    plan = plan_of(command=("--last",), parameters={"lr": "2"})
    assert plan.program.command == ("python", "train.py", "--lr", "2", "--last")
    assert plan.program.parameters == {"lr": "2"}
    assert plan_of(parameter_style="key=value").program.command == ("python", "train.py", "lr=1.0e-4")
    with pytest.raises(CtrainError, match="no parameter 'l'"):
        prepare(asked(parameters={"l": "2"}))


def test_a_run_has_its_parameters_in_its_record(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    code, out, error = ended(bench.run("--set", "lr=0.1", "--set", "lr=a b", "--", "bash", "-c", 'echo "$@"', "x"))
    assert (code, error) == (0, "")
    assert "--lr a b" in out
    record = json.loads((bench.one / "record.json").read_text(encoding="utf-8"))
    assert record["parameters"] == {"lr": "a b"}
