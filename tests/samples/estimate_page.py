"""What the pages on estimates show, as it is now: the examples of estimate.md, and estimate-evidence.md."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ctrain_runtime.base.text import format_size
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.estimate.estimate import Case, make_estimate
from ctrain_runtime.estimate.evidence import Run, median, most_memory, published_runs
from ctrain_runtime.estimate.families import NAMES, OTHER
from ctrain_runtime.estimate.layout import Layout
from ctrain_runtime.estimate.model import Model
from samples.estimates import a_case

DOCS = Path(__file__).parents[2] / "docs"
_MEASURED = [Path(__file__).with_name("memory") / name for name in ("measured.csv", "measured_ranks.csv")]
_MEMORY = """## Memory of the example gpt

Bytes of all tensors at the peak of a step, as measured without a GPU and as estimated: with DDP by
`tests/samples/memory/measure.py` on fake tensors, with other strategies by `measure_ranks.py`, on one of ranks that are
not there or on all of a pipeline, and with DeepSpeed's bucket as small beside the model as it usually is. `micro`:
sequences of a micro batch, times their number.
"""
_EXAMPLE = re.compile(r"^```\n(\$ ctrain estimate [^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEAD = """# How far estimates are off

Made from `runtime/ctrain_runtime/estimate/published.csv` by `tests/golden/regenerate.py`; a test compares it. How
estimates are made: [estimate-formulas.md](estimate-formulas.md).

`ratio` is the published time over the estimated one: above 1, the estimate is too fast. The numbers of a family of
programs were fitted to every other model of it, in the order of the file; the rest judges them, and makes the band of
each answer: no model judges that was fitted to. `assumed`: the source does not say the layout, or what a node has, or
recomputes a part of the layers; such runs do neither. Nor do those marked `other`, of GPT-NeoX where it splits layers:
estimated as if they were of Megatron-LM, they took 1.1 to 1.5 times as long. Megatron-DeepSpeed (BLOOM, MT-NLG) counts
as Megatron-LM.

What other sources leave open is assumed, too: a micro batch of one sequence for Megatron-LM,
nodes of eight GPUs with one adapter each. torchtitan's H100 have 95 GiB of memory of 2.4 TB/s, which is estimated, and
a limit of 500 W, which is not. What torch.compile saves of FSDP is not told: 14 to 28 % of the time of Llama; that it
recomputes a little is estimated as none. GPT-NeoX's loss takes 6 bytes of a logit, estimated are the 4 of a fused one.
Megatron-LM's README overlaps tensor parallelism, which needs sequence parallelism. The schedules of that README
and of Llama 3, which interleave in parts that are not published, are estimated by a number that is fitted. That
Llama 3's runs split sequences as well follows from no word of its paper but a citation.

Runs of PyTorch DDP differ by their release of torch: GPT-2 reached 109,000 tokens/s on an A100 with 2.0 (micro batch
12), and 209,000 with 2.8; no number of this page can meet both. gpt2-1.5B on H100 was run with 2.4, with which GPT-2
took 8 % longer than with 2.5. Cards (PCIe, NVL) and GPUs that nothing was fitted to are estimated by the numbers of
the A100 or the H100 and their own peak. That leaves out their limits of power, 72 W of an L4. V100s are estimated by
the numbers of the A100, and their one run was no benchmark.

The goal is a median error of 8 %, and nine of ten runs within 20 %, for each family on A100 and H100 with five or more
runs that judge. `fit`: of the runs whose layout is known, those that fit into the usable memory by the estimate; all
ran. `most`: how many times the usable memory the largest took, by the estimate. Up to that an answer is "unknown".
"""
_PUBLISHED_MEMORY = """## Memory of other programs

What torch had reserved at the peak, as published, and what is estimated. Tensors take less than that.
"""


def examples(page: str) -> list[tuple[str, str]]:
    """The commands of a page that show an estimate, and what they print there."""
    return [(match[1], match[2]) for match in _EXAMPLE.finditer(page)]


def with_new_examples(page: str) -> str:
    def renew(match: re.Match[str]) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            main(RUNTIME_VERBS, match[1].split()[2:])
        return f"```\n{match[1]}\n{out.getvalue()}```"

    return _EXAMPLE.sub(renew, page)


def evidence() -> str:
    """The page of all published runs."""
    runs = published_runs()
    groups = list(dict.fromkeys(run.group for run in runs))
    summary = [_summary(group, [run for run in runs if run.group == group]) for group in sorted(groups)]
    head = [
        "family",
        "GPUs",
        "models that judge",
        "runs",
        "median error",
        "within 20 %",
        "ratios",
        "goal",
        "fit",
        "most",
    ]
    parts = [_HEAD, _table(head, [row for rows in summary for row in rows])]
    for kind, generation in sorted(groups):
        rows = [_row(run) for run in runs if run.group == (kind, generation)]
        columns = ["run", "GPUs", "sequence", "layout", "published", "estimated", "ratio", "", "source"]
        parts += [f"## {NAMES[kind]}, {generation}\n", _table(columns, rows)]
    return "\n".join([*parts, _MEMORY, _memory_table(), _PUBLISHED_MEMORY, _published_memory()])


def measured() -> list[tuple[dict[str, str], Case]]:
    """The measured cases of the example gpt, each with the case to estimate."""
    texts = [path.read_text(encoding="utf-8").splitlines() for path in _MEASURED]
    return [(row, _measured_case(row)) for text in texts for row in csv.DictReader(text)]


def measured_llama() -> list[tuple[dict[str, str], Case]]:
    """The measured cases of the example as a Llama, each with the case to estimate."""
    path = Path(__file__).with_name("memory") / "measured_llama.csv"
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    of_llama: dict[str, Any] = {"gated": True, "learned_positions": False, "biases": False}
    own = [{"kv_heads": int(row["kv_heads"]), "ffn": int(row["ffn"]), **of_llama} for row in rows]
    cases = [_measured_case(row) for row in rows]
    models = [replace(case.model, **shape) for case, shape in zip(cases, own)]
    return [(row, replace(case, model=model)) for row, case, model in zip(rows, cases, models)]


def measured_host() -> list[dict[str, str]]:
    """What the example gpt was measured to keep in the host's memory."""
    path = Path(__file__).with_name("memory") / "measured_host.csv"
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def _measured_case(row: dict[str, str]) -> Case:
    """As the example's job.yaml says of its strategies."""
    sizes = {"tp": 1, "pp": 1, **{key: int(value) for key, value in row.items() if value.isdecimal()}}
    model = Model(*(sizes[key] for key in ("layers", "width", "heads", "context", "vocabulary")), tied=False)
    replicas = sizes["ranks"] // (sizes["tp"] * sizes["pp"])
    cast = "autocast" if row["strategy"] in ("ddp", "tp", "pp") else "bf16"
    return a_case(
        model,
        sizes["ranks"],
        replicas * sizes["micro_batch"] * sizes["micro_batches"],
        strategy={"tp": "ddp", "pp": "ddp", "3d": "fsdp"}.get(row["strategy"], row["strategy"]),
        tp=sizes["tp"],
        pp=sizes["pp"],
        micro_batch=sizes["micro_batch"],
        precision=cast if row["bf16"] == "True" else "fp32",
        recompute="full" if row["recompute"] == "True" else "none",
    )


def _memory_table() -> str:
    rows = []
    for row, case in measured():
        model, layout, estimated = case.model, case.layout, make_estimate(case).values["G"]
        shape = f"{model.layers} x {model.hidden}, {model.sequence} tokens, vocabulary {model.vocabulary}"
        ranks = f"{row['strategy']}, {case.hardware.count} ranks" if case.hardware.count > 1 else row["strategy"]
        how = f"{ranks}: {layout.precision}, recompute {layout.recompute}" + _split(layout)
        sizes = [f"{row['micro_batch']} x {row['micro_batches']}", f"{int(row['bytes']) / 1e6:,.0f} MB"]
        rows.append([shape, how, *sizes, f"{estimated / 1e6:,.0f} MB", f"{estimated / int(row['bytes']):.3f}"])
    return _table(["layers x width", "how", "micro", "measured", "estimated", "ratio"], rows)


def _split(layout: Layout) -> str:
    return f", tp {layout.tp} x pp {layout.pp}" if layout.splits_model else ""


def _summary(group: tuple[str, str], runs: Sequence[Run]) -> list[list[str]]:
    judging = sorted((run for run in runs if run.role == "judged"), key=lambda run: run.ratio)
    if not judging:
        return []
    errors = [abs(run.ratio - 1) for run in judging]
    good, error = sum(error <= 0.2 for error in errors), median(errors)
    spread = f"{judging[0].ratio:.2f} to {judging[-1].ratio:.2f}"
    goal = "reached" if error <= 0.08 and good >= 0.9 * len(errors) else "missed"
    counts = [str(len({run.model for run in judging})), str(len(judging))]
    enough = "none" if group[1] == OTHER else goal if len(judging) >= 5 else "too few runs"
    known = [make_estimate(run.case) for run in runs if run.role in ("fitted", "judged")]
    fit = f"{sum(one.fits for one in known)} of {len(known)}", f"{most_memory(*group):.2f}"
    return [[NAMES[group[0]], group[1], *counts, f"{error:.1%}", f"{good} of {len(judging)}", spread, enough, *fit]]


def _published_memory() -> str:
    rows = []
    for run in published_runs():
        if run.peak:
            estimated = make_estimate(run.case).values["G"]
            sizes = [format_size(run.peak), format_size(estimated), f"{run.peak / estimated:.2f}"]
            gpus, rate = str(run.case.hardware.count), f"{run.published:,g} {run.unit}"
            rows.append([run.model, gpus, run.case.layout.options(), rate, *sizes, run.source])
    return _table(["model", "GPUs", "layout", "rate", "published", "estimated", "ratio", "source"], rows)


def _row(run: Run) -> list[str]:
    case = run.case
    layout = f"{case.layout.options()} of {case.layout.batch}".replace("--", "")
    estimated = f"{float(f'{run.estimated():.3g}'):,.10g}"
    figures = [f"{run.published:,.10g} {run.unit}", estimated, f"{run.ratio:.2f}"]
    size = [str(case.hardware.count), str(case.model.sequence)]
    return [
        f"{run.model}, {case.hardware.gpu.name}",
        *size,
        layout,
        *figures,
        run.role,
        run.source,
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
