"""Reports of runs whose directories hold what scripts and programs write, in order and not."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from ctrain_runtime.base import run_files
from ctrain_runtime.plan.model import Expectation
from ctrain_runtime.report import comparison, facts, page, text
from ctrain_runtime.report.subject import Subject, examine
from ctrain_runtime.run.measured import Measured
from ctrain_runtime.run.record import Restart
from ctrain_runtime.store.sif import SBOM
from samples.reports import HOSTILE, SUBMITTED, a_subject, lines
from samples.runs import StandIn, submitted, write_events
from samples.sample_images import sbom, sif, write_image


class _Reader(HTMLParser):
    """The elements and the visible text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(*subjects: Subject) -> _Reader:
    reader = _Reader()
    reader.feed(page.page(subjects))
    return reader


def test_a_good_run(tmp_path: Path) -> None:
    subject = a_subject(tmp_path / "one", 0, 0, metrics=lines(700, 710, 720, 690), nodes=1)
    seen = parsed(subject)
    for part in ("one", "completed", "images per second", "queue", "training", "sha256:9f2c41d0a7e3", "job 7"):
        assert part in seen.text
    assert "Why it ended" not in seen.text
    assert seen.tags.count("polyline") == 2
    assert "script" not in seen.tags


def test_the_timeline_is_from_the_submission_to_the_end(tmp_path: Path) -> None:
    subject = a_subject(tmp_path / "one", 0, 0, metrics=lines(700, 710), nodes=1)
    assert [(phase.name, phase.seconds) for phase in subject.phases] == [
        ("queue", 9.0),
        ("start of the ranks", 1.0),
        ("containers, imports, first step", 3.0),
        ("training", 14.0),
        ("end", 3.0),
    ]


def test_the_timeline_names_what_its_events_tell(tmp_path: Path) -> None:
    run = a_subject(tmp_path / "one", 0, 0, metrics=lines(700, time=108.0), nodes=1).run
    for stage, what, at in (("stage-in", "ended", 99.3), ("preflight", "passed", 99.9)):
        write_events(run.path, {"stage": stage, "what": what, "time": at})
    write_events(run.path, {"stage": "world", "what": "joined", "time": 102.0, "ranks": [0, 1]}, node=0)
    names = [phase.name for phase in examine(run, run.record, "").phases]
    assert names == [
        *("queue", "copies to the nodes", "preflight", "start of the ranks", "containers, imports", "first step"),
        *("training", "end"),
    ]


def test_a_failed_run_shows_why_and_nothing_of_it_is_code(tmp_path: Path) -> None:
    subject = a_subject(tmp_path / "one", 0, 1, metrics=lines(1), log=f"No module named 'x'\n{HOSTILE}\n", nodes=1)
    (subject.run.path / run_files.STACKS).mkdir(exist_ok=True)
    (subject.run.path / run_files.STACKS / "rank1.txt").write_text(f"in step\n{HOSTILE}")
    seen = parsed(examine(subject.run, subject.record, HOSTILE))
    assert {"script", "img"}.isdisjoint(seen.tags)
    assert not [name for name in seen.attributes if name.startswith("on")]
    assert "rank 1 on gpu00 failed first: exit code 1" in seen.text
    assert "<script>hacked=1</script>" in seen.text
    assert "in step" in seen.text
    assert "\x1b" not in page.page([subject]) + text.text([subject])


def test_the_last_lines_are_those_of_the_rank_that_failed_first(tmp_path: Path) -> None:
    subject = a_subject(tmp_path / "one", 0, 3, log="torch.OutOfMemoryError: CUDA out of memory\n", nodes=1)
    assert subject.failure is not None
    assert subject.failure.log == "logs/rank1.log"
    assert subject.failure.lines == ("torch.OutOfMemoryError: CUDA out of memory",)
    assert "the GPU's memory is full" in subject.failure.advice
    assert "advice: the GPU's memory is full" in text.text([subject])


def test_a_run_with_nothing_but_its_plan(tmp_path: Path) -> None:
    """As one that waits, or whose files are gone."""
    run = submitted(tmp_path / "one", StandIn())
    for name in ("logs", "nodes"):
        for path in (run.path / name).iterdir():
            path.unlink()
    (run.path / run_files.EVENTS).unlink()
    subject = examine(run, run.record, "waiting")
    assert "has no metrics" in parsed(subject).text
    assert subject.phases == ()
    assert "waiting" in text.text([subject])


def test_hangs_are_listed_and_equal_stacks_shown_once(tmp_path: Path) -> None:
    subject = a_subject(tmp_path / "one", 0, 0, metrics=lines(1, 2), nodes=1)
    write_events(subject.run.path, {"stage": "watch", "what": "hung", "message": "no sign of life", "time": 110.0})
    (subject.run.path / run_files.STACKS).mkdir(exist_ok=True)
    for rank in range(12):
        name = subject.run.path / run_files.STACKS / f"rank{rank}.txt"
        name.write_text("in all_reduce\n" if rank else f"in read\n{HOSTILE}")
    seen = examine(subject.run, subject.record, "")
    named = "rank1, rank2, rank3, rank4, rank5, rank6, rank7, rank8 and 3 more"
    assert [names for names, _ in seen.stacks] == ["rank0", named]
    assert "hung: no sign of life" in parsed(seen).text
    assert parsed(seen).text.count("in all_reduce") == 1
    assert "hung: no sign of life" in text.text([seen])


def test_profiles_and_one_that_is_missing(tmp_path: Path) -> None:
    subject = a_subject(tmp_path / "one", 0, metrics=lines(1, 2), nodes=1, profile="torch")
    assert "one has no profile" in parsed(subject).text
    (subject.run.path / run_files.PROFILES).mkdir()
    (subject.run.path / run_files.PROFILES / "rank0.txt").write_text(f"aten::addmm 80%\n{HOSTILE}")
    (subject.run.path / run_files.PROFILES / "rank0.trace.json.gz").write_bytes(b"\x1f\x8b")
    seen = examine(subject.run, subject.record, "")
    assert "aten::addmm 80%" in parsed(seen).text
    assert "one has no profile" not in parsed(seen).text
    assert "profile of rank0" in text.text([seen])


def test_of_a_job_that_was_queued_again_the_start_is_that_of_the_first(tmp_path: Path) -> None:
    subject = a_subject(tmp_path / "one", 0, metrics=lines(700, 710), nodes=1)
    write_events(subject.run.path, {"stage": "before", "what": "started", "time": 900.0, "job": "8"})
    write_events(subject.run.path, {"stage": "after", "what": "ended", "time": 990.0, "code": 0})
    phases = examine(subject.run, subject.record, "").phases
    assert (phases[0].name, phases[0].seconds) == ("queue", 9.0)
    assert phases[-1].end == 990.0


def test_restarts_are_listed(tmp_path: Path) -> None:
    subject = a_subject(tmp_path / "one", 0, 0, metrics=lines(1, 2), nodes=1)
    again = Restart(1, SUBMITTED, "rank 1 on gpu00 failed: exit code 3", 3, "the last checkpoint")
    changed = dataclasses.replace(subject, record=dataclasses.replace(subject.record, restarts=(again,)))
    assert "rank 1 on gpu00 failed: exit code 3; from the last checkpoint" in parsed(changed).text


def test_values_that_are_not_finite_are_named(tmp_path: Path) -> None:
    broken = '{"step": 1, "loss": 2.0}\n{"step": 2, "loss": NaN}\n'
    assert "1 of 2 values are not finite, from step 2 on" in parsed(a_subject(tmp_path / "one", 0, metrics=broken)).text


def test_runs_of_different_size_are_compared_with_the_ideal(tmp_path: Path) -> None:
    small = a_subject(tmp_path / "small", 0, metrics=lines(100, 100, 100), nodes=1)
    large = a_subject(tmp_path / "large", 0, metrics=lines(150, 150, 150), nodes=2)
    (first, second) = comparison.scaling([large, small])
    assert (first.ranks, first.efficiency) == (8, 1.0)
    assert (second.ranks, second.speedup, second.efficiency) == (16, 1.5, 0.75)
    assert {row[0] for row in comparison.differing([small, large])} == {"nodes", "ranks"}
    assert "75% of ideal" in parsed(small, large).text
    assert "75% of ideal" in text.compare([small, large])


def test_runs_that_differ_in_more_have_no_efficiency(tmp_path: Path) -> None:
    one = a_subject(tmp_path / "small", 0, metrics=lines(100), nodes=1)
    other = a_subject(tmp_path / "large", 0, metrics=lines(150), nodes=2, env={"LR": "3"})
    assert comparison.scaling([one, other]) == []
    assert ("env LR", "-", "3") in comparison.differing([one, other])


def test_files_of_the_code_that_differ_are_named(tmp_path: Path) -> None:
    runs = []
    for name, text_of in (("one", "lr = 1"), ("two", "lr = 2")):
        runs.append(a_subject(tmp_path / name, 0, metrics=lines(100), nodes=1))
        code = runs[-1].run.path / run_files.CODE
        (code / "lib").mkdir(parents=True, exist_ok=True)
        (code / "lib/train.py").write_text(text_of)
        (code / "same.py").write_text("")
        (code / "__pycache__").mkdir()
        (code / "__pycache__/train.pyc").write_text(text_of)
        (code / "gone").symlink_to("/nowhere")
    assert [row[0] for row in comparison.differing(runs)] == ["code lib/train.py"]


def test_packages_that_differ_are_those_of_images_and_layers(tmp_path: Path) -> None:
    runs = []
    for name, torch in (("one", "2.6.0"), ("two", "2.7.0"), ("gone", "")):
        folder = tmp_path / f"image-{name}"
        folder.mkdir()
        path = (
            write_image(folder, content=sif(more=[(SBOM, sbom(torch=torch, numpy="2.0"))]))
            if torch
            else folder / "gone.sif"
        )
        subject = a_subject(tmp_path / name, 0, nodes=1)
        image = dataclasses.replace(subject.run.plan.image, path=str(path), digest=f"sha256:{name}")
        plan = dataclasses.replace(subject.run.plan, image=image)
        runs.append(dataclasses.replace(subject, run=dataclasses.replace(subject.run, plan=plan)))
    assert comparison.packages(runs) == ([("torch", "2.6.0", "2.7.0", "?")], ["gone"])
    assert "packages unknown, since the image is gone or has no list of them: gone" in parsed(*runs).text
    assert comparison.packages([runs[0], runs[0]]) == ([], [])


def test_many_runs_have_a_row_each(tmp_path: Path) -> None:
    runs = [
        a_subject(tmp_path / f"r{n}", 0, metrics=lines(*[n + 1] * 200), env={"LR": str(n)}, nodes=1) for n in range(6)
    ]
    seen = parsed(*runs)
    assert seen.tags.count("polyline") == 2 * 6
    told = text.compare(runs)
    assert told.splitlines()[0].split()[:2] == ["run", "state"]
    assert [line.split()[-1] for line in told.split("\n\n")[1].splitlines()] == ["LR", *"012345"]


def sweep(folder: Path, *rates: str) -> list[Subject]:
    """Runs that differ in their parameter lr."""
    subjects = []
    for number, lr in enumerate(rates, 1):
        subject = a_subject(folder / f"s-{number}", int(number == 2), metrics=lines(700, 710), nodes=1)
        program = dataclasses.replace(subject.run.plan.program, parameters={"lr": lr, "seed": "1"})
        plan = dataclasses.replace(subject.run.plan, program=program)
        subjects.append(dataclasses.replace(subject, run=dataclasses.replace(subject.run, plan=plan)))
    return subjects


def test_runs_of_a_sweep_are_called_by_their_parameters_and_folded(tmp_path: Path) -> None:
    subjects = sweep(tmp_path, "0.1", "0.2", "0.3", "0.4", "0.5")
    assert facts.labels(subjects)[1] == "s-2: lr 0.2"
    assert facts.results(subjects)[0] == ("lr", "0.1", "0.2", "0.3", "0.4", "0.5")
    seen = parsed(*subjects)
    assert seen.text.count("s-2: lr 0.2") == 3  # in two legends, and on the line that opens
    assert "s-2: lr 0.2 failed" in seen.text
    assert len(page.page(subjects).split('<details class="run">')) == 6
    assert facts.labels(subjects[:1]) == ["s-1"]


def test_runs_that_differ_in_nothing_have_no_table_of_settings(tmp_path: Path) -> None:
    assert "Settings that differ" not in parsed(*sweep(tmp_path, *["0.1"] * 5)).text
    assert "no setting differs" in text.compare(sweep(tmp_path / "again", *["0.1"] * 2))


def test_curves_of_several_runs_are_over_each_other(tmp_path: Path) -> None:
    runs = [a_subject(tmp_path / name, 0, metrics=lines(1, 2), nodes=1) for name in ("one", "other")]
    seen = parsed(*runs)
    assert seen.tags.count("figcaption") == 2 + 2  # curves, and a timeline for each
    assert seen.text.count("2 runs compared") == 2  # its title, and above the curves


def test_what_was_estimated_stands_beside_what_was_measured(tmp_path: Path) -> None:
    expected = Expectation("A100", 10, {"weights": 6 * 10**9, "activations": 10**9}, None, 8000, 100, 0.5)
    subject = a_subject(tmp_path / "one", 0, metrics=lines(700, 710), nodes=1)
    for measured, time, rate, memory in (
        (Measured(memory=8 * 10**9, tokens_per_second=20_000.0), "400 ms", "20,000", "8.0 GB"),
        (None, "-", "-", "-"),
    ):
        record = dataclasses.replace(subject.record, estimate=expected, measured=measured)
        shown = dataclasses.replace(subject, record=record)
        rows = [
            ("time per step", "500 ms", time),
            ("tokens/s", "16,000", rate),
            ("memory per rank", "7.0 GB", memory),
        ]
        assert facts.expectations(shown) == rows
        assert "Estimated and measured" in parsed(shown).text
        assert [tuple(line.split()[-2:]) for line in text.text([shown]).splitlines()[-2:-1]] == [("16,000", rate)]
    without_gpu = dataclasses.replace(expected, step_seconds=None)
    shown = dataclasses.replace(subject, record=dataclasses.replace(subject.record, estimate=without_gpu))
    assert [row[1:] for row in facts.expectations(shown)] == [("-", "-"), ("-", "-"), ("7.0 GB", "-")]
    assert "Estimated and measured" not in parsed(subject).text


def test_facts_have_units() -> None:
    assert facts.format_value("host_memory", 2e9) == "2.0 GB"
    assert facts.format_value("tokens_per_second", 12345.6) == "12,346/s"
    assert facts.format_value("seconds", 0.0123) == "12.3 ms"
    assert facts.format_value("val_accuracy", 0.91234) == "0.912"
    assert facts.spread([(1.0, 1.0), (1.0, 2.0), (1.5, 9.0)]).endswith("slowest rank 2: 1.50 s, 50% over the median")
