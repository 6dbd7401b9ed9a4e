"""What the examples share, whatever their framework."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree

import pytest
from PIL import Image

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COMMON = EXAMPLES / "common"
HOROVOD = """
import sys
from types import ModuleType
from xml.etree import ElementTree
hvd = ModuleType("horovod.tensorflow")
hvd.init = lambda: None
hvd.rank, hvd.size, hvd.local_rank = lambda: 3, lambda: 4, lambda: 1
class Config:
    threading = property(lambda self: self)
    list_physical_devices = staticmethod(lambda kind: [kind + " 0", kind + " 1"])
    set_visible_devices = set_intra_op_parallelism_threads = set_inter_op_parallelism_threads = staticmethod(print)
tensorflow = ModuleType("tensorflow")
tensorflow.config = Config()
sys.modules.update({"horovod": ModuleType("horovod"), "horovod.tensorflow": hvd, "tensorflow": tensorflow})
"""


@pytest.mark.parametrize("program", sorted(EXAMPLES.glob("*/*.py")), ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_modules_of_packages_do_not_hide_those_of_the_examples(program: Path) -> None:
    """A package of DeepSpeed's time for Python 3.8 has an example.py, and no program of the image could start."""
    changes = [node for node in ast.parse(program.read_text()).body if ast.unparse(node).startswith("sys.path")]
    path = ["directory of the program", "packages"]
    changed = ast.Module(changes, [])
    names = {"sys": SimpleNamespace(path=path), "Path": Path, "__file__": str(program)}
    exec(compile(changed, str(program), "exec"), names)  # noqa: S102  # of this checkout
    copies = [str(COMMON), "/opt/ctrain/examples/common"] if changes else []
    assert path == ["directory of the program", *copies, "packages"]


def run(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program that has the helper, in a process of its own: it ends the process."""
    environment = {**os.environ, "PYTHONPATH": str(COMMON), **variables}
    argv = [sys.executable, "-c", f"from example import *\n{program}\nassert 'torch' not in sys.modules\nfinish(main)"]
    return subprocess.run(argv, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("return 0", 0, ""),
        ("return 143", 143, ""),
        ("raise InputError('no pictures')", 2, "-c: no pictures\n"),
        ("raise SystemExit('no checkpoint')", 1, "no checkpoint\n"),
        ("sys.exit(3)", 3, ""),
    ],
)
def test_a_program_ends_with_its_code_and_without_a_traceback(body: str, code: int, message: str) -> None:
    done = run(f"def main(): {body}")
    assert (done.returncode, done.stderr) == (code, message)


def test_a_rank_has_the_cores_of_its_share_however_it_is_bound() -> None:
    bound = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    program = f"def main(): {bound}; print(cores()); return 0"
    assert run(program, OMP_NUM_THREADS="8").stdout == "8\n"
    assert run(program, OMP_NUM_THREADS="").stdout == "1\n"


def test_a_failed_rank_leaves_at_once_and_shows_why() -> None:
    """What is registered for the end waits for the other ranks: it runs only if all is well."""
    late = "atexit.register(print, 'the end')\n"
    assert run(f"{late}def main(): return 0").stdout == "the end\n"
    done = run(f"{late}def main(): 1 / 0")
    assert (done.returncode, done.stdout) == (1, "")
    assert "ZeroDivisionError" in done.stderr


def test_a_rank_of_tensorflow_gets_its_gpu_and_its_cores() -> None:
    program = f"{HOROVOD}\ndef main():\n    print(begin('tensorflow'))\n    return 0"
    done = run(program, WORLD_SIZE="4", OMP_NUM_THREADS="6")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["GPU 1 GPU", "6", "6", "World(rank=3, size=4, local_rank=1, device=None)"]


def test_ranks_that_do_not_meet_are_refused() -> None:
    done = run(f"{HOROVOD}\ndef main(): begin('tensorflow')", WORLD_SIZE="8")
    assert done.returncode == 3
    assert "8 ranks were launched, but tensorflow sees 4" in done.stderr


def test_a_damaged_checkpoint_of_an_example_is_not_loaded(tmp_path: Path) -> None:
    program = f"""{STUBS}
torch.save = lambda state, path: open(path, "w").write(str(state["step"]))
torch.load = lambda path, **_: path.name
first, second = (checkpoint.save_checkpoint({{"step": step}}) for step in (1, 2))
second.write_text("")
print(checkpoint.load_checkpoint(None))
"""
    where = {"CTRAIN_RUN_DIR": str(tmp_path), "CTRAIN_RESUME": str(tmp_path / "checkpoint")}
    environment = {**os.environ, "PYTHONPATH": str(COMMON), **where}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout == "step-00000001.pt\n", done.stderr
    assert "step-00000002.pt is damaged" in done.stderr


STUBS = """
import sys
from types import ModuleType
torch = ModuleType("torch")
torch.Tensor = torch.device = object
names = ("torch", "torch.distributed", "torch.distributed.checkpoint")
sys.modules.update({name: torch for name in names})
torch.distributed = torch.checkpoint = torch
import checkpoint, sharded
"""


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("damaged", ["__0_0.distcp", "__1_0.distcp", ".metadata", "facts.json"])
def test_a_damaged_part_of_a_sharded_checkpoint_is_noticed(tmp_path: Path, alone: bool, damaged: str) -> None:
    """Each of two ranks has the digests of its own files; rank 0 writes them, when it has those of all."""
    program = f"""{STUBS}
from pathlib import Path
from ctrain_program import resume_dir
directory, told = resume_dir(), []
def save(state, checkpoint_id, no_dist):
    for name in ("__0_0.distcp", "__1_0.distcp", ".metadata"):
        (checkpoint_id / name).write_text(str(state["step"]))
def gather(digests, own):
    told.append(own)
    digests[: len(told)] = told
torch.save, torch.all_gather_object, torch.get_world_size = save, gather, lambda: 2
torch.broadcast_object_list = lambda paths: None
for step in (1, 2, 3):
    facts, told[:] = {{"step": step}}, []
    (directory / f"step-{{step:08d}}").mkdir(parents=True)
    for rank in ([0] if {alone} else [1, 0]):
        path = sharded.save(directory, facts, facts, rank, {alone})
print(sorted(found.name for found in directory.iterdir()))
(path / "{damaged}").write_text("")
print(sharded.newest(directory, 0, {alone}).name)
"""
    where = {"CTRAIN_RUN_DIR": str(tmp_path), "CTRAIN_RESUME": str(tmp_path / "checkpoint")}
    environment = {**os.environ, "PYTHONPATH": str(COMMON), **where}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    kept = ["step-00000002", "step-00000002.sha256", "step-00000003", "step-00000003.sha256"]
    assert done.stdout.splitlines() == [str(kept), "step-00000002"], done.stderr
    assert f"digest mismatch of step-00000003/{damaged}" in done.stderr


@pytest.mark.parametrize("load", ["checkpoint.load_checkpoint(None)", "sharded.newest(resume_dir())"])
@pytest.mark.parametrize("is_own", [True, False])
def test_a_run_that_is_restarted_before_it_has_saved_begins_anew(tmp_path: Path, load: str, is_own: bool) -> None:
    """A rank may be killed while the first checkpoint is written. Of an earlier run, one is expected."""
    (tmp_path / "checkpoint/step-00000001").mkdir(parents=True)
    where = {"CTRAIN_RUN_DIR": str(tmp_path), "CTRAIN_RESUME": str(tmp_path / "checkpoint" if is_own else tmp_path)}
    environment = {**os.environ, "PYTHONPATH": str(COMMON), **where}
    argv = [sys.executable, "-c", f"{STUBS}\nfrom example import *\nprint({load})"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert (done.stdout, "no checkpoint to resume from" in done.stderr) == (("None\n", False) if is_own else ("", True))


def test_only_rank_0_writes_metrics(tmp_path: Path) -> None:
    writes = "def main():\n    for rank in (0, 1): Metrics(World(rank, 2, rank)).write(step=1, loss=2.5)\n    return 0"
    beat = tmp_path / "beat"
    assert run(writes, CTRAIN_RUN_DIR=str(tmp_path), CTRAIN_HEARTBEAT=str(beat)).returncode == 0
    assert beat.read_text() == "1 step\n"
    [line] = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert line.pop("time") > 1e9
    assert line == {"step": 1, "loss": 2.5}


def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", COMMON / "pictures.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pictures_are_arrays_with_the_label_of_their_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(COMMON)  # as programs put it on the path
    for name, grey in (("zero/a.png", 0), ("one/b.png", 255), ("one/a.png", 0)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (grey, grey, grey)).save(tmp_path / name)
    images, labels = pictures().load(tmp_path)
    assert images.shape == (3, 1, 32, 32) and str(images.dtype) == "float32"
    assert labels.tolist() == [0, 0, 1], "one, one, zero: sorted by name"
    assert images[:, 0, 0, 0].tolist() == pytest.approx([-0.3 / 0.35, 0.7 / 0.35, -0.3 / 0.35])
    with pytest.raises(SystemExit, match=r"missing has no pictures in a directory per digit. Pass --data DIR"):
        pictures().load(tmp_path / "missing")


def test_a_step_is_divided_into_computation_and_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", iter([10, 10.5, 12, 13, 14]).__next__)
    clock = runpy.run_path(str(COMMON / "step_clock.py"))["StepClock"]()
    clock.start_computing()
    speed, times = clock.end_step(work=100)
    assert times.pop("host_memory") > 1e6
    assert (speed, times) == (50, {"seconds": 2, "seconds_outside_compute": 0.5})
    clock.start_computing()
    assert clock.end_step(work=100)[1]["seconds_outside_compute"] == 1, "logs and checkpoints of the step before count"


def test_the_times_of_all_ranks_are_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", iter(range(1000)).__next__)
    clock = runpy.run_path(str(COMMON / "step_clock.py"))["StepClock"]()
    shares = {}
    for step in range(1, 41):
        clock.end_step(work=1)
        shares[step] = clock.shares(step, 2000, 1, 3)
    assert {step: each for step, each in shares.items() if each} == {20: [0, 1, 0], 40: [0, 1, 0]}
    assert clock.shares(40, 2000, 0, 1) == [], "alone"
    clock.end_step(work=1)
    assert clock.shares(10, 10, 0, 2) == [1, 0]


@pytest.mark.parametrize("program", ["digits/train_keras.py", "resnet50_keras/train.py"])
def test_programs_in_keras_import_nothing_of_torch(program: str) -> None:
    files, seen = [EXAMPLES / program], set()
    while files:
        names = imported(files.pop())
        beside = (folder / f"{name}.py" for name in names - seen for folder in (COMMON, (EXAMPLES / program).parent))
        files += [file for file in beside if file.is_file()]
        seen |= names
    assert {"tensorflow", "horovod", "example"} <= seen
    assert not seen & {"torch", "torchvision"}


def imported(file: Path) -> set[str]:
    """The modules that a file imports when it is imported."""
    statements = ast.parse(file.read_text()).body
    names = {alias.name for node in statements if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in statements if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}


def test_tokens_that_were_copied_in_part_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(COMMON))
    tokens = runpy.run_path(str(COMMON / "tokens.py"))
    facts = {"tokenizer": "sha256:1", "size": 300, "type": "<u2", "bytes": 6}
    (tmp_path / "tokens.json").write_text(json.dumps(facts))
    (tmp_path / "tokens.bin").write_bytes(bytes([1, 0, 2, 0, 43, 1]))
    assert tokens["Tokens"].are_in(tmp_path)
    assert tokens["Tokens"](tmp_path, "").numbers.tolist() == [1, 2, 299]
    with pytest.raises(ValueError, match="has another tokenizer than the text of the checkpoint"):
        tokens["Tokens"](tmp_path, "sha256:2")
    (tmp_path / "tokens.bin").write_bytes(bytes(4))
    with pytest.raises(ValueError, match=r"tokens\.bin has 4 bytes, not 6: copy or make it anew"):
        tokens["Tokens"](tmp_path, "")


@pytest.mark.parametrize(
    ("library", "problem"),
    [
        ("", "/nowhere has no files"),
        ("raise ImportError", "tokens need the package tokenizers: choose an image with the layer libraries"),
    ],
)
def test_what_cannot_become_tokens_is_named(library: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizers.py").write_text(library)
    argv = [sys.executable, str(COMMON / "tokens.py"), "/nowhere", str(tmp_path / "tokens")]
    environment = {name: value for name, value in os.environ.items() if not name.endswith("RANK")}
    done = subprocess.run(argv, env={**environment, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, f"tokens.py: {problem}\n")


def a_run(directory: Path, staleness: float, loss: float) -> str:
    rounds = [{"method": "async", "step": step, "loss": loss} for step in range(1, 11)]
    result = {"method": "async", "updates": 10, "mean_staleness": staleness, "accuracy": 0.5}
    directory.mkdir()
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*rounds, result]))
    return str(directory)


def test_staleness_is_drawn_against_the_loss_of_complete_runs(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / "late", 20, 1.5), a_run(tmp_path / "early", 2, 0.5)]
    plot = [sys.executable, str(EXAMPLES / "parameter_server/plot.py")]
    drawn = subprocess.run([*plot, *runs], capture_output=True, text=True, check=True).stdout
    circles = ElementTree.fromstring(drawn).findall("{http://www.w3.org/2000/svg}circle")  # noqa: S314  # plot.py wrote it
    (x, y), (right, above) = ((float(circle.attrib["cx"]), float(circle.attrib["cy"])) for circle in circles)
    assert x < right and y > above, "staler to the right, the larger loss above"
    (tmp_path / "late/metrics.jsonl").write_text('{"method": "async", "step": 1, "loss": 2}\n')
    for run in (runs[0], str(tmp_path)):
        done = subprocess.run([*plot, run], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (1, f"{run} has no complete training of an asynchronous server\n")
