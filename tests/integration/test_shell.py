"""`ctrain shell` on the real cluster, as users have it: on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from samples.cluster import Cluster, until
from samples.terminal import Terminal

PROMPT = "]$ "
SHELL = ("ctrain", "shell", "pytorch-cpu", "--gpus-per-node", "1", "--name", "look")
Start = Callable[..., Terminal]


@pytest.fixture
def start(cluster: Cluster) -> Iterator[Start]:
    """start(ARGV..., until=TEXT): a terminal of the researcher's with this program, which shows its first prompt."""
    terminals: list[Terminal] = []

    def start(*argv: str, until: str = PROMPT) -> Terminal:
        terminals.append(Terminal(cluster.command(*argv, TERM="dumb"), Path("/")))
        terminals[-1].wait_for(until)
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()
    until(lambda: not jobs(cluster), "the end of the jobs")


def typed(terminal: Terminal, line: str) -> list[str]:
    """The output of a command line."""
    terminal.type(f"{line}\r")
    lines = terminal.wait_for(PROMPT).splitlines()
    return lines[1:-1]  # between its echo and the next prompt


def jobs(cluster: Cluster) -> list[str]:
    lines = cluster.run("squeue", "--me", "--noheader", "--name=look", "--format=%T").stdout.split()
    return [state for state in lines if state != "COMPLETING"]


def test_a_shell_is_a_rank_with_a_terminal(cluster: Cluster, start: Start) -> None:
    terminal = start(*SHELL, "--env", "COLOUR=dark blue")
    shown = typed(terminal, "echo $RANK/$WORLD_SIZE on $(uname -n), GPU $CUDA_VISIBLE_DEVICES, $COLOUR; echo ~; pwd")
    assert shown == ["0/1 on node01, GPU 0, dark blue", "/home/ctrain", str(cluster.home)]
    assert typed(terminal, "python -c 'import torch; print(torch.ones(2).sum().item())'") == ["2.0"]
    assert typed(terminal, "stty size") == ["24 200"]
    terminal.resize(50, 180)
    until(lambda: typed(terminal, "stty size") == ["50 180"], "the new size")
    terminal.type("sh -c 'echo ready && exec sleep 1000'\r")  # bash may lose keys until its child is a program
    terminal.wait_for("\nready\r\n")
    terminal.type("\x03")
    terminal.wait_for(PROMPT)
    assert typed(terminal, "echo $?") == ["130"]
    assert "no runs in" in cluster.run("ctrain", "runs").stdout
    terminal.type("exit 7\r")
    assert terminal.end() == 7
    assert not cluster.runs("look").exists()
    until(lambda: not jobs(cluster), "the end of the job")


def test_a_shell_ends_with_its_terminal_and_keeps_what_was_written(cluster: Cluster, start: Start) -> None:
    terminal = start(*SHELL)
    typed(terminal, "touch $CTRAIN_RUN_DIR/checkpoint/step-1; sleep 1000 &")
    assert jobs(cluster) == ["RUNNING"]
    terminal.close()
    until(lambda: not jobs(cluster), "the end of the job")
    kept = cluster.runs("look")
    until(lambda: sorted(path.name for path in kept.rglob("*")) == ["checkpoint", "step-1"], "the removal of the rest")


def test_a_shell_in_an_allocation_shares_it(start: Start) -> None:
    allocation = ["salloc", "--quiet", "--partition=skl", "--time=5", "--ntasks=1", "--job-name=look"]
    inside = "srun --overlap sleep 1000 & exec ctrain shell pytorch-cpu --name look"
    terminal = start(*allocation, "bash", "-c", inside)
    assert typed(terminal, "uname -n") == ["skl01"]
    terminal.type("\x04")
    assert terminal.end() == 0


def test_ctrl_c_in_the_queue_leaves_nothing(cluster: Cluster, start: Start) -> None:
    script = ["sbatch", "--partition=skl", "--exclusive", "--job-name=look", "--wrap=sleep 1000", "--output=/dev/null"]
    first = cluster.run(*script, "--parsable").stdout.strip()
    until(lambda: jobs(cluster) == ["RUNNING"], "the start of a job that has the whole node")
    terminal = start(*SHELL, "--partition", "skl", "--gpus-per-node", "0", until="queued and waiting for resources")
    # srun 22.05 hangs if the signal comes between this line and its poll, and has then ended its job all the same.
    until(lambda: sorted(jobs(cluster)) == ["PENDING", "RUNNING"], "the second job in the queue")
    terminal.type("\x03")
    assert terminal.end() != 0
    assert not cluster.runs("look").exists()
    assert jobs(cluster) == ["RUNNING"]
    cluster.run("scancel", first)


def test_without_a_terminal_it_is_refused(cluster: Cluster) -> None:
    done = cluster.run(*SHELL)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith("ctrain: ctrain shell needs a terminal. Run a program without one: ctrain run")
    assert not cluster.runs("look").exists()
