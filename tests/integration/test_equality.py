"""Every strategy of examples/gpt trains the same model: on two real nodes, and after a change of strategy and ranks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from samples.cluster import Cluster, until
from samples.long_mode import LONG, often

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "equality.md"
STEPS = often(20, 12)
# The same numbers are added in another order: single precision rounds at 6e-8, and 20 steps of AdamW carry it on. Seen:
# 1.5e-7. An error of layout, averaging or clipping shows as 1e-3 and more.
BOUND = 2e-6
# bf16 rounds each number that is multiplied at 2^-9 of it. A loss is a mean of 512, over which most of that cancels.
# Seen: 3e-5 to 3e-4. Within the bound of fp32, the numbers would not be bf16.
BF16_BOUNDS = (BOUND, 2e-3)
NORM_BOUND, NORM_BF16_BOUND = 1e-5, 1e-2  # of the gradient's, which is no mean. Seen: 2e-7, 2e-3
STEEPEST = 5  # times the smallest norm; beyond, a step magnifies what those before it have rounded. Seen: 2.6
CLIP = 0.1  # in samples/equality.py
# All nodes share the machine's two cores: more threads would only wait for each other.
OPTIONS = ("--image", "pytorch-cpu", "--preflight", "off", "--env", "OMP_NUM_THREADS=1")
TWO_RANKS = {
    "ddp": "strategy=ddp",
    "horovod": "strategy=horovod",
    "fsdp": "strategy=fsdp",
    "tp": "strategy=tp",
    "tp, sequence parallel": "strategy=tp,sequence_parallel=true",
    "zero1": "strategy=zero1",
    "zero2": "strategy=zero2",
    "zero2, offload to CPU": "strategy=zero2,offload=cpu",
    **{f"{name}, compile": f"strategy={name},compile=true" for name in ("fsdp", "tp", "pp")},
    "zero3": "strategy=zero3",
    "zero3, tiles": "strategy=zero3,tiles=2",
    "zero3, offload to CPU": "strategy=zero3,offload=cpu",
    "zero3, offload to NVMe": "strategy=zero3,offload=nvme",
    "pp, gpipe, recompute": "strategy=pp,schedule=gpipe,recompute=true",
    "pp, 1f1b": "strategy=pp",
}
BF16 = {f"{name}, bf16": f"strategy={name},bf16=true" for name in ("ddp", "zero2", "fsdp")}
EIGHT_RANKS = {
    "3d, pp 2 x dp 2 x tp 2": "strategy=3d",
    "3d, pp 2 x dp 2 x tp 2, sequence parallel": "strategy=3d,sequence_parallel=true",
    "3d, dp 4 x tp 2": "strategy=3d,pp=1",
    "3d, dp 4 x tp 2, sequence parallel": "strategy=3d,pp=1,sequence_parallel=true",
    "3d, pp 2 x dp 4": "strategy=3d,tp=1",
}
# By day, what offloads to CPU is that of NVMe, what compiles FSDP, and 3d is that of all three dimensions.
LLAMA = {
    "zero3": "strategy=zero3",
    "tp, sequence parallel": "strategy=tp,sequence_parallel=true",
    "pp": "strategy=pp",
    "fsdp": "strategy=fsdp",
    "ddp": "strategy=ddp",
}
AT_NIGHT = {"zero2, offload to CPU", "zero3, offload to CPU", "tp, compile", "pp, compile", *list(EIGHT_RANKS)[1:]}
if not LONG:
    TWO_RANKS, EIGHT_RANKS = (
        {name: text for name, text in cases.items() if name not in AT_NIGHT} for cases in (TWO_RANKS, EIGHT_RANKS)
    )
    LLAMA = dict(list(LLAMA.items())[:2])


def words(directory: str, first: str, cases: dict[str, str]) -> list[str]:
    return [directory, first, *(f"{name}:{settings}" for name, settings in cases.items())]


def equality(cluster: Cluster, nodes: str, ranks_per_node: str, launcher: str, *program: str) -> None:
    size = ["--nodes", nodes, "--ranks-per-node", ranks_per_node]
    options = [*OPTIONS, "--env", f"STEPS={STEPS}", "--launcher", launcher, "--name", f"on-{nodes}-nodes"]
    done = cluster.run("ctrain", "run", *size, *options, "--", "python", "equality.py", *program, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


def curves(cluster: Cluster, directory: str, first: str) -> dict[str, Any]:
    return dict(json.loads((cluster.home / directory / f"after-{first}.json").read_text()))


def difference(curve: list[float], reference: list[float]) -> float:
    """The largest relative one; of a resumed run, from the step where it began."""
    assert curve and len(set(reference)) == len(reference) >= len(curve)
    return max(abs(a / b - 1) for a, b in zip(curve, reference[-len(curve) :]))


@pytest.fixture(scope="module")
def on_two_nodes(four_nodes: Cluster) -> Cluster:
    """The cluster, after one job that trains a GPT-2 and a Llama by each strategy of two ranks. Each case has left its
    checkpoints under its name."""
    left = (four_nodes.home / "gpt2", four_nodes.home / "llama", four_nodes.runs("on-2-nodes"))  # by a session before
    subprocess.run(["rm", "-rf", *map(str, left)], check=True)
    four_nodes.write("equality.py", (ROOT / "tests/samples/equality.py").read_text())
    llama = words("llama", "single:model=llama,kv_heads=2,ffn=96", LLAMA)
    equality(four_nodes, "2", "1", "mpi", *words("gpt2", "single", TWO_RANKS | BF16), "+", *llama)
    return four_nodes


def test_all_strategies_have_the_loss_curve_of_one_rank(on_two_nodes: Cluster) -> None:
    cluster, last = on_two_nodes, list(TWO_RANKS)[-1]
    equality(cluster, "4", "2", "env", *words("gpt2", last, EIGHT_RANKS))
    two, eight = (curves(cluster, "gpt2", first) for first in ("single", last))
    reference = two["single"]["whole"]
    assert reference[-1] < reference[0] - 0.5, "it learns"
    rows = [Row(name, 2, curve, reference) for name, curve in two.items()]
    rows += [Row(name, 8, curve, reference) for name, curve in eight.items()]
    report(rows)
    half, full = ([row for row in rows if (row.name in BF16) == chosen] for chosen in (True, False))
    assert all(max(row.difference, row.resumed_difference) < BOUND for row in full), rows
    assert any(row.difference > 0 for row in full), "rounding differs, unless one program was compared with itself"
    least, most = BF16_BOUNDS
    assert all(least < min(row.difference, row.resumed_difference) for row in half), rows
    assert all(max(row.difference, row.resumed_difference) < most for row in half), rows
    norms = two["single"]["norms"]
    assert min(norms) > 2 * CLIP, "every step clips"
    assert max(norms) < STEEPEST * min(norms), "norms of all steps can be compared, also in bf16"
    for name, curve in {**two, **eight}.items():  # Adam hides a gradient that is wrong by a factor
        assert difference(curve["norms"], norms) < (NORM_BF16_BOUND if name in BF16 else NORM_BOUND), name
        assert len(curve["validation"]) == 2, "half-way and after the last step"
        bound = BF16_BOUNDS[1] if name in BF16 else BOUND
        assert difference(curve["validation"], two["single"]["validation"]) < bound, name


def test_a_llama_has_the_loss_curve_of_one_rank_too(on_two_nodes: Cluster) -> None:
    every = curves(on_two_nodes, "llama", "single")
    single = every["single"]
    assert single["whole"][-1] < single["whole"][0] - 0.5, "it learns"
    for name, curve in every.items():
        assert difference(curve["whole"], single["whole"]) < BOUND, name
        assert difference(curve["resumed"], single["whole"]) < BOUND, name
        assert difference(curve["norms"], single["norms"]) < NORM_BOUND, name


class Row:
    """A line of the table; `difference` is 0 for the reference itself."""

    def __init__(self, name: str, ranks: int, curve: dict[str, Any], reference: list[float]) -> None:
        self.name, self.ranks, self.before = name, 1 if name == "single" else ranks, curve["from"]
        assert len(curve["resumed"]) == STEPS // 2
        self.difference = difference(curve.get("whole", reference), reference)
        self.resumed_difference = difference(curve["resumed"], reference)

    def __repr__(self) -> str:
        return f"| {self.name} | {self.ranks} | {self.difference:.1e} | {self.before} | {self.resumed_difference:.1e} |"


def report(rows: list[Row]) -> None:
    """Checks that the last table of the page has these cases, and those of the night; in the long mode, it writes the
    table if CTRAIN_WRITE_EQUALITY is set."""
    text = TABLE.read_text()
    head, table = text.rpartition("\n|---")[0], "\n".join(map(str, rows))
    if LONG and os.environ.get("CTRAIN_WRITE_EQUALITY"):
        TABLE.write_text(f"{head}\n|---|---|---|---|---|\n{table}\n")
    cases = [line.split("|")[1:3] for line in TABLE.read_text().rpartition("\n|---")[2].splitlines()[1:]]
    later = set() if LONG else AT_NIGHT
    assert later <= {name.strip() for name, _ in cases}
    shown = [[name, ranks] for name, ranks in cases if name.strip() not in later]
    assert shown == [str(row).split("|")[1:3] for row in rows], (
        "CTRAIN_LONG=1 CTRAIN_WRITE_EQUALITY=1 write docs/equality.md"
    )


def in_image(image: Path, sample: str, *options: str) -> subprocess.CompletedProcess[str]:
    engine = ["apptainer", "--quiet", "exec", "--userns", "--cleanenv", "--no-mount", "home,cwd"]
    engine += ["--env", "OMP_NUM_THREADS=1", *options]  # threads that wait for a core that another one has would spin
    program = (ROOT / "tests/samples" / sample).read_text()
    return subprocess.run(
        [*engine, str(image), "python3", "-"], input=program, capture_output=True, text=True, timeout=200
    )


def test_offload_to_nvme_needs_no_compiler_and_an_io_that_fails_ends_the_program(pytorch_cpu: Path) -> None:
    """DeepSpeed looks at no result; what a full disk did not write, it would read back as something else."""
    done = in_image(pytorch_cpu, "async_io.py", "--env", "CXX=false")
    # DeepSpeed warns of the wear of disks, on stdout.
    assert done.stdout.splitlines()[-1] == "written and read", done.stderr
    assert done.returncode in (-signal.SIGABRT, 128 + signal.SIGABRT)
    assert "\nasync_io: write failed: File too large\n" in f"\n{done.stderr}"


def test_logits_are_those_of_another_gpt2_and_llama(pytorch_cpu: Path) -> None:
    """The sample compares them; here, that they are not near zero, and what is refused."""
    done = in_image(pytorch_cpu, "gpt_reference.py")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]  # DeepSpeed warns, too
    models = {found.pop("model"): found for found in map(json.loads, lines)}
    assert set(models) == {"gpt2 tied", "gpt2", "llama tied", "llama", "llama 3.1"}, "with a head of its own or not"
    for name, found in models.items():
        assert found["largest logit"] > 1 and found["difference"] < 1e-4
        assert found["layers"].startswith("weights=DIR needs layers=3 heads=4 width=64")
        assert found["context"] == "weights=DIR needs a context of at most 32"
        assert found["nowhere"].startswith("weights=DIR cannot be read: ")
        assert found["vocabulary"].startswith("the text has 51 different tokens, weights=DIR 50: make tokens with")
        assert found["type"] == "weights=DIR: a model of type mixtral, but this is a GPT-2 or a Llama"
        none = "weights=DIR: its config.json does not describe a model "
        assert found["empty"] == f"{none}(KeyError: 'model_type')" and found["list"].startswith(f"{none}(TypeError: ")
        assert re.fullmatch(r"weights=DIR has no tensor \S+\.7\.\S+\.weight", found["tensor"])
        assert found["shape"] == "weights=DIR: norm.weight has the shape [64], not [65], which config.json says"
        assert (found["fast"] > 1e-4) == (name == "llama 3.1"), "else its positions would prove nothing"
        if name.startswith("llama"):
            assert found["scaled"] == "weights=DIR: a Llama with high_freq_factor 3.0, but this has 4"
            assert found["scaled before transformers 5"].endswith("a Llama with rope_type linear, but this has default")
            assert found["no heads"].startswith(f"{none}(ZeroDivisionError: ")
            assert found["bias"] == "weights=DIR: a Llama with attention_bias True, but this has False"


def test_a_text_on_disk_is_trained_on_from_given_weights(pytorch_cpu: Path) -> None:
    done = in_image(pytorch_cpu, "tokens_on_disk.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["written"].endswith(" tokens, of 300 different ones") and found["size"] == 300
    assert (found["type"], found["whole"], found["batches"]) == ("uint16", True, True)
    assert len(found["losses"]) == 40 and found["losses"][-1] < found["losses"][0] / 3
    assert found["another tokenizer"] == "DIR/tokens has another tokenizer than the text of the checkpoint"
    assert "/text has characters that the checkpoint does not know" in found["another text"]


def test_a_killed_rank_is_named_and_another_strategy_resumes(cluster: Cluster) -> None:
    """It ends far below the unigram entropy, which a model that ignores the past cannot beat."""
    argv = ["ctrain", "run", "gpt", "--nodes", "2", "--ranks-per-node", "1", *OPTIONS]
    settings = [
        "--",
        "steps=200",
        "save_every=80",
        "warmup=20",
        "lr=0.003",
        "layers=2",
        "batch=16",
        "micro_batch=8",
        "sample=100",
    ]
    run = cluster.runs("killed")
    first = cluster.start(*argv, "--name", "killed", *settings, "strategy=ddp")
    until(lambda: (run / "metrics.jsonl").exists() and max(lines(run), default=0) >= 86, "step 86", 200)
    found = subprocess.run(["pgrep", "-f", "python train.py steps=200.*strategy=ddp"], capture_output=True, text=True)
    ranks = [pid for pid in found.stdout.split() if Path(f"/proc/{pid}/comm").read_text().startswith("python")]
    assert len(ranks) == 2, "a process per rank"
    subprocess.run(["kill", "-KILL", ranks[1]], check=True)
    output, _ = first.communicate(timeout=100)
    assert first.returncode == 137 and "failed first" in output, output
    second = cluster.run(*argv, "--estimate", "--name", "resumed", "--resume", str(run), *settings, "strategy=fsdp")
    assert second.returncode == 0, second.stdout + second.stderr
    killed, resumed = lines(run), lines(cluster.runs("resumed"))
    both = sorted(killed.keys() & resumed.keys())
    assert len(both) >= 5 and min(resumed) % 80 == 1 and max(resumed) == 200
    assert difference([killed[step] for step in both[:5]], [resumed[step] for step in both[:5]]) < BOUND
    sample = sample_of(cluster.runs("resumed"))
    assert len(sample) == 101 and len(set(sample)) > 10, sample
    [line] = [line for line in second.stdout.splitlines() if line.startswith("validation loss")]
    loss, entropy = (float(number) for number in re.findall(r"[0-9]\.[0-9]+", line))
    assert 3 < entropy < 3.5 and loss < 0.8 * entropy, line
    assert "\nestimate  time per step unknown: image without CUDA" in second.stdout
    measured = cluster.record("resumed")["measured"]["tokens_per_second"]
    assert f"\ntokens/s         -          {measured:,.0f}\n" in second.stdout
    if LONG:
        one = ["ctrain", "run", "gpt", "--nodes", "1", "--ranks-per-node", "1", *OPTIONS, "--name", "sampled"]
        third = cluster.run(*one, "--resume", str(cluster.runs("resumed")), *settings, "strategy=single")
        assert third.returncode == 0, third.stdout + third.stderr
        assert sample_of(cluster.runs("sampled")) == sample, "of a checkpoint that has all its steps"


KILLED = {  # strategy: ranks per node of two, launcher, and what trains on
    "3d": ("2", "env", "strategy=ddp"),
    "horovod": ("1", "mpi", "strategy=tp"),
    "zero3": ("1", "env", "strategy=ddp"),
    "tp": ("1", "env", "strategy=pp"),
    "pp": ("1", "env", "strategy=fsdp"),
}


@pytest.mark.skipif(not LONG, reason="by day, other tests here kill a rank of ddp, and resume what each strategy saves")
def test_a_killed_rank_of_any_strategy_is_named_and_its_curve_goes_on(cluster: Cluster) -> None:
    for sample in ("equality.py", "killed.py"):
        cluster.write(sample, (ROOT / "tests/samples" / sample).read_text())
    for strategy, (ranks_per_node, launcher, _) in KILLED.items():
        size = ["--nodes", "2", "--ranks-per-node", ranks_per_node, "--launcher", launcher]
        program = ["python", "killed.py", "kill", f"strategy={strategy}"]
        done = cluster.run("ctrain", "run", *size, *OPTIONS, "--name", f"killed-{strategy}", "--", *program)
        output = done.stdout + done.stderr
        assert done.returncode == 137 and "rank 1 on node0" in output and "failed first" in output, output
        assert cluster.record(f"killed-{strategy}")["exit"]["code"] == 137
    words = [f"killed-{strategy}:{setting}" for strategy, (_, _, setting) in KILLED.items()]
    size = ["--nodes", "2", "--ranks-per-node", "1", "--launcher", "env", "--name", "after-kills"]
    done = cluster.run("ctrain", "run", *size, *OPTIONS, "--", "python", "killed.py", "resume", "ctrain-runs", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    curves = json.loads((cluster.home / "resumed.json").read_text())
    reference = curves.pop("single")
    assert set(curves) == {f"killed-{strategy}" for strategy in KILLED}
    for name, curve in curves.items():
        before = lines(cluster.runs(name))
        assert sorted(before) == list(range(1, 13)) and len(curve) == 10
        assert difference(list(before.values()), reference[:12]) < BOUND, name
        assert difference(curve, reference) < BOUND, name


def sample_of(run: Path) -> str:
    """What rank 0 printed after the losses."""
    [log] = [text for path in (run / "logs").iterdir() if "nats per token" in (text := path.read_text())]
    return log.partition("(nats per token)\n")[2][:-1]


def lines(run: Path) -> dict[int, float]:
    """Loss by step; the last line may be half-written."""
    text = (run / "metrics.jsonl").read_text()
    return {line["step"]: line["loss"] for line in map(json.loads, text[: text.rfind("\n") + 1].splitlines())}
