"""Laws of imported batch scripts: any text is a job that is read as it was written, or an error in one line."""

from __future__ import annotations

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from ctrain_runtime.base import config
from ctrain_runtime.batch_script.job import make_job
from ctrain_runtime.batch_script.job_yaml import job_text, run_line
from ctrain_runtime.batch_script.script import read_script
from ctrain_runtime.errors import JobError
from ctrain_runtime.job import JobFile

PIECES = (
    *("#SBATCH ", "#PBS ", "--nodes=", "-N", "-n ", "-l select=", "--gres=gpu:", "--time=", "2", "99999999999"),
    *("srun ", "mpirun -np ", "mpiexec -env ", "aprun ", "singularity exec ", "apptainer run ", "--nv ", "-B "),
    *("--pwd ", "--env ", "/a:/b ", "p.sif ", "python t.py ", "torchrun --nproc_per_node=", "deepspeed ", "bash -c "),
    *("export ", "A=", "$A", "${A:-", "$((", "))", "$(", ")", "}", "`", "'", '"', "\\", "#", "|", "&", ";", "<<", ">"),
    *("if ", "fi\n", "cd ", "..", "\x02", "\x03", "\x1b", "\u2028", "\x85", "\ud7ff", "*", "**", "/", "(", "=", ","),
    *(":", "horovodrun -np 4 -H $A ", "\n", " ", "\\\n"),
)
scripts = st.text(max_size=60) | st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
LAUNCH = "#!/bin/sh\n{}\nsrun singularity exec /p.sif python t.py\n"


def read(text: str) -> None:
    made = make_job(read_script(text, "/work", {"HOME": "/home/kim"}))
    written = job_text(made, "job.sbatch")
    keys = config.load(JobFile, yaml.safe_load(written), "job.yaml")
    assert keys.command == made.command
    assert keys.image == made.image
    assert keys.env == made.env
    assert keys.resources.nodes == made.nodes >= 1
    assert "\n" not in run_line(made, ".") or any("\n" in word for word in made.options)


@given(scripts)
@example('srun singularity exec p.sif python "$(' + "(" * 500)
@example("A=" + "$((" + "(" * 90 + "1" + ")" * 90 + "))\nsrun $A singularity exec p.sif x")
@example("srun singularity exec p.sif x " + "${A:-" * 3000)
def test_any_text_is_a_job_or_an_error(text: str) -> None:
    try:
        read(text)
    except JobError as error:
        assert "\n" not in str(error)


@given(scripts)
def test_whatever_stands_before_a_launch_the_job_is_sound(text: str) -> None:
    try:
        read(LAUNCH.format(text))
    except JobError as error:  # it may open a quote, which takes the launch in
        assert "no line starts" in str(error)
