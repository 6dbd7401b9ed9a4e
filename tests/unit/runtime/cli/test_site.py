from __future__ import annotations

import json
from pathlib import Path

import pytest

from ctrain_runtime import site_files
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from samples.programs import answer

Out = pytest.CaptureFixture[str]
SLURM_YAML = f"{site_files.BUILT_IN_DIR}/slurm.yaml (built-in)"


@pytest.fixture(autouse=True)
def user_file(tmp_path: Path, programs: Path) -> Path:
    """A user's overlay of the site slurm, on a cluster with Slurm."""
    for name in ("sinfo", "sbatch", "srun", "scontrol", "scancel", "squeue"):
        answer(programs, name)
    path = tmp_path / "config/ctrain/sites/slurm.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(f"partition: gpu\nstores: ['{tmp_path}']\nenv: {{NCCL_DEBUG: INFO}}\n")
    return path


def site(*argv: str) -> int:
    return main(RUNTIME_VERBS, ["site", *argv])


def test_list(capsys: Out) -> None:
    assert site("list") == 0
    assert (
        capsys.readouterr().out
        == """\
site    scheduler  layers          description
local   local      built-in        this machine alone, without a scheduler (a laptop, a login node, a CI runner)
neuron  slurm      built-in        KISTI Neuron
slurm   slurm      built-in, user  any Slurm cluster

applies here: slurm (detected: sinfo, sbatch, srun)
"""
    )


def test_list_shows_invalid_sites_too(user_file: Path, capsys: Out) -> None:
    user_file.with_name("lost.yaml").write_text("extends: titan\n")
    assert site("list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["selected"] == {"name": "slurm", "reason": "detected: sinfo, sbatch, srun"}
    lost = next(entry for entry in listed["sites"] if entry["name"] == "lost")
    assert lost["description"] == f"invalid: {user_file.with_name('lost.yaml')} (user): extends: unknown site 'titan'"


def test_show(capsys: Out) -> None:
    assert site("show") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["name               slurm", "scheduler          slurm"]
    assert "partition          gpu" in lines
    assert "env.NCCL_DEBUG     INFO" in lines
    assert 'mpi                ["pmix", "pmi2"]' in lines
    assert "require_signature  false" in lines
    assert "cpus_per_gpu       -" in lines


def test_show_why(user_file: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTRAIN_RUNS", "/scratch/runs")
    assert site("show", "slurm", "--why") == 0
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in capsys.readouterr().out.splitlines()}
    assert rows["scheduler"] == f"slurm {SLURM_YAML}"
    assert rows["partition"] == f"gpu {user_file} (user)"
    assert rows["env.NCCL_DEBUG"] == f"INFO {user_file} (user)"
    assert rows["detect.commands"] == f'["sinfo", "sbatch", "srun"] {SLURM_YAML}'
    assert rows["runs"] == "/scratch/runs CTRAIN_RUNS"
    assert rows["mpi"] == '["pmix", "pmi2"] default'


def test_show_as_json(user_file: Path, capsys: Out) -> None:
    assert site("show", "slurm", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["reason"], shown["explicit"]) == ("requested", True)
    assert (shown["site"]["partition"], shown["sources"]["partition"]) == ("gpu", f"{user_file} (user)")


def test_show_of_an_unknown_site(capsys: Out) -> None:
    assert site("show", "slrum") == 67
    assert capsys.readouterr() == ("", "ctrain: unknown site 'slrum'. Did you mean 'slurm'?\n")


def test_check_of_a_site_without_trouble(user_file: Path, tmp_path: Path, capsys: Out) -> None:
    assert site("check") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    built_in = site_files.BUILT_IN_DIR
    assert lines == [
        f"site local ok {built_in}/local.yaml",
        f"site neuron ok {built_in}/neuron.yaml",
        f"site slurm ok {built_in}/slurm.yaml, {user_file}",
        "site ok slurm (detected: sinfo, sbatch, srun)",
        "scheduler ok slurm: sbatch, scancel, scontrol, squeue, srun",
        f"stores ok {tmp_path}",
        "runs ok ctrain-runs",
    ]


def test_check_of_one_site(capsys: Out) -> None:
    assert site("check", "neuron", "--json") == 67
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert findings[0] == {"subject": "site", "level": "ok", "text": "neuron (requested)", "hint": ""}
    assert {"stores", "datasets.imagenet"} <= {one["subject"] for one in findings if one["level"] == "fail"}
    assert not any(one["subject"].startswith("site ") for one in findings)


def test_check_goes_on_after_a_broken_file(user_file: Path, capsys: Out) -> None:
    user_file.with_name("bad.yaml").write_text("partition: [\n")
    Path("ctrain.yaml").write_text("trusted_keys: []\n")
    assert site("check") == 67
    failed = [line for line in capsys.readouterr().out.splitlines() if " fail " in line]
    assert len(failed) == 2
    assert f"{user_file.with_name('bad.yaml')}, line 2: " in failed[0]
    assert "ctrain.yaml, line 1: trusted_keys cannot be set by a project" in failed[1]
