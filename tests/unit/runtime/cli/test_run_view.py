from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Optional

import pytest

from ctrain_runtime.cli import run_view
from ctrain_runtime.job import Dataset
from ctrain_runtime.plan.model import Expectation, LaunchPlan
from ctrain_runtime.run import logs, record, shared_files
from ctrain_runtime.run.conclude import Conclusion
from ctrain_runtime.run.ending import Ending
from ctrain_runtime.run.measured import Measured
from ctrain_runtime.run.ranks import Rank
from ctrain_runtime.run.record import Attempt, Exit
from ctrain_runtime.run.request import Prepared
from samples.plans import LOCAL, a_job, a_launch, a_plan, a_site, an_image, changed, some_facts


def summary(plan: LaunchPlan, **parts: Any) -> list[str]:
    return run_view.summary(Prepared(a_launch(plan), **{"notes": (), **parts}), "requested").splitlines()


def test_the_header_of_a_run_on_a_cluster() -> None:
    plan = a_plan(job=a_job(data=Dataset("imagenet")), nodes=2, data="/data/imagenet")
    assert summary(plan, notes=("time limit shortened",), image_source=" (from CTRAIN_IMAGE)") == [
        "site      neuron (requested)",
        "image     pytorch 24.12-hd-r3 (prod)  sha256:9f2c41d0a7e3 (from CTRAIN_IMAGE)",
        "where     2 x amd_a100nv_8: 8 GPUs per node, 8 cores per rank; 16 ranks, launcher mpi (pmix); limit 01:00:00",
        "data      /data/imagenet -> /data (read-only)",
        "run       digits-1  ->  /scratch/kim/ctrain/digits-1",
        "note      time limit shortened",
    ]


def test_what_a_site_mounts_is_not_called_data() -> None:
    """Libraries of nodes were (/opt/cray)."""
    site = a_site(mounts=("/opt/cray:/opt/cray:ro",))
    plan = a_plan(site=site, job=a_job(data=Dataset("imagenet")), data="/data/imagenet", resume="/scratch/old")
    assert [line for line in summary(plan) if "(read-only)" in line] == [
        "mount     /opt/cray -> /opt/cray (read-only)",
        "data      /data/imagenet -> /data (read-only)",
        "data      /scratch/old -> /resume (read-only)",
    ]


@pytest.mark.parametrize(
    ("parts", "where"),
    [
        ({**LOCAL}, "this machine: 1 rank, launcher mpirun"),
        ({**LOCAL, "nodes": 2, "ranks_per_node": 3}, "this machine: 2 groups of 3; 6 ranks, launcher mpirun"),
        (
            {"partition": "skl", "launcher": "env", "job": a_job(launcher="env")},
            "1 x skl: 40 cores per rank; 1 rank, launcher env; limit 01:00:00",
        ),
        (
            {"partition": "skl", "job": a_job(launcher="env"), "restarts": 1, "spare_nodes": 1},
            "1 x skl and 1 spare node: 40 cores per rank; 1 rank, launcher env; limit 01:00:00",
        ),
    ],
)
def test_where(parts: dict[str, Any], where: str) -> None:
    assert f"where     {where}" in summary(a_plan(**parts))


def test_the_decision_on_staging_is_explained() -> None:
    staged = a_plan(site=a_site(staging="/local"), nodes=2, stage="always")
    assert [line for line in summary(staged) if line.startswith("staging   copied to /local on each node (a copy")]
    off = a_plan()
    assert not [line for line in summary(off) if line.startswith("staging")]  # only a dry run says it
    text = run_view.describe(Prepared(a_launch(off), notes=()))
    assert "staging   off: site neuron names no directory on the nodes' own disks" in text.splitlines()


def test_a_run_without_a_time_limit_and_inside_an_allocation() -> None:
    plan = changed(a_plan(), time_limit=None, allocation="37")
    (where,) = [line for line in summary(plan) if line.startswith("where")]
    assert where.startswith("where     1 x amd_a100nv_8 in allocation 37: ")
    assert where.endswith("; no time limit")


def test_a_flattened_image_is_named_as_a_substitute() -> None:
    flat = an_image(flat=True, digest="sha256:f1a7")
    image = summary(a_plan(facts=some_facts(ignores_layers=True), flat=flat))[1]
    assert image.startswith(
        "image     pytorch 24.12-hd-r3-flat (prod)  sha256:f1a7, flattened, in place of 24.12-hd-r3"
    )


def test_a_dry_run_shows_scripts_and_no_secret() -> None:
    plan = a_plan(env={"A": "two words", "HF_TOKEN": "hunter2", "PASSED": None})
    shown = run_view.describe(Prepared(a_launch(plan), ()))
    assert shown.startswith("site      neuron (dry run: nothing is started)\n")
    assert "\ncommand   sbatch --parsable /scratch/kim/ctrain/digits-1/job.sh\n" in shown
    assert "\nenv       PYTHONNOUSERSITE=1  (ctrain)\n" in shown
    assert "\nenv       A=two words  (option)\n" in shown
    assert "\nenv       PASSED  (option: this shell's value)\n" in shown
    assert "\nenv       HF_TOKEN=***  (option)\n" in shown and "hunter2" not in shown
    listed = " ".join(
        re.findall(r"(?m)^env       ([A-Z_* ]+)(?:  \(each rank's, or its node's if set\))?$", shown)
    ).split()
    assert {"RANK", "ROCR_VISIBLE_DEVICES", "OMPI_COMM_WORLD_RANK", "SLURM_*"} <= set(listed)
    assert "\n\n--- job.sh\n#!/bin/bash -p\n" in shown


@pytest.fixture
def plan(tmp_path: Path) -> LaunchPlan:
    plan = a_plan(nodes=2, ranks_per_node=2, run_directory=tmp_path / "one")
    (tmp_path / "one/logs").mkdir(parents=True)
    return plan


def ending(plan: LaunchPlan, ended: Exit, failed: int = -1, step: int = 0, shown: str = "") -> list[str]:
    begun = record.begin(plan)
    job = Attempt("7", "job 7", "2026-11-22T00:00:00+00:00")
    done = dataclasses.replace(begun, exit=ended, attempts=(job,))
    rank = Rank(failed, "gpu01", 1.0, 2.0, ended.code) if failed >= 0 else None
    others = ((3, "stopped"),) if rank else ()
    return run_view.ending(plan, Conclusion(done, rank, others=others), step, shown).splitlines()


def test_the_last_line_is_always_the_run_directory(plan: LaunchPlan) -> None:
    for ended in (
        Exit(0, "completed", "program", Ending.COMPLETED),
        Exit(130, "cancelled", "user", Ending.CANCELLED),
        Exit(143, "time limit reached", "scheduler", Ending.TIME_LIMIT),
        Exit(9, "x", "ctrain", Ending.REFUSED),
    ):
        assert ending(plan, ended)[-1] == f"run directory: {plan.run_directory}"


BEGUN = "2026-11-22T00:00:00+00:00"


@pytest.mark.parametrize(
    ("end", "took"),
    [
        ("2026-11-22T00:00:00+00:00", " in 0 s"),
        ("2026-11-22T00:00:09+00:00", " in 9 s"),
        ("2026-11-22T00:01:03+00:00", " in 1 min 3 s"),
        ("2026-11-22T02:34:03+00:00", " in 2 h 34 min"),
        (None, ""),
    ],
)
def test_a_run_that_is_complete_says_so_and_how_long_it_took(plan: LaunchPlan, end: Optional[str], took: str) -> None:
    complete = Exit(0, "completed", "program", Ending.COMPLETED)
    done = dataclasses.replace(record.begin(plan), exit=complete, start=BEGUN, end=end)
    assert run_view.ending(plan, Conclusion(done)).splitlines()[:-1] == [f"completed{took}"]


@pytest.mark.parametrize(
    ("metrics", "shown"),
    [
        ('{"step": 1, "loss": 9}\n{"step": 2, "steps": 2, "loss": 0.5}\n', "; last metrics: step 2/2, loss 0.500"),
        ('{"step": 2, "loss": 0.5}\n{"step": 2, "val_loss": 3}\n{"lo', "; last metrics: step 2, loss 0.500"),
        ('{"step": "two", "loss": 0.5}\n', ""),
        ("{}\nnot JSON\n", ""),
        ("x" * shared_files.TAIL_BYTES + '\n{"step": 7, "loss": 1}\n', "; last metrics: step 7, loss 1.00"),
    ],
)
def test_a_complete_run_shows_the_last_metrics_of_its_program(plan: LaunchPlan, metrics: str, shown: str) -> None:
    (Path(plan.run_directory) / "metrics.jsonl").write_text(metrics)
    assert ending(plan, Exit(0, "completed", "program", Ending.COMPLETED))[:-1] == [f"completed{shown}"]
    assert not [line for line in ending(plan, Exit(9, "x", "program", Ending.FAILED)) if "metrics" in line]


def test_a_run_that_was_ended_early_names_its_step_and_its_checkpoint(plan: LaunchPlan) -> None:
    (Path(plan.run_directory) / "checkpoint").mkdir()
    (Path(plan.run_directory) / "checkpoint/step-400.pt").touch()
    limit = Exit(143, "time limit reached (TIMEOUT)", "scheduler", Ending.TIME_LIMIT)
    assert ending(plan, limit, step=412)[:4] == [
        "time limit reached (TIMEOUT)",
        "last step: 412",
        "exit code 143 (scheduler's)",
        f"checkpoint kept; resume with: --resume {plan.run_directory}",
    ]


def test_an_estimate_beside_what_was_measured(plan: LaunchPlan) -> None:
    memory = {"parameters": 10**9, "output": 0}
    expected = Expectation("A100", 10, memory, 79 * 10**9, tokens=1000, steps=5, step_seconds=2, fastest=1, slowest=3)
    begun = record.begin(changed(plan, estimate=expected))
    shown = [line for line in summary(changed(plan, estimate=expected)) if line.startswith("estimate")]
    assert shown == [
        "estimate  10 parameters; 1.0 GB per rank of 79.0 GB usable: parameters 1.0 GB",
        "estimate  2.00 s (1.00 s to 3.00 s) per step on A100; 5 steps: 10.00 s, 0.0111 GPU hours",
    ]
    for measured, cells in (
        (Measured(250.0, 2 * 10**9), ("4.00 s", "250", "2.0 GB")),
        (Measured(), ("-", "-", "-")),
    ):
        done = dataclasses.replace(begun, exit=Exit(0, "completed", "program", Ending.COMPLETED), measured=measured)
        assert run_view.ending(plan, Conclusion(done)).splitlines()[1:-1] == [
            "                 estimated  measured",
            f"time per step    2.00 s     {cells[0]}",
            f"tokens/s         500        {cells[1]}",
            f"memory per rank  1.0 GB     {cells[2]}",
        ]


def test_a_cancelled_run_names_its_job_its_step_and_its_checkpoint(plan: LaunchPlan) -> None:
    cancelled = Exit(130, "cancelled", "user", Ending.CANCELLED)
    assert ending(plan, cancelled)[0] == "cancelled job 7"
    (Path(plan.run_directory) / "checkpoint").mkdir()
    assert ending(plan, cancelled, step=400)[:-1] == ["cancelled job 7 at step 400"]
    (Path(plan.run_directory) / "checkpoint/step-400.pt").touch()
    resume = f"checkpoint kept; resume with: --resume {plan.run_directory}"
    assert ending(plan, cancelled, step=400)[:-1] == ["cancelled job 7 at step 400", resume]


@pytest.mark.parametrize(("by", "code"), [("scheduler", "143 (scheduler's)"), ("program", "143")])
def test_whose_exit_code_it_is(plan: LaunchPlan, by: str, code: str) -> None:
    assert ending(plan, Exit(143, "why", by, Ending.FAILED))[:-1] == ["why", f"exit code {code}"]


def test_a_failed_rank_is_shown_with_its_last_lines(plan: LaunchPlan) -> None:
    log = Path(plan.run_directory) / "logs/rank3.log"
    log.write_bytes(b"".join(b"line %d\n\n" % number for number in range(20)) + b"no UTF-8: \xff\n  \n")
    lines = ending(plan, Exit(9, "rank 3 failed first", "program", Ending.FAILED), failed=3)
    assert lines[0] == "rank 3 failed first"
    assert lines[1:9] == [
        *(f"  | line {number}" for number in range(13, 20)),
        "  | no UTF-8: \N{REPLACEMENT CHARACTER}",
    ]
    assert lines[9:11] == [f"its log: {log}; 3 other ranks stopped", "exit code 9"]


@pytest.mark.parametrize(
    ("others", "text"),
    [
        (((3, "stopped"),), "; 3 other ranks stopped"),
        (((1, "stopped"), (2, "failed, too")), "; 1 other rank stopped, 2 failed, too"),
        ((), ""),
    ],
)
def test_what_became_of_the_other_ranks(plan: LaunchPlan, others: tuple[tuple[int, str], ...], text: str) -> None:
    ended = Exit(9, "rank 1 on gpu01 failed first: exit code 9", "program", Ending.FAILED)
    done = dataclasses.replace(record.begin(plan), exit=ended)
    failed = Conclusion(done, Rank(1, "gpu01", 1.0, 2.0, 9), others=others)
    assert run_view.ending(plan, failed).splitlines()[:-1] == [
        ended.reason,  # which has the code
        f"its log: {plan.run_directory}/logs/rank1.log{text}",
    ]


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("rank 1 on gpu01 failed first: exit code 7", False),
        ("rank 1 on gpu01 failed first: Exited with exit code 7 (from the job's log)", False),
        ("rank 1 on gpu01 failed first: exit code 7; disk full: /scratch", False),
        ("rank 1 on gpu01 failed first: exit code 77", True),
        ("rank 1 on gpu01 failed first: signal 9 (killed)", True),
    ],
)
def test_a_code_that_the_reason_has_is_not_repeated(plan: LaunchPlan, reason: str, told: bool) -> None:
    assert ("exit code 7" in ending(plan, Exit(7, reason, "program", Ending.FAILED), failed=1)) is told


def test_a_refusal_that_ends_the_output_above_is_not_repeated(plan: LaunchPlan) -> None:
    refusal = "command not found in the image: x"
    ended = Exit(127, f"rank 3 on gpu01: {refusal}", "ctrain", Ending.REFUSED)
    done = dataclasses.replace(record.begin(plan), exit=ended)
    failed = Conclusion(done, Rank(3, "gpu01", 1.0, 2.0, 127, refusal))
    log = Path(plan.run_directory) / "logs/rank3.log"
    log.write_text(f"ctrain: {refusal}\n")
    rest = [f"its log: {log}", "exit code 127 (ctrain's)", f"run directory: {plan.run_directory}"]
    above = run_view.ending(plan, failed, shown=f"ctrain: {refusal}\n").splitlines()
    assert above == ["rank 3 on gpu01 did not start its program", *rest]
    assert run_view.ending(plan, failed).splitlines() == [ended.reason, *rest]


@pytest.mark.parametrize(
    ("shown", "repeated"),
    [
        ("epoch 1\n\nstart\r\nno images\n\n", False),
        ("start\nno images\n", False),
        ("no images\n", True),  # the file server shows the log's end only now
        ("start\nno images\nepoch 2\n", True),
        ("", True),  # of a run that has ended before
    ],
)
def test_last_lines_that_end_the_output_above_are_not_repeated(plan: LaunchPlan, shown: str, repeated: bool) -> None:
    log = Path(plan.run_directory) / "logs/rank3.log"
    log.write_text("start\nno images\n")
    quoted = ["  | start", "  | no images"] if repeated else []
    lines = ending(plan, Exit(9, "rank 3 failed first", "program", Ending.FAILED), failed=3, shown=shown)
    assert lines[:-2] == ["rank 3 failed first", *quoted, f"its log: {log}; 3 other ranks stopped"]


def test_a_known_cause_is_followed_by_its_remedy(plan: LaunchPlan) -> None:
    log = Path(plan.run_directory) / "logs/rank1.log"
    log.write_text("Traceback\nModuleNotFoundError: No module named 'einops'\n")
    lines = ending(plan, Exit(1, "rank 1 failed first", "program", Ending.FAILED), failed=1)
    at = lines.index("  | ModuleNotFoundError: No module named 'einops'")
    assert lines[at + 1].startswith("advice: the image has no Python module einops: add its package by a layer")


def test_a_failed_rank_without_a_log(plan: LaunchPlan) -> None:
    lines = ending(plan, Exit(9, "rank 1 failed first", "program", Ending.FAILED), failed=1)
    assert lines[1] == f"its log: {plan.run_directory}/logs/rank1.log; 3 other ranks stopped"


def test_the_last_lines_of_a_rank_in_a_log_that_ranks_share(tmp_path: Path) -> None:
    log = tmp_path / "node1.log"
    log.write_text("[17] mine\n[1] other\n[170] other\n[17] mine, too\n[17] \n")
    assert logs.last_lines(log, 17) == ["mine", "mine, too", ""]


def test_of_a_huge_log_only_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    with log.open("wb") as file:
        file.truncate(10**11)  # sparse: to read it would take minutes
        file.seek(0, 2)
        file.write(b"\nthe end\n")
    assert logs.last_lines(log, 0)[-1] == "the end"


@pytest.mark.parametrize(
    ("by", "first"),
    [
        (
            "torchrun",
            "Let your command start the ranks of each node:  ctrain run ... --launcher node -- bash 'my run.sh'",
        ),
        ("deepspeed", "Let ctrain start the ranks, not your script:    ctrain run ... -- python PROGRAM.py"),
    ],
)
def test_a_run_that_was_stopped_for_its_worlds_ends_with_the_lines_to_type(
    plan: LaunchPlan, by: str, first: str
) -> None:
    ours = changed(plan, nodes=1, command=("bash", "my run.sh"))
    reason = f"each of 2 ranks started ranks of its own ({by}, 2 worlds of 2, same command): they would train 2 models"
    apart = "Or say that they are meant to be apart:         ctrain run ... --independent -- bash 'my run.sh'"
    lines = ending(ours, Exit(81, reason, "ctrain", Ending.REFUSED))
    assert lines[:-1] == [reason, "exit code 81 (ctrain's)", first, apart]
    assert first not in ending(ours, Exit(81, "rank 0 on gpu01 failed first: exit code 81", "program", Ending.FAILED))


def test_the_lines_to_type_name_the_directory_of_a_job(plan: LaunchPlan, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").touch()
    ours = changed(plan, nodes=2, workdir=str(tmp_path))
    lines = ending(ours, Exit(81, "(torchrun, 2 worlds of 2, same command)", "ctrain", Ending.REFUSED))
    assert f"ctrain run {tmp_path} ... --independent" in lines[-2]
