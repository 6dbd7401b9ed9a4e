from __future__ import annotations

import json
from pathlib import Path

import pytest

from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.cluster.model import Partition
from ctrain_runtime.site import files
from samples.programs import answer, slurm

Out = pytest.CaptureFixture[str]
SLURM_YAML = f"{files.BUILT_IN_DIR}/generic-slurm.yaml (built-in)"


@pytest.fixture(autouse=True)
def user_file(tmp_path: Path, programs: Path) -> Path:
    """A user's overlay of the site generic-slurm, on a cluster with Slurm."""
    for name in ("sinfo", "sbatch", "srun", "scontrol", "scancel", "squeue"):
        answer(programs, name)
    path = tmp_path / "config/ctrain/sites/generic-slurm.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(f"partition: gpu\nstores: ['{tmp_path}']\nenv: {{NCCL_DEBUG: INFO}}\n")
    return path


def site(*argv: str) -> int:
    return main(RUNTIME_VERBS, ["site", *argv])


def test_list(capsys: Out) -> None:
    assert site("list") == 0
    head, *rows, empty, here = capsys.readouterr().out.splitlines()
    assert head.split() == ["site", "scheduler", "layers", "description"]
    assert "generic-slurm  slurm      built-in, user  any Slurm cluster" in rows
    assert "neuron         slurm      built-in        KISTI Neuron" in rows
    assert (empty, here) == ("", "applies here: generic-slurm (detected: sinfo, sbatch, srun)")


def test_list_shows_invalid_sites_too(user_file: Path, capsys: Out) -> None:
    user_file.with_name("lost.yaml").write_text("extends: nowhere\n")
    assert site("list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["selected"] == {"name": "generic-slurm", "reason": "detected: sinfo, sbatch, srun"}
    lost = next(entry for entry in listed["sites"] if entry["name"] == "lost")
    assert lost["description"] == f"invalid: {user_file.with_name('lost.yaml')} (user): extends: unknown site 'nowhere'"


def test_show(capsys: Out) -> None:
    assert site("show") == 0
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines() if line}
    assert list(rows)[:2] == ["name", "scheduler"]
    shown = ("name", "scheduler", "partition", "env.NCCL_DEBUG", "mpi", "require_signature", "cpus_per_gpu")
    values = ["generic-slurm", "slurm", "gpu", "INFO", '["pmix", "pmi2"]', "false", "-"]
    assert [rows[key] for key in shown] == values
    assert json.loads(rows["partitions.example"])["gpus"] == 8


def test_show_why(user_file: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTRAIN_RUNS", "/scratch/runs")
    assert site("show", "generic-slurm", "--why") == 0
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in capsys.readouterr().out.splitlines() if line}
    assert rows["key"] == "value set in rests on, read on"
    assert rows["rests"].startswith("on documented: the site's documentation")
    assert rows["scheduler"] == f"slurm {SLURM_YAML}"
    assert rows["partition"] == f"gpu {user_file} (user)"
    assert rows["env.NCCL_DEBUG"] == f"INFO {user_file} (user)"
    assert rows["detect.commands"] == f'["sinfo", "sbatch", "srun"] {SLURM_YAML}'
    assert rows["runs"] == "/scratch/runs CTRAIN_RUNS"
    assert rows["mpi"] == '["pmix", "pmi2"] default'


def test_show_as_json(user_file: Path, capsys: Out) -> None:
    assert site("show", "generic-slurm", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["reason"], shown["explicit"]) == ("requested", True)
    assert (shown["site"]["partition"], shown["sources"]["partition"]) == ("gpu", f"{user_file} (user)")


def test_show_of_an_unknown_site(capsys: Out) -> None:
    assert site("show", "generic-slrum") == 67
    assert capsys.readouterr() == ("", "ctrain: unknown site 'generic-slrum'. Did you mean 'generic-slurm'?\n")


def test_check_of_a_site_without_trouble(user_file: Path, tmp_path: Path, capsys: Out) -> None:
    assert site("check") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    shipped, changed = sorted(files.BUILT_IN_DIR.glob("*.yaml")), {"generic-slurm": [user_file]}
    assert lines == [
        *(f"site {path.stem} ok {', '.join(map(str, (path, *changed.get(path.stem, ()))))}" for path in shipped),
        "site ok generic-slurm (detected: sinfo, sbatch, srun)",
        "scheduler ok slurm: sbatch, scancel, scontrol, squeue, srun",
        f"stores ok {tmp_path}",
        f"runs ok {tmp_path}/ctrain-runs",
        "partitions warn unknown: slurm names no partition",
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


def test_init_writes_a_site_that_passes_the_check(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    slurm(programs, Partition("gpu", True, nodes=4, cpus=16, gpus=2, gpu_type="a100"))
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    path = tmp_path / "config/ctrain/sites/ours.yaml"
    assert site("init", "ours", "--dry-run") == 0
    text = capsys.readouterr().out
    assert text.startswith("# Written by `ctrain site init` on ")
    assert not path.exists()
    assert site("init", "ours") == 0
    assert capsys.readouterr().out == f"wrote {path}\nread it, then check it with: ctrain site check ours\n"
    assert path.read_text() == text
    assert site("check", "ours") == 0
    assert site("init", "ours") == 64


def test_show_why_names_what_a_value_of_a_real_site_rests_on(user_file: Path, capsys: Out) -> None:
    user_file.with_name("titan.yaml").write_text("partitions: {gpu: null, mine: {nodes: 2, cpus: 4}}\nmpi: [pmi2]\n")
    assert site("show", "titan", "--why") == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert rows["mpi"].endswith(f"{user_file.with_name('titan.yaml')} (user)")
    user_file.with_name("titan.yaml").unlink()
    assert site("show", "titan", "--why") == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("partitions.gpu"))
    file = f"{files.BUILT_IN_DIR}/titan.yaml (built-in)"
    assert f"{file} nodes, gpus, gpu_type: memory, 2026-11-23: a talk of 2023" in " ".join(line.split())
    assert "cpus, arch: unverified, 2026-11-23: nobody" in line
    assert site("show", "titan", "--json") == 0
    assert "a talk of 2023" in json.loads(capsys.readouterr().out)["evidence"]["partitions.gpu"]
