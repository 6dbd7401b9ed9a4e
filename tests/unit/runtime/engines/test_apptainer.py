from __future__ import annotations

import dataclasses

from ctrain_runtime.engines import apptainer
from ctrain_runtime.engines.apptainer import Engine
from samples.layers import a_layer
from samples.plans import RUN, a_plan, an_image, some_facts


def test_the_argv_of_exec() -> None:
    assert apptainer.exec_argv(a_plan()) == [
        *("/usr/bin/apptainer", "--quiet", "exec", "--cleanenv", "--no-mount", "cwd"),
        *("--pwd", "/opt/ctrain/examples/digits", "--no-eval", "--nv", "--bind", f"{RUN}:{RUN}:rw"),
    ]


def test_engines_older_than_no_eval_are_not_given_it() -> None:
    for name, version, known in [
        ("apptainer", "1.0.3", False),
        ("apptainer", "1.1.0", True),
        ("singularity", "3.9.7", False),
        ("singularity", "3.11.0", True),
        ("singularity", "4.3.4", True),
    ]:
        plan = dataclasses.replace(a_plan(), engine=Engine(name, "/usr/bin/engine", version))
        assert ("--no-eval" in apptainer.exec_argv(plan)) is known


def test_nv_only_with_a_cuda_image_and_userns_only_as_root() -> None:
    argv = apptainer.exec_argv(a_plan(image=an_image(software={}), facts=some_facts(is_root=True)))
    assert "--nv" not in argv
    assert "--userns" in argv


def test_user_layers_lie_over_the_image_in_their_order_and_read_only() -> None:
    argv = apptainer.exec_argv(a_plan(layers=(a_layer("/a.sqsh"), a_layer("/b.sqsh"))))
    assert argv[-4:] == ["--overlay", "/a.sqsh:ro", "--overlay", "/b.sqsh:ro"]


def test_the_engines_name_decides_how_variables_pass() -> None:
    plan = a_plan()
    assert apptainer.variable(plan, "RANK") == "APPTAINERENV_RANK"
    old = dataclasses.replace(plan, engine=Engine("singularity", "/usr/bin/singularity", "3.8.7"))
    assert apptainer.variable(old, "RANK") == "SINGULARITYENV_RANK"
