"""What a run will need, by what its job.yaml and its arguments say of the training."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from ctrain_runtime.errors import ConfigError, ResourceError, UsageError
from ctrain_runtime.estimate.estimate import Case, make_estimate
from ctrain_runtime.estimate.layout import Layout
from ctrain_runtime.estimate.model import Model
from ctrain_runtime.job import Training
from ctrain_runtime.plan.expectation import expect, read_settings, read_training
from ctrain_runtime.plan.model import Expectation
from ctrain_runtime.plan.size import JobSize
from samples.estimates import a_hardware
from samples.plans import a_job, a_plan, some_facts

TRAINING = Training(
    model={"layers": "layers=48", "hidden": "width=1600", "heads": 25, "sequence": 1024, "vocabulary": 50257},
    layout={"batch": "batch=64", "strategy": "strategy=ddp", "micro_batch": "micro_batch=1"},
    steps="steps=1000",
    when={
        "strategy=3d": {"strategy": "fsdp", "tp": "tp=5", "pp": "pp=2"},
        "strategy=pp": {"strategy": "ddp", "pp": "all"},
        "offload=cpu": {"offload": True},
        "offload=cpu half=true": {"precision": "autocast"},
        "fused=true": {"precision": "autocast", "loss": "fused"},
    },
)
NODE = JobSize(1, 8, gpus_per_node=8, time_limit=600)


def expected(
    *words: str,
    size: JobSize = NODE,
    gpus: tuple[str, ...] = ("NVIDIA A100-SXM4-80GB",),
    network: float = 0,
    **changes: Any,
) -> tuple[Expectation, tuple[str, ...]]:
    return expect(a_job(training=TRAINING, **changes), ("python", "train.py", *words), size, gpus, network)


def test_the_plan_has_the_estimate() -> None:
    job = a_job(launcher="env", training=TRAINING)
    checks = a_plan(job=job, facts=some_facts(gpus=("a100",)), nodes=1, estimate=True).checks
    size = JobSize(1, 8, gpus_per_node=8, time_limit=60)
    assert (checks.estimate, checks.notes) == expected(size=size, gpus=("a100",))
    assert checks.notes
    assert a_plan(job=job).checks.estimate is None
    with pytest.raises(ResourceError, match=r"^job digits does not fit: "):
        a_plan(
            job=replace(job, command=("python", "train.py", "layers=4800")),
            facts=some_facts(gpus=("a100",)),
            estimate=True,
        )


def test_a_run_needs_what_ctrain_estimate_says_of_its_model_and_layout() -> None:
    found, notes = expected()
    model = Model(48, 1600, 25, 1024, 50257)
    values = make_estimate(Case(model, a_hardware(8), Layout(64))).values
    assert found.step_seconds == values["T"]
    assert found.fastest and found.slowest and found.fastest < values["T"] < found.slowest
    assert (found.gpu, found.tokens, found.steps, notes) == ("A100-SXM4-80GB", 64 * 1024, 1000, ())
    assert found.parameters == pytest.approx(1.558e9, rel=0.005)
    assert sum(found.memory.values()) == pytest.approx(values["G"])
    assert found.memory["optimizer"] == round(values["optimizer"])
    assert found.usable == round(80 * 2**30 * 0.92)
    assert found.training == {**asdict(model), **asdict(Layout(64))}


@pytest.mark.parametrize(
    ("words", "ranks", "layout"),
    [
        ((), 8, Layout(64)),
        (("batch=32", "strategy=zero1"), 8, Layout(32, strategy="zero1")),
        (("--batch=32", "--micro-batch", "4"), 8, Layout(32, 4)),
        (("batch=8", "batch=16"), 8, Layout(16)),
        (("strategy=3D", "--offload", "cpu"), 20, Layout(64, strategy="fsdp", tp=5, pp=2, offload=True)),
        (("strategy=pp",), 4, Layout(64, pp=4)),
        (("half=true",), 8, Layout(64)),
        (("half=True", "offload=cpu"), 8, Layout(64, offload=True, precision="autocast")),
        (("strategy=3d", "tp=1"), 8, Layout(64, strategy="fsdp", pp=2)),
    ],
)
def test_arguments_of_the_program_change_the_layout(words: tuple[str, ...], ranks: int, layout: Layout) -> None:
    assert read_training(TRAINING, words, ranks)[1] == layout


@pytest.mark.parametrize(
    ("batch", "most", "ranks", "micro_batch"),
    [
        (64, 8, 1, 8),
        (64, 8, 16, 4),
        (64, 8, 64, 1),
        (24, 7, 2, 6),
        (10, 8, 1, 5),
        (4, 8, 8, 1),
        (10**7, 10**7, 1, 10**7),
    ],
)
def test_a_program_may_adapt_its_micro_batch(batch: int, most: int, ranks: int, micro_batch: int) -> None:
    training = replace(TRAINING, layout={"batch": batch, "largest_micro_batch": "micro_batch=8"})
    assert read_training(training, (f"micro_batch={most}",), ranks)[1] == Layout(batch, micro_batch)


def test_a_pipeline_has_a_micro_batch_for_each_stage() -> None:
    training = replace(TRAINING, layout={"batch": 8, "largest_micro_batch": 8, "pp": 4})
    assert read_training(training, (), 4)[1] == Layout(8, 2, pp=4)
    with pytest.raises(ConfigError, match=r"training\.layout: micro_batch must be an integer, not a string"):
        read_training(replace(training, layout={"batch": 8, "largest_micro_batch": "many"}), (), 4)


def test_a_setting_may_change_the_model() -> None:
    model = {**TRAINING.model, "kv_heads": "kv_heads=0", "ffn": "ffn=0"}
    training = replace(TRAINING, model=model, when={"model=llama": {"gated": True, "biases": False, "tp": 5}})
    plain, _, _ = read_training(training, (), 5)
    assert (plain.gated, plain.biases, plain.kv_heads, plain.ffn) == (False, True, 0, 0)
    gated, layout, _ = read_training(training, ("model=llama", "kv_heads=5", "ffn=100"), 5)
    assert (gated.gated, gated.biases, gated.kv_heads, gated.ffn, layout.tp) == (True, False, 5, 100, 5)


def test_settings_are_read_as_programs_write_them() -> None:
    words = ("python", "train.py", "a=1", "--b=2=3", "--long-name", "4", "--flag", "--c", "-5", "--last")
    settings = {"a": "1", "b": "2=3", "long_name": "4", "flag": "true", "c": "-5", "last": "true"}
    assert read_settings(words) == settings
    assert read_settings(()) == {}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("layers=0",), "training.model: layers must be a positive integer of at most 16777216, not 0"),
        (("layers=99999999",), "training.model: layers must be a positive integer of at most"),
        (("layers=" + "9" * 5000,), "training.model: layers must be an integer, not a string"),
        (("width=x",), r"training.model: hidden must be an integer, not a string \('x'\)"),
        (
            ("strategy=magic",),
            "training.layout: strategy must be ddp or zero1 or zero2 or zero3 or fsdp or hsdp, not 'magic'",
        ),
        (("steps=many",), "training: steps must be an integer, not 'many'"),
        (("batch=65",), "batch 65 is not a multiple of dp 8 x micro batch 1 = 8. Nearest: --batch 64 or --batch 72"),
        (("strategy=3d", "tp=4"), "25 heads cannot be split among tp 4. Nearest: --tp 1"),
    ],
)
def test_what_is_no_training_is_named_with_its_key(words: tuple[str, ...], error: str) -> None:
    with pytest.raises(UsageError, match=f"^job digits cannot be estimated: {error}"):
        expected(*words)


def test_a_wrong_key_is_named_with_the_right_one() -> None:
    with pytest.raises(ConfigError, match=r"training.model: unknown key 'hiden'. Did you mean 'hidden'"):
        read_training(Training({"layers": 1, "hiden": 2, "heads": 1}, {"batch": 1}, 1), (), 1)
    with pytest.raises(ConfigError, match=r"training.when: 'bf16' is not NAME=VALUE. As in: bf16=true"):
        read_training(Training({}, {}, 1, {"bf16": {"precision": "bf16"}}), (), 1)
    with pytest.raises(ConfigError, match=r"training.when: '' is not NAME=VALUE"):
        read_training(Training({}, {}, 1, {"": {"precision": "bf16"}}), (), 1)
    with pytest.raises(ConfigError, match=r"training.layout: key 'batch' is missing"):
        read_training(Training({"layers": 1, "hidden": 2, "heads": 1}, {}, 1), (), 1)


def test_a_job_that_says_nothing_of_its_training() -> None:
    with pytest.raises(UsageError, match=r"job digits cannot be estimated: it does not say what it trains. Add"):
        expect(a_job(), ("true",), NODE, ("a100",), 0)


def test_what_does_not_fit_is_refused_with_a_layout_that_does() -> None:
    with pytest.raises(ResourceError) as refused:
        expected("layers=96", "width=6400", "batch=8")
    problem, _, hint = str(refused.value).partition(". Fits, in options of ctrain estimate: ")
    assert problem.startswith("job digits does not fit: ")
    assert problem.endswith(" GB per GPU, 79.0 GB are usable")
    assert hint.startswith("--strategy zero3 ")


def test_what_published_runs_had_enough_memory_for_is_a_note() -> None:
    note = expected("fused=true", "micro_batch=16", "batch=128")[1][0]
    assert note.startswith("unknown whether it fits: 8") and note.endswith(", as of published runs that had enough")


def test_a_run_that_cannot_end_in_its_time_is_not_refused_because_it_may_be_resumed() -> None:
    assert expected("steps=1000", size=JobSize(1, 8, 8, time_limit=None))[1] == ()
    _, (note,) = expected("steps=1000000")
    assert note.startswith("1000000 steps take ")
    assert ", or up to " in note
    assert note.endswith(" d; the limit is 10:00:00: pass --time, or resume the run later")


def test_the_network_between_nodes_is_the_sites_or_an_assumption() -> None:
    nodes = JobSize(2, 8, gpus_per_node=8)
    slow, (measured,) = expected(size=nodes, network=1)
    assert measured == "network: 1 GB/s per node, as expected_bandwidth of the site"
    fast, (assumed,) = expected(size=nodes)
    assert assumed == "network: 8 x 200 Gb/s per node (assumed)"
    assert slow.step_seconds and fast.step_seconds and slow.step_seconds > fast.step_seconds
    assert expected(gpus=("v100-sxm2-32gb",))[1] == ("unverified of V100-SXM2-32GB: link, efficiency",)


def test_an_ambiguous_type_is_the_smallest_that_suffices_and_refuses_nothing_that_a_larger_one_could_do() -> None:
    small, (note,) = expected(gpus=("a100",))
    names = "A100-SXM4-40GB, A100-PCIe-40GB, A100-SXM4-80GB, A100-PCIe-80GB"
    assert (small.gpu, small.usable) == ("A100-SXM4-40GB", round(40 * 2**30 * 0.92))
    assert note == f"GPU type a100 is ambiguous ({names}): estimated as A100-SXM4-40GB"
    words = ("layers=96", "batch=8")
    large, notes = expected(*words, gpus=("a100",))
    assert large.gpu == "A100-SXM4-80GB" and large.usable and sum(large.memory.values()) < large.usable
    assert notes == (
        f"GPU type a100 is ambiguous ({names}): estimated as A100-SXM4-80GB",
        "does not fit A100-SXM4-40GB: it runs only if the GPUs are A100-SXM4-80GB",
    )
    for gpus in (("A100-SXM4-40GB",), ("a100_3g.40gb",)):
        with pytest.raises(ResourceError, match=r"does not fit: .* GB per GPU, 39.5 GB are usable"):
            expected(*words, gpus=gpus)


@pytest.mark.parametrize(
    ("size", "gpus"),
    [
        (JobSize(2, 4), ()),  # no GPUs, or an image without CUDA
        (NODE, ("mi250",)),
        (NODE, ("a100", "h100")),
        (JobSize(1, 8, gpus_per_node=4), ("a100",)),  # ranks share GPUs
    ],
)
def test_nothing_is_guessed_of_gpus_that_are_not_known(size: JobSize, gpus: tuple[str, ...]) -> None:
    for words in ((), ("strategy=pp",), ("strategy=zero3",), ("offload=cpu", "strategy=zero1")):
        found, notes = expected(*words, size=size, gpus=gpus)
        assert (found.gpu, found.usable, found.step_seconds, notes) == ("", None, None, ())
        assert found.memory["parameters"] > 0
