from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from samples import programs as fakes


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, programs: Path) -> Path:
    """The current folder: two scripts, a job's folder, one that shares its name with a program, and two programs."""
    for name in ("args.py", "my run.sh"):
        (tmp_path / name).touch()
    for name in ("ddp", "sleep"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.yaml").write_text("command: [hostname]\nimage: x\n")
    for name in ("python", "sleep"):
        fakes.answer(programs, name)
    return tmp_path


COMMAND = "is a program, not a job. Put the command after --: ctrain run "
PROGRAM = "Put the program's own arguments after --: ctrain run "


@pytest.mark.parametrize(
    ("line", "code", "complaint"),
    [
        ("run --image X args.py", 64, f"'args.py' {COMMAND}--image X -- python args.py"),
        ("run --image X gone.py", 64, f"'gone.py' {COMMAND}--image X -- python gone.py"),
        ("run ./args.py --nodes 2", 64, f"'./args.py' {COMMAND}--nodes 2 -- python ./args.py"),
        ("run python args.py --image I", 64, f"'python' {COMMAND}--image I -- python args.py"),
        ("run python args.py --lr 1 --image=I --x", 64, f"'python' {COMMAND}--image=I -- python args.py --lr 1 --x"),
        ("run --name n python3.12 args.py --nodes", 64, "argument --nodes: expected one argument"),
        ("run python3.12 args.py", 64, f"'python3.12' {COMMAND}-- python3.12 args.py"),
        ("run torchrun args.py --image I", 64, f"'torchrun' {COMMAND}--image I -- torchrun args.py"),
        ("run --nodes 2 python args.py --lr 0.1", 64, f"'python' {COMMAND}--nodes 2 -- python args.py --lr 0.1"),
        ("run --name python python -- args.py", 64, f"'python' {COMMAND}--name python -- python args.py"),
        ("run sleep", 65, "unknown job 'sleep'. Did you mean ./sleep? Jobs: "),
        ("run ddp", 65, "unknown job 'ddp'. Did you mean ./ddp? Jobs: "),
        ("run resnet5", 65, "unknown job 'resnet5'. Did you mean 'resnet50'? Jobs: "),
        ("run resnet50 --epochs 4", 64, f"unrecognized arguments: --epochs 4. {PROGRAM}resnet50 -- --epochs 4"),
        ("run ./ddp x --nodes 2", 64, f"unrecognized arguments: x. {PROGRAM}./ddp --nodes 2 -- x"),
        ("run --nodes 4 ./ddp --x 4 -- 4", 64, f"unrecognized arguments: --x 4. {PROGRAM}--nodes 4 ./ddp -- --x 4 4"),
        ("run ./ddp --lr=1 --gpus 2", 64, f"Did you mean '--gpus-per-node'? {PROGRAM}./ddp -- --lr=1 --gpus 2"),
        ("run --epochs 4 resnet50", 64, f"unrecognized arguments: --epochs resnet50. {PROGRAM}JOB -- ARGUMENTS"),
        ("run --node 2", 64, "unrecognized arguments: --node. Did you mean '--nodes'? See: ctrain run --help"),
        ("store gc --jsn", 64, "unrecognized arguments: --jsn. Did you mean '--json'? See: ctrain store --help"),
        ("store promot", 64, "Did you mean 'promote'? See: ctrain store --help"),
        ("run -N 2 resnet50", 64, "Did you mean '--nodes'? See: ctrain run --help"),
        ("run resnet50 -n4", 64, "Did you mean '--ranks-per-node'? Put the program's own arguments after --"),
        ("run -p debug ./ddp", 64, "Did you mean '--partition'? See: "),
        ("submit -t 1:00:00 ./ddp", 64, "Did you mean '--time'? See: ctrain submit --help"),
        ("run -A me ./ddp", 64, "Did you mean '--account'? See: "),
        ("run -N 2 -n 4 -p gpu ./ddp", 64, "Did you mean '--nodes', '--ranks-per-node', '--partition'? See: "),
        ("run --gres=gpu:2 --ntasks 4 ./ddp", 64, "Did you mean '--gpus-per-node', '--ranks-per-node'? See: "),
        ("run --queue q --walltime 1:00:00 ./ddp", 64, "Did you mean '--partition', '--time'? See: "),
        (
            "runs -p debug",
            64,
            "argument rm|gc: invalid choice: 'debug' (choose from 'rm', 'gc'). See: ctrain runs --help",
        ),
        ("stop last", 64, "unknown command 'stop'. Did you mean: ctrain cancel\n"),
        ("tail last", 64, "unknown command 'tail'. Did you mean: ctrain logs\n"),
        ("ps", 64, "unknown command 'ps'. Did you mean: ctrain runs\n"),
        ("list", 64, "unknown command 'list'. Did you mean: ctrain runs, or ctrain images\n"),
        ("rum", 64, "unknown command 'rum'. Did you mean 'run'? Known: run, "),
        ("images x y z", 64, "unrecognized arguments: z. See: ctrain images --help"),
        ("images shwo x", 64, "Did you mean 'show'? See: ctrain images --help"),
    ],
)
def test_the_line_to_type(line: str, code: int, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main((*RUNTIME_VERBS, *BUILD_VERBS), line.split()) == code
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1


def test_the_line_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(RUNTIME_VERBS, ["run", "--name", "a b", "./my run.sh", "$x"]) == 64
    assert capsys.readouterr().err.endswith("ctrain run --name 'a b' -- bash './my run.sh' '$x'\n")
