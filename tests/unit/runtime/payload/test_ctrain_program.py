"""What programs may use of ctrain: in processes as they are, with and without the variables of a run."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ctrain_runtime.payload import FOLDER

FILE = FOLDER / "ctrain_program.py"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module as a program has it that has just started, as the only rank of a run."""
    for name in ("CTRAIN_RESUME", "CTRAIN_HEARTBEAT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CTRAIN_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("RANK", "0")
    spec = importlib.util.spec_from_file_location("ctrain_program", FILE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(code: str, directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A plain Python program that imports the module, with no other variables of a run."""
    environ = {"PATH": os.environ["PATH"], **variables}
    argv = [sys.executable, "-c", f"import sys\nsys.path.append({str(FOLDER)!r})\nfrom ctrain_program import *\n{code}"]
    return subprocess.run(argv, cwd=directory, env=environ, capture_output=True, text=True)


def save(program: ModuleType, step: int, text: str = "weights") -> Path:
    path = program.save_checkpoint(lambda name: Path(name).write_text(f"{text} {step}"), step)
    assert isinstance(path, Path)
    return path


def test_python_36_can_read_it() -> None:
    ast.parse(FILE.read_text(encoding="utf-8"), feature_version=(3, 6))


def test_the_examples_have_the_same_file(checkout: Path) -> None:
    """A file there, not a link: containers have the examples alone."""
    own = checkout / "examples/common/ctrain_program.py"
    assert not own.is_symlink() and FILE.resolve() == own


def test_the_page_shows_what_the_module_has(checkout: Path, program: ModuleType) -> None:
    blocks = re.findall(r"(?s)```python\n(.*?)```", (checkout / "docs/contract.md").read_text(encoding="utf-8"))
    assert len(blocks) == 5
    nodes = [node for block in blocks for node in ast.walk(ast.parse(block))]
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "ctrain"}
    assert {"beat", "metrics", "stopping", "save_checkpoint", "checkpoint_to_resume", "leave_saved"} <= used
    assert all(hasattr(program, name) for name in used)


def test_without_ctrain_all_of_it_works_in_the_current_directory(tmp_path: Path) -> None:
    code = """
beat(1)
metrics(step=1, loss=0.5)
print(stopping(), save_checkpoint(lambda path: open(path, "w").write("x"), 1), checkpoint_to_resume())
leave_saved()
"""
    done = run(code, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (85, "False checkpoint/step-00000001.pt None\n", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "metrics.jsonl"]


def test_a_heartbeat_has_a_line_with_step_and_section(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "beat"
    monkeypatch.setenv("CTRAIN_HEARTBEAT", str(path))
    program.beat(123456)
    assert path.read_text() == "123456 step\n"
    program.beat(7, "evaluation")
    program.beat(8, "step")
    assert path.read_text().splitlines()[0] == "8 step"  # what a longer line has left does not count


def test_a_heartbeat_is_written_once_a_second(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, now = tmp_path / "beat", 100.0
    monkeypatch.setenv("CTRAIN_HEARTBEAT", str(path))
    monkeypatch.setattr(program.time, "monotonic", lambda: now)
    steps = []
    for step in range(30):
        program.beat(step)
        steps.append(int(path.read_text().split()[0]))
        now += 0.125
    assert sorted(set(steps)) == [0, 8, 16, 24]


def test_a_heartbeat_that_cannot_be_written_is_reported_once(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CTRAIN_HEARTBEAT", str(tmp_path / "missing/beat"))
    program.beat(1)
    program.beat(2, "evaluation")
    [line] = capsys.readouterr().err.splitlines()
    assert "no heartbeat: " in line
    assert "missing/beat" in line


def test_metrics_are_lines_with_the_time(program: ModuleType, tmp_path: Path) -> None:
    class Tensor:
        def item(self) -> float:
            return 2.5

    program.metrics(step=1, loss=Tensor(), name="warm-up")
    program.metrics(step=2, loss=float("nan"), rate=float("inf"), done=False, missing=None)
    first, second = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert first.pop("time") > 1e9
    assert first == {"step": 1, "loss": 2.5, "name": "warm-up"}
    second.pop("time")
    assert second == {"step": 2, "loss": None, "rate": None, "done": False, "missing": None}


def test_metrics_take_lists_and_arrays(tmp_path: Path) -> None:
    array = "type('Array', (), {'tolist': lambda self: [[1, float('nan')], 0.5]})()"
    done = run(f"metrics(step=1, seconds_by_rank=[0.1, 0.2], other=({array}, 3))", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (line["seconds_by_rank"], line["other"]) == ([0.1, 0.2], [[[1, None], 0.5], 3])


@pytest.mark.parametrize("name", ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "CTRAIN_TASK"])
def test_only_rank_0_writes_metrics(name: str, tmp_path: Path) -> None:
    for rank in ("1", "0"):
        assert run(f"metrics(step={rank})", tmp_path, **{name: rank}).stderr == ""
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1


def test_half_a_line_that_was_left_spoils_no_other(program: ModuleType, tmp_path: Path) -> None:
    """By a rank that was killed, or met a full disk."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 7}\n{"st')
    for step in (8, 9):
        program.metrics(step=step)
    half, *lines = path.read_text().splitlines()[1:]
    assert half == '{"st' and [json.loads(line)["step"] for line in lines] == [8, 9]


def test_metrics_of_a_full_disk_do_not_end_a_training(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    program.metrics(step=1)
    program.metrics(step=2)
    [line] = capsys.readouterr().err.splitlines()
    assert "metrics are lost: " in line


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGUSR2"])
def test_a_signal_sets_the_flag_and_calls_the_handler_that_was_there(name: str, tmp_path: Path) -> None:
    code = f"""
import os, signal
signal.signal(signal.{name}, lambda *_: print("library"))
print(stopping())
os.kill(os.getpid(), signal.{name})
print(stopping())
os.kill(os.getpid(), signal.{name})
print(stopping())
"""
    done = run(code, tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["False", "library", "True", "library", "True"])


def test_before_the_first_call_a_signal_has_its_usual_effect(tmp_path: Path) -> None:
    done = run("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)", tmp_path)
    assert done.returncode == -signal.SIGTERM


def test_a_checkpoint_has_digests_that_sha256sum_reads(program: ModuleType, tmp_path: Path) -> None:
    def write(name: str) -> None:
        (Path(name) / "shards").mkdir(parents=True)
        (Path(name) / "shards/0").write_text("zero")
        (Path(name) / "config.json").write_text("{}")

    path = program.save_checkpoint(write, 12, suffix="")
    assert path == tmp_path / "checkpoint/step-00000012"
    assert sorted(file.name for file in path.parent.iterdir()) == ["step-00000012", "step-00000012.sha256"]
    checked = subprocess.run(
        ["sha256sum", "-c", "step-00000012.sha256"], cwd=path.parent, capture_output=True, text=True, check=True
    )
    assert checked.stdout.splitlines() == ["step-00000012/config.json: OK", "step-00000012/shards/0: OK"]


def test_the_newest_two_are_kept(program: ModuleType, tmp_path: Path) -> None:
    for step in (8, 9, 10, 11):
        save(program, step)
    names = sorted(path.name for path in (tmp_path / "checkpoint").iterdir())
    assert names == [f"step-{step:08d}.pt{end}" for step in (10, 11) for end in ("", ".sha256")]


def test_one_that_fails_leaves_nothing(program: ModuleType) -> None:
    def write(name: str) -> None:
        Path(name).write_text("half")
        raise OSError(28, "No space left on device")

    before = save(program, 1)
    with pytest.raises(OSError, match="No space left"):
        program.save_checkpoint(write, 2)
    assert sorted(path.name for path in before.parent.iterdir()) == [before.name, f"{before.name}.sha256"]


def test_a_step_that_is_reached_again_is_saved_again(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(program, 1)
    path.write_text("damaged")
    assert save(program, 1) == path
    monkeypatch.setenv("CTRAIN_RESUME", str(path.parent))
    assert program.checkpoint_to_resume() == path


def test_without_a_run_to_resume_there_is_nothing(program: ModuleType) -> None:
    save(program, 1)
    assert program.checkpoint_to_resume() is None


@pytest.mark.parametrize("damage", ["cut off", "empty", "other", "missing"])
def test_of_a_damaged_checkpoint_the_one_before_is_used(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    before, path = save(program, 9), save(program, 10)
    monkeypatch.setenv("CTRAIN_RESUME", str(path.parent))
    assert program.checkpoint_to_resume() == path
    if damage == "missing":
        path.unlink()
    else:
        path.write_text({"cut off": "wei", "empty": "", "other": "WEIGHTS 10"}[damage])
    assert program.checkpoint_to_resume() == before
    errors = capsys.readouterr().err
    assert re.search(r"step-00000010\.pt is damaged \(digest mismatch of .*\): it is not used", errors) or (
        damage == "missing" and not errors
    )


def test_a_directory_that_lacks_a_file_is_damaged(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(name: str) -> None:
        Path(name).mkdir()
        (Path(name) / "a").write_text("a")
        (Path(name) / "b").write_text("b")

    path = program.save_checkpoint(write, 1, suffix="")
    (path / "b").unlink()
    monkeypatch.setenv("CTRAIN_RESUME", str(path.parent))
    assert program.checkpoint_to_resume() is None
    assert "step-00000001/b is missing" in capsys.readouterr().err


def test_checkpoints_of_others_are_taken_by_the_numbers_in_their_names(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    for name in ("epoch=9-step=900.ckpt", "epoch=10-step=1000.ckpt", "epoch=11-step=1100.ckpt.tmp", ".epoch=12.ckpt"):
        (directory / name).write_text("weights")
    (directory / "epoch=11-step=1100.ckpt").touch()  # of a full disk
    monkeypatch.setenv("CTRAIN_RESUME", str(directory))
    assert program.checkpoint_to_resume("*") == directory / "epoch=10-step=1000.ckpt"


def test_a_run_to_resume_without_checkpoint_ends_the_program(tmp_path: Path) -> None:
    done = run("checkpoint_to_resume()", tmp_path, CTRAIN_RESUME=str(tmp_path))
    assert (done.returncode, done.stderr) == (78, f"-c: {tmp_path} has no checkpoint to resume from\n")


def test_the_first_checkpoint_of_a_restarted_run_may_be_missing(tmp_path: Path) -> None:
    own = str(tmp_path / "checkpoint")
    done = run("print(checkpoint_to_resume())", tmp_path, CTRAIN_RUN_DIR=str(tmp_path), CTRAIN_RESUME=own)
    assert (done.returncode, done.stdout) == (0, "None\n")


PROFILER = """
import sys, types
class Averages(list):
    times = {"aten::mm": 6.0, "c10d::allreduce_": 3.0, "enumerate(DataLoader)#_Next": 1.0}
    def __init__(self):
        super().__init__(types.SimpleNamespace(key=name, self_cpu_time_total=time) for name, time in self.times.items())
    def table(self, sort_by, row_limit): return sort_by
class Profiler:
    def start(self): print("start")
    def stop(self): print("stop")
    def output_text(self, unicode, color): return "80% train"
    def output_html(self): return "<html>"
    def key_averages(self): return Averages()
    def export_chrome_trace(self, path): open(path, "w").close()
cuda = types.SimpleNamespace(is_available=lambda: False)
sys.modules["pyinstrument"] = types.SimpleNamespace(Profiler=Profiler)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
sys.modules["torch.profiler"] = types.SimpleNamespace(profile=Profiler)
for step in range(100, 106):
    print(step)
    beat(step)
    beat(step, "checkpoint")
"""


@pytest.mark.parametrize(
    ("tool", "files", "text"),
    [
        ("pyinstrument", ["rank0.html", "rank0.txt"], "80% train\n"),
        (
            "torch",
            ["rank0.trace.json.gz", "rank0.txt"],
            "communication 30%, data 10%, computation 60%\nself_cpu_time_total\n",
        ),
    ],
)
def test_some_steps_are_profiled(tmp_path: Path, tool: str, files: list[str], text: str) -> None:
    done = run(PROFILER, tmp_path, CTRAIN_PROFILE=tool, CTRAIN_PROFILE_STEPS="3-4")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["100", "101", "start", "102", "103", "stop", "104", "105"]
    assert sorted(path.name for path in (tmp_path / "profiles").iterdir()) == files
    assert (tmp_path / "profiles/rank0.txt").read_text() == text


def test_nsight_systems_records_the_same_steps(tmp_path: Path) -> None:
    cuda = "sys.modules['torch.cuda'] = types.SimpleNamespace(profiler=Profiler())\nfor step in range(100"
    code = PROFILER.replace("for step in range(100", cuda)
    done = run(code, tmp_path, CTRAIN_PROFILE="nsys", CTRAIN_PROFILE_STEPS="3-4")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["100", "101", "start", "102", "103", "stop", "104", "105"]


def test_a_program_that_ends_before_has_its_profile_too(tmp_path: Path) -> None:
    done = run(PROFILER, tmp_path, CTRAIN_PROFILE="torch", CTRAIN_PROFILE_STEPS="1-100")
    assert done.stdout.split() == ["100", "start", "101", "102", "103", "104", "105", "stop"]
    assert (tmp_path / "profiles/rank0.txt").exists()


def test_each_attempt_has_its_own_profile(tmp_path: Path) -> None:
    for attempt in ("0", "1"):
        run(PROFILER, tmp_path, CTRAIN_PROFILE="pyinstrument", CTRAIN_PROFILE_STEPS="1-2", CTRAIN_ATTEMPT=attempt)
    names = ["rank0.attempt1.html", "rank0.attempt1.txt", "rank0.html", "rank0.txt"]
    assert sorted(path.name for path in (tmp_path / "profiles").iterdir()) == names


def test_other_ranks_and_runs_without_a_profile_do_nothing(tmp_path: Path) -> None:
    for variables in ({}, {"CTRAIN_PROFILE": "torch", "CTRAIN_PROFILE_RANKS": "1,10"}):
        assert "start" not in run(PROFILER, tmp_path, **variables, RANK="0").stdout
    assert not (tmp_path / "profiles").exists()


def test_a_profiler_that_fails_ends_no_training(tmp_path: Path) -> None:
    (tmp_path / "profiles").touch()
    for code, variables, problem in (
        ("beat(1)\nbeat(2)", {"CTRAIN_PROFILE": "pyinstrument"}, "ModuleNotFoundError"),
        (PROFILER, {"CTRAIN_PROFILE": "torch"}, "FileExistsError"),
        (PROFILER, {"CTRAIN_PROFILE": "torch", "CTRAIN_PROFILE_STEPS": "x"}, "ValueError"),
    ):
        missing = "import sys\nsys.modules['pyinstrument'] = None\n"
        done = run(missing + code, tmp_path, **{"CTRAIN_PROFILE_STEPS": "1-2", **variables})
        assert done.returncode == 0
        assert f"no profile: {problem}" in done.stderr
        assert done.stderr.count("\n") == 1
