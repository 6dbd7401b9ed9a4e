from __future__ import annotations

from dataclasses import replace

import yaml

from ctrain_runtime.batch_script.job_yaml import describe, job_text, run_line, shorten
from ctrain_runtime.batch_script.model import BatchJob, Remark

JOB = BatchJob(
    line=9,
    image="/apps/p.sif",
    command=("python", "t.py", "--lr", "1e-4", "--flag", "yes", "a: b"),
    launcher="auto",
    nodes=2,
    gpus_per_node=4,
    ranks_per_node="auto",
    time="2:00:00",
    env={"N": "1", "ON": "no"},
    options=("--account", "ai kim"),
    directory="/d",
    remarks=(Remark(3, "trap x\nEXIT", "nothing does it now"), Remark(4, "module load x", "why", lost=False)),
)


def test_what_is_written_is_read_as_it_was() -> None:
    keys = yaml.safe_load(job_text(JOB, "job.sbatch"))
    assert keys == {
        "image": "/apps/p.sif",
        "command": list(JOB.command),
        "resources": {"nodes": 2, "gpus_per_node": 4, "ranks_per_node": "auto", "time": "2:00:00"},
        "env": JOB.env,
    }
    assert "launcher: mpi\n" in job_text(replace(JOB, launcher="mpi"), "x")


def test_a_program_of_several_lines_is_on_one() -> None:
    text = job_text(replace(JOB, command=("bash", "-c", "\ncd x\n./y 'z'\n"), remarks=()), "x")
    assert "command: [bash, -c, \"\\ncd x\\n./y 'z'\\n\"]\n" in text


def test_lines_of_the_script_are_comments() -> None:
    text = job_text(JOB, "job\n.sbatch")
    assert text.startswith("# Made from job .sbatch by: ctrain import script.")
    assert text.endswith(
        "# Not carried over:\n#   line 3: trap x EXIT  (nothing does it now)\n"
        "# No longer needed:\n#   line 4: module load x  (why)\n"
    )


def test_the_line_that_runs_it() -> None:
    assert run_line(JOB, ".") == "ctrain run . --account 'ai kim'"
    assert describe(JOB.remarks) == "line 3 (trap x EXIT), line 4 (module load x)"


def test_secrets_and_control_characters_are_in_no_comment() -> None:
    assert shorten("export A=1 HF_TOKEN='a b' x") == "export A=1 HF_TOKEN=*** x"
    assert shorten("export https_proxy=http://kim:pw@host:1") == "export https_proxy=http://***@host:1"
    assert shorten("a\x1b[0m") == "a?[0m"
    assert len(shorten("x" * 500)) == 90
