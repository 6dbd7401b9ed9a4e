from __future__ import annotations

import dataclasses

from ctrain_runtime.engines import apptainer
from ctrain_runtime.facts import Engine
from samples.plans import RUN, a_plan, an_image, some_facts


def test_the_argv_of_exec() -> None:
    assert apptainer.exec_argv(a_plan()) == [
        *("/usr/bin/apptainer", "--quiet", "exec", "--cleanenv", "--no-mount", "cwd"),
        *("--pwd", "/opt/ctrain/examples/digits", "--nv", "--bind", f"{RUN}:{RUN}:rw"),
    ]


def test_nv_only_with_a_cuda_image_and_userns_only_as_root() -> None:
    argv = apptainer.exec_argv(a_plan(image=an_image(software={}), facts=some_facts(root=True)))
    assert "--nv" not in argv
    assert "--userns" in argv


def test_the_engines_name_decides_how_variables_pass() -> None:
    plan = a_plan()
    assert apptainer.variable(plan, "RANK") == "APPTAINERENV_RANK"
    old = dataclasses.replace(plan, engine=Engine("singularity", "/usr/bin/singularity", "3.8.7"))
    assert apptainer.variable(old, "RANK") == "SINGULARITYENV_RANK"
