"""Estimate what training a GPT will take: memory, time, energy, and which layout of GPUs is best.

  ctrain estimate gpt3-175b --gpu-type A100 --gpus 1024 --tp 8 --pp 16 --recompute full --tokens 300B
  ctrain estimate 7.5B --nodes 4 --tokens 300B --fit     # on the GPUs of this site; search the layout
  ctrain estimate gpt2-xl --gpus 8 --explain             # each formula, its source and its numbers

MODEL is a preset, a number of parameters or a config.json; options change its shape. Without --gpu-type, GPUs and
network are those of the site. With --fit, options of the layout that are given are kept. See: ctrain help estimate
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from ctrain_runtime import gpus, schedulers
from ctrain_runtime.base.run_files import METRICS
from ctrain_runtime.cli import estimate_view
from ctrain_runtime.cli.output import Writer, print_line
from ctrain_runtime.cli.progress import ASCII_BLOCKS, BLOCKS
from ctrain_runtime.cli.run_options import add_runs, add_site
from ctrain_runtime.cluster.groups import kinds
from ctrain_runtime.cluster.model import Partition
from ctrain_runtime.errors import DataError, ResourceError, UsageError
from ctrain_runtime.estimate import fit
from ctrain_runtime.estimate.estimate import Case, Estimate, calibrate, make_estimate
from ctrain_runtime.estimate.evidence import memory_is_unknown
from ctrain_runtime.estimate.hardware import MODELS, Hardware, ambiguity, find_gpus, make_hardware
from ctrain_runtime.estimate.hugging_face import model_of_config
from ctrain_runtime.estimate.layout import Attention, Layout, Loss, Precision, Recompute, Schedule, Strategy
from ctrain_runtime.estimate.model import Model, parse_amount
from ctrain_runtime.estimate.presets import PRESETS, find_model, preset_name
from ctrain_runtime.job import Value
from ctrain_runtime.plan.size import check_capacity
from ctrain_runtime.run import parent_directories, record
from ctrain_runtime.run.measured import RATE, measure
from ctrain_runtime.run.pick_up import find_run
from ctrain_runtime.run.targets import find_cluster
from ctrain_runtime.site.select import SelectedSite, select_site

GPUS_PER_NODE = 8  # where nothing is known of the nodes
SEQUENCES = 512  # of a batch, about, if none is given
LARGEST = 1 << 24  # of counts
MOST_GPUS = 1 << 17
DAY = 86400
_SHAPE = ("layers", "hidden", "heads", "sequence", "vocabulary", "kv_heads", "ffn")
# What no published run judges here.
_NOT_ESTIMATED = {
    "--experts": "mixtures of experts",
    "--expert-parallel": "mixtures of experts",
    "--ep": "mixtures of experts",
    "--lora": "LoRA",
    "--frozen": "training with frozen weights",
}
_LAYOUT = tuple(field.name for field in dataclasses.fields(Layout) if field.name != "batch")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, count = parser.add_argument, dict[str, Any](type=_count, metavar="N")
    models = f"{', '.join(PRESETS)}; a number of parameters, as in 7.5B; or the path of a Hugging Face config.json"
    add("model", nargs="?", metavar="MODEL", help=models)
    add("--layers", **count, help="layers of the model")
    add("--hidden", **count, help="its hidden size")
    add("--heads", **count, help="its attention heads")
    add("--sequence", **count, help="tokens per sequence")
    add("--vocabulary", **count, help="size of the vocabulary")
    add("--kv-heads", **count, help="heads with a key and a value of their own (GQA)")
    add("--ffn", **count, help="width between the two linear maps of a layer (default: four times the hidden size)")
    add("--swiglu", action="store_true", help="SwiGLU, RMSNorm, rotary positions, no biases: as Llama")
    add("--untied", action="store_true", help="the output has a matrix of its own")
    add("--tokens", default="", metavar="N", help="tokens of the training, as in 300B")
    add("--gpu-type", default="", metavar="TYPE", help="as in A100-SXM4-80GB (default: the site's)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--gpus", **count, help="GPUs in all")
    size.add_argument("--nodes", **count, help="number of nodes (default: 1)")
    add("--gpus-per-node", **count, help=f"GPUs per node (default: the partition's, else {GPUS_PER_NODE})")
    add("--nics", **count, help="network adapters per node (default: one per GPU)")
    add("--nic-speed", **count, help="Gb/s of an adapter (default: usual with the GPU type)")
    add_site(parser)
    add("--partition", default="", metavar="PARTITION", help="partition whose GPUs are used")
    add("--batch", **count, help=f"sequences per iteration on all GPUs (default: about {SEQUENCES})")
    add("--micro-batch", **count, help="sequences per GPU and step (default: 1)")
    add("--strategy", choices=get_args(Strategy), help="what replicas share (default: ddp)")
    add("--offload", action="store_true", default=None, help="keep the optimizer's state in the host's memory")
    add("--tp", **count, help="tensor-parallel size (default: 1)")
    add("--pp", **count, help="pipeline stages (default: 1)")
    add("--cp", "--context-parallel", **count, help="GPUs that share each sequence: context parallelism (default: 1)")
    add("--schedule", choices=get_args(Schedule), help="schedule of the pipeline (default: 1f1b)")
    add("--interleave", **count, help="parts of a stage: interleaved schedule (default: 1)")
    selective = "selective: scores of plain attention; of FSDP with SwiGLU every second product, as torchtitan"
    add("--recompute", choices=get_args(Recompute), help=f"activations to recompute; {selective} (default: none)")
    add("--compiled", action="store_true", default=None, help="a program that is compiled as a whole, or as llm.c")
    add("--attention", choices=get_args(Attention), help="plain: scores go through memory (default: flash)")
    loss = (
        "fused: one kernel makes gradients of logits, as flash-attn's; parallel: with FSDP, ranks of --tp share logits"
    )
    add("--loss", choices=get_args(Loss), help=f"{loss} (default: plain, as PyTorch's)")
    add("--sequence-parallel", action="store_true", default=None, help="split what --tp alone does not split")
    add(
        "--precision",
        type=_precision,
        metavar="{bf16,fp8,autocast,fp32}",
        help="bf16: mixed, or fp16; fp8: products in FP8, the rest as bf16; autocast: beside fp32 (default: bf16)",
    )
    measured = parser.add_mutually_exclusive_group()
    measured.add_argument("--rate", type=float, metavar="TFLOPS", help="TFLOP/s per GPU that this layout reaches")
    measured.add_argument("--calibrate", metavar="RUN", help=f"run of this model and layout that wrote {RATE}")
    add_runs(parser)
    add("--days", type=float, metavar="N", help="find how many GPUs train --tokens in N days; implies --fit")
    add("--fit", action="store_true", help="search the layouts and rank those that fit")
    add("--explain", action="store_true", help="print each formula, its source and its numbers")
    add("--json", action="store_true", help="print one JSON object instead of text")
    for word in _NOT_ESTIMATED:
        add(word, action=_NotEstimated, help=argparse.SUPPRESS)


class _NotEstimated(argparse.Action):
    """An option that is refused with the reason, whatever follows it."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs="*", default=argparse.SUPPRESS, **kwargs)

    def __call__(self, *_: object, **__: object) -> None:
        problem = f"{self.option_strings[0]}: {_NOT_ESTIMATED[self.option_strings[0]]} cannot be estimated"
        raise UsageError(problem, "Too few published runs would judge it: measure a few steps instead")


def _precision(text: str) -> str:
    if text not in get_args(Precision):
        raise argparse.ArgumentTypeError(f"must be bf16, fp8, autocast or fp32, not {text!r}")
    return text


def _count(text: str) -> int:
    if not (text.isdecimal() and len(text) < 10 and 1 <= int(text) <= LARGEST):
        raise argparse.ArgumentTypeError(f"must be a positive integer of at most {LARGEST}, not {text[:20]!r}")
    return int(text)


def execute(args: argparse.Namespace) -> int:
    selected = select_site(args.site or "", vars(args))
    hardware, notes = _hardware(args, selected)
    given = {name: getattr(args, name) for name in _LAYOUT if getattr(args, name) is not None}
    batch = args.batch or _usual_batch(hardware.count, args)
    tokens = parse_amount("--tokens", args.tokens) if args.tokens else 0
    case = Case(_model(args), hardware, Layout(batch, **given), tokens)
    size = case.model.head_size
    if size % 8 and case.layout.attention == "flash":
        notes.append(f"heads of {size} numbers: FlashAttention pads them to {-(-size // 8) * 8}")
    if case.model.assumed:
        notes.append("the model's shape is derived from its number of parameters")
    if args.calibrate or args.rate is not None:
        case, note = _calibrated(args, case, selected)
        notes.append(note)
    _check_tokens(case)
    if args.days is not None:
        tried = _for_days(args, case, given)
        case = tried[-1].case
    else:
        _check_silent(args, given)
        tried = []
    search = fit.fit(case, given) if args.fit or tried else None
    estimate = search.ranked[0] if search else make_estimate(case)
    may_fit = estimate.fits or memory_is_unknown(estimate)
    problem = None if may_fit else ResourceError(f"does not fit: {fit.excess(estimate)}", fit.advice(case))
    if tried and not estimate_view.is_enough(estimate, args.days):
        least = f"no number of GPUs up to {fit.MOST_FOR_DAYS} is known to be enough for {args.days:g} days"
        problem = ResourceError(least, "Pass more --days, fewer --tokens, or faster GPUs")
    if args.json:
        failed = {"error": str(problem), "exit_code": problem.exit_code} if problem else {}
        print(json.dumps({**estimate_view.as_data(estimate, search, notes, tried), **failed}, indent=2))
    elif args.explain:
        print(estimate_view.explain(estimate))
    else:
        blocks = BLOCKS if Writer(sys.stdout).can_show(BLOCKS) else ASCII_BLOCKS
        table = f"{estimate_view.days_table(tried, args.days)}\n\n" if tried else ""
        print(f"{table}{estimate_view.describe(estimate, search, notes, blocks)}")
    if problem:
        print_line(f"ctrain: {problem}", sys.stderr)
    return problem.exit_code if problem else 0


def _model(args: argparse.Namespace) -> Model:
    shape: dict[str, Any] = {name: getattr(args, name) for name in _SHAPE if getattr(args, name)}
    if args.swiglu:
        shape.update(gated=True, biases=False, learned_positions=False)
    if args.untied:
        shape["tied"] = False
    if args.model:
        return dataclasses.replace(_named_model(args.model), **shape)
    missing = [f"--{name}" for name in ("layers", "hidden", "heads") if name not in shape]
    if missing:
        raise UsageError(f"no model given, and no {', '.join(missing)}", "As in: ctrain estimate gpt3-175b, or 7.5B")
    return Model(**shape)


def _usual_batch(gpus: int, args: argparse.Namespace) -> int:
    step = gpus * (args.micro_batch or 1)
    return step * max(1, round(SEQUENCES / step))


def _check_tokens(case: Case) -> None:
    iteration = case.layout.batch * case.model.sequence
    if 0 < case.tokens < iteration:
        problem = f"--tokens {case.tokens:,.0f} are fewer than the {iteration:,} of one iteration"
        raise UsageError(problem, "Pass the tokens of the whole training, as in 300B, or a smaller --batch")


def _check_silent(args: argparse.Namespace, given: Mapping[str, Any]) -> None:
    """Raise UsageError for an option that would change nothing. What is searched may become anything."""
    tp, pp, strategy = (
        given.get(name, None if args.fit else value) for name, value in (("tp", 1), ("pp", 1), ("strategy", "ddp"))
    )
    if args.sequence_parallel and tp == 1:
        raise UsageError("--sequence-parallel splits what --tp leaves whole, and tp is 1", "Pass --tp 2 or more")
    if args.schedule and pp == 1:
        raise UsageError(f"--schedule {args.schedule} is of pipelines, and pp is 1", "Pass --pp 2 or more")
    if args.offload and strategy in ("ddp", "fsdp", "hsdp"):
        raise UsageError(f"--offload is of ZeRO, not of {strategy}", "Pass --strategy zero1, zero2 or zero3")


def _for_days(args: argparse.Namespace, case: Case, given: Mapping[str, Any]) -> list[Estimate]:
    """Estimates on more and more GPUs, up to the first that suffice."""
    if not (case.tokens and 0 < args.days < math.inf):
        raise UsageError("--days needs a positive number of days, and --tokens", "As in: --tokens 1T --days 30")
    if args.gpus or args.nodes or args.rate is not None or args.calibrate:
        raise UsageError("--days finds the number of GPUs", "Omit --gpus, --nodes, --rate and --calibrate")
    return fit.fewest_gpus(case, given, lambda gpus: args.batch or _usual_batch(gpus, args), args.days * DAY)


def _named_model(name: str) -> Model:
    """A preset, a number of parameters, or what a config.json, or a directory with one, describes."""
    path = Path(name)
    if not _is_path(name, path):
        return find_model(name)
    where = str(path / "config.json") if path.is_dir() else name
    try:
        return model_of_config(json.loads(Path(where).read_bytes()), where)
    except OSError as error:
        hint = "Pass a model's name, its config.json, or the directory of that"
        raise DataError(f"{where} cannot be read: {error.strerror}", hint) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: {error}") from error


def _is_path(name: str, path: Path) -> bool:
    """Whether it is written as one, or exists as one and is no preset; meta-llama/Llama-3.1-8B is a name."""
    written = path.suffix == ".json" or name.startswith((".", "/")) or ("/" in name and path.parent.is_dir())
    return written or (path.is_dir() and preset_name(name) not in PRESETS)


def _hardware(args: argparse.Namespace, selected: SelectedSite) -> tuple[Hardware, list[str]]:
    """The GPUs and the network of the options, else of the site; and notes on what is not certain."""
    partition, notes = (None, []) if args.gpu_type and not (args.site or args.partition) else _partition(args, selected)
    name = args.gpu_type or (partition.gpu_type if partition else "")
    types = find_gpus(name)
    gpu = types[0]
    per_node = args.gpus_per_node or (partition.gpus if partition else GPUS_PER_NODE)
    count = args.gpus or (args.nodes or 1) * per_node
    if count > MOST_GPUS:
        raise UsageError(f"{count:,} GPUs are more than any training has had", f"Pass at most --gpus {MOST_GPUS}")
    if count > per_node and count % per_node:
        near = f"--gpus {count - count % per_node} or --gpus {count - count % per_node + per_node}"
        raise UsageError(f"{count} GPUs are not a multiple of the {per_node} of a node", f"Nearest: {near}")
    if partition:
        check_capacity(f"partition {partition.name}", "GPU", partition.nodes * partition.gpus, "--gpus", count)
    measured = selected.site.expected_bandwidth.nccl if partition and not (args.nics or args.nic_speed) else 0
    hardware, uncertain = make_hardware(gpu, count, per_node, args.nics or per_node, args.nic_speed or 0, measured)
    return hardware, [*notes, *ambiguity(name, types, gpu), *uncertain]


def _partition(args: argparse.Namespace, selected: SelectedSite) -> tuple[Partition, list[str]]:
    """The partition of the options, else of the site, else the one with the most GPUs (of the type); and notes."""
    site = selected.site
    cluster, notes = find_cluster(schedulers.get(site.scheduler), site, dry_run=True)
    name, models = args.partition, {gpus.identify(args.gpu_type).model} if args.gpu_type else set(MODELS)
    parts = [kind for part in cluster.partitions for kind in kinds(part)]
    known = [part for part in parts if part.gpus and gpus.identify(part.gpu_type).model in models]
    for part in sorted(known, key=lambda part: (part.name != site.partition, -part.nodes * part.gpus)):
        if part.name == (name or part.name):
            return part, [f"GPUs of site {site.name}, partition {part.name}", *notes]
    what = f"partition {name} with GPUs of" if name else "partition with GPUs of"
    hint = f"Pass --gpu-type, one of {', '.join(MODELS)}; or --site SITE"
    raise UsageError(f"site {site.name} has no {what} {args.gpu_type or 'a known type'}", hint)


def _calibrated(args: argparse.Namespace, case: Case, selected: SelectedSite) -> tuple[Case, str]:
    """The case with the efficiency of a measured rate: of --rate, or of a run of any number of replicas; and a note."""
    if args.calibrate:
        path = find_run(args.calibrate, *parent_directories.with_remembered(parent_directories.of_site(selected.site)))
        run, measured = record.load(path), measure(path / METRICS).tokens_per_second
        if measured is None:
            problem = f"no {RATE} in {path / METRICS}"
            raise DataError(problem, "The program must write it: ctrain help jobs")
        _check_same(case, run)
        count, unchecked = run.world_size, "" if run.estimate else "; its model and layout are unknown: no --estimate"
    else:
        if not 0 < args.rate < math.inf:
            raise UsageError(f"--rate must be a positive number of TFLOP/s, not {args.rate}")
        count, values, unchecked = case.hardware.count, make_estimate(case).values, ""
        measured = values["tokens_per_second"] * args.rate * 1e12 / (values["hfu"] * values["X"])
    efficiency, estimated = calibrate(case, count, measured)
    rates = f"{measured:,.0f} tokens/s on {count} GPUs, estimated were {estimated:,.0f}"
    note = f"calibrated: {rates}; matrix products reach {efficiency:.1%} of the peak{unchecked}"
    return dataclasses.replace(case, efficiency=efficiency), note


def _check_same(case: Case, run: record.Record) -> None:
    """Raise UsageError if the run is known to have trained another model, with another layout or on other GPUs; its
    batch may differ."""
    if run.estimate is None:
        return
    gpu, measured = case.hardware.gpu.name, dict(run.estimate.training)
    if run.estimate.gpu and gpu not in {type_.name for type_ in find_gpus(run.estimate.gpu)}:  # A100 of older records
        measured["gpu_type"] = run.estimate.gpu
    own = {**vars(case.model), **vars(case.layout), "gpu_type": gpu}
    others = [key for key in (*_SHAPE, *_LAYOUT, "gpu_type") if measured.get(key, own[key]) != own[key]]
    if others:
        differences = ", ".join(f"{key} {measured[key]}, not {own[key]}" for key in others)
        hint = f"Pass the options of the run: {' '.join(_option(key, measured[key]) for key in others)}"
        raise UsageError(f"run {run.run} cannot calibrate this estimate: it had {differences}", hint)


def _option(key: str, value: Value) -> str:
    """How a value of the model or the layout is given."""
    word = f"--{key.replace('_', '-')}"
    return f"{word} {value}" if not isinstance(value, bool) else word if value else f"(no {word})"
