"""`ctrain replay` with the fake engine: each ingredient that differs is named, and the step at which losses part."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ctrain_runtime.store.store import LAYOUT_VERSION, STORE_MARKER
from samples.plans import a_manifest
from samples.runs import Bench, ended
from samples.sample_images import sif, write_image

PROGRAM = """\
for step in 1 2 3; do
  echo "{\\"step\\": $step, \\"loss\\": $(cat {value})$step}" >>"$CTRAIN_RUN_DIR/metrics.jsonl"
done
[ "$*" = "--seed 1" ] && [ "$COLOUR" = red ] && echo as before
exit 0
"""


def write_known_image(folder: Path, data: bytes) -> Path:
    """An image with its own digest in its manifest."""
    content, layers = sif(data=data), a_manifest().layers[:1]
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    software = {"torch": "2.13.0", "mpi": "Open MPI 4.1.4"}
    return write_image(folder, content=content, digest=digest, layers=layers, software=software)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A bench on whose toy scheduler the run `one` has completed: a job with a copy of its code, a parameter, a
    variable and data."""
    bench = Bench(tmp_path, "toy")
    bench.image = write_known_image(tmp_path, data=b"squashfs")
    job = tmp_path / "job"
    job.mkdir()
    text = f"command: [bash, train.sh]\nimage: {bench.image}\nparameters: {{seed: 1}}\nenv: {{COLOUR: red}}\n"
    (job / "job.yaml").write_text(text)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/value").write_text("1.")
    (job / "train.sh").write_text(PROGRAM.replace("{value}", str(tmp_path / "data/value")))
    code, out, error = ended(bench.run("./job", "--data", "data", "--ranks-per-node", "1"))
    assert code == 0, out + error
    return bench


def replay(bench: Bench, *arguments: str, **variables: str) -> tuple[int, list[str], str]:
    """The exit code, the lines, and what is on stderr but for the news that the image is read."""
    where = ("--site", "local", "--runs", str(bench.runs), "--name", "again")
    code, out, error = ended(bench.ctrain("replay", "one", *where, *arguments, **variables))
    news = f"ctrain: reading {bench.folder}"
    return code, out.splitlines(), "".join(line for line in error.splitlines(True) if not line.startswith(news))


def test_recorded_by_a_scheduler_replayed_on_this_machine(bench: Bench) -> None:
    shutil.rmtree(bench.folder / "job")
    (bench.folder / "job").mkdir()  # the fake engine makes no mount points
    code, out, error = replay(bench, "--strict")
    assert (code, error) == (0, ""), out
    end = out.index("site      local (requested)")
    rows = [["differs", "one", "replay"], ["site", "toy", "local"], ["partition", "toys", "-"]]
    assert [line.split() for line in out[:3]] == rows
    assert [line.split()[0] for line in out[3:end]] == ["time"]  # without a limit here
    assert "as before" in out
    assert out[-2] == "losses agree at all 3 equal steps within 1e-06 (relative)"
    assert out[-1] == f"all that differs: ctrain compare {bench.one} {bench.runs}/again"
    assert (bench.runs / "again/code/train.sh").read_bytes() == (bench.one / "code/train.sh").read_bytes()


def differing(out: list[str]) -> dict[str, list[str]]:
    """The rows of what differs, by the name, but for those of the site."""
    lines = out[1 : next(at for at, line in enumerate(out) if line.startswith("site      local ("))]
    of_site = ("site", "partition", "time limit", "unknown")
    return {line.split("  ")[0]: line.split("  ")[1:] for line in lines if not line.startswith(of_site)}


def flip(path: Path, at: int) -> None:
    """Change one bit of a file, which keeps its size and times."""
    status, content = path.stat(), bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_each_ingredient_of_which_one_bit_is_changed_is_named(bench: Bench) -> None:
    """In turn: code, data, the image, the seed, a variable."""
    names = {
        bench.one / "code/train.sh": ["code train.sh"],
        bench.folder / "data/value": ["data file value"],
        bench.image: ["image digest"],  # its manifest is as it was
    }
    for path, named in names.items():
        flip(path, -1)
        assert list(differing(replay(bench, "--dry-run")[1])) == named
        flip(path, -1)
    assert list(differing(replay(bench, "--dry-run")[1])) == []
    assert list(differing(replay(bench, "--dry-run", "--set", "seed=0")[1])) == ["command", "parameter seed"]
    out = replay(bench, "--dry-run", "--env", "COLOUR=ree", "--env", "MORE=1")[1]
    assert list(differing(out)) == ["env COLOUR", "env MORE"]


def test_another_image(bench: Bench) -> None:
    other = bench.folder / "other"
    other.mkdir()
    image = write_known_image(other, data=b"squashed")
    assert list(differing(replay(bench, "--dry-run", "--image", str(image))[1])) == ["image digest"]


def test_the_first_step_at_which_losses_part(bench: Bench) -> None:
    lines = (bench.one / "metrics.jsonl").read_text().replace("1.2}", "1.200001}")
    (bench.one / "metrics.jsonl").write_text(lines)
    code, out, error = replay(bench, "--strict", "--tolerance", "1e-7")
    line = "losses part at step 2: 1.200001 recorded, 1.2 now; not within 1e-07 (relative)"
    assert (code, out[-2], error) == (86, line, f"ctrain: {line}\n")
    shutil.rmtree(bench.runs / "again")
    code, out, error = replay(bench, "--tolerance", "1e-7")
    assert (code, out[-2], error) == (0, line, "")
    shutil.rmtree(bench.runs / "again")
    assert replay(bench)[1][-2].startswith("losses agree at all 3 equal steps")


def test_losses_that_cannot_be_compared(bench: Bench) -> None:
    (bench.one / "metrics.jsonl").unlink()
    code, out, error = replay(bench, "--strict")
    assert code == 86
    assert "losses cannot be compared" in out[-2]
    assert "losses cannot be compared" in error


def test_an_image_that_was_moved_is_looked_for_by_its_digest(bench: Bench) -> None:
    store = bench.folder / "store"
    store.mkdir()
    (store / STORE_MARKER).write_text(json.dumps({"layout": LAYOUT_VERSION}))
    for path in (bench.image, bench.image.with_suffix(".json")):
        path.rename(store / path.name)
    code, out, error = replay(bench, "--dry-run", "--store", str(store))
    assert (code, error) == (0, "")
    assert differing(out) == {}
    assert any(str(store / bench.image.name) in line for line in out)


def test_layout_of_the_run_that_this_machine_cannot_have(bench: Bench) -> None:
    plan = json.loads((bench.one / "plan.json").read_text())
    plan["plan"]["size"]["gpus_per_node"] = 4
    (bench.one / "plan.json").write_text(json.dumps(plan))
    code, _, error = replay(bench)
    assert (code, "4 requested. Largest that fits: --gpus-per-node 0" in error) == (74, True)
    assert list(differing(replay(bench, "--dry-run", "--gpus-per-node", "0")[1])) == ["GPUs per node"]


def test_the_code_of_the_program_passes_through(bench: Bench) -> None:
    (bench.one / "code/train.sh").write_text("exit 7\n")
    assert replay(bench, "--strict")[0] == 7


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (("--tolerance", "nan"), 64, "--tolerance must be a number of at least 0"),
        (("--set", "sed=2"), 64, "the run has no parameter 'sed'"),
        (("--data", "elsewhere"), 71, "elsewhere"),
        (("--image", "nowhere"), 68, "nowhere"),
        (("--env", "SECRET"), 64, "--env SECRET: not set in this shell"),
    ],
)
def test_what_is_wrong_or_missing(bench: Bench, arguments: tuple[str, ...], code: int, problem: str) -> None:
    ended_with, out, error = replay(bench, *arguments)
    assert ended_with == code, (out, error)
    assert problem in error
    assert error.count("\n") <= 2


def test_without_the_copy_of_its_code_or_its_image(bench: Bench) -> None:
    (bench.one / "code").rename(bench.folder / "moved")
    assert replay(bench)[0] == 71
    (bench.folder / "moved").rename(bench.one / "code")
    bench.image.unlink()
    assert replay(bench)[0] == 68


def test_a_run_of_an_older_ctrain_has_no_manifest(bench: Bench) -> None:
    (bench.one / "manifest.json").unlink()
    code, out, error = replay(bench, "--dry-run")
    assert (code, error) == (0, "")
    assert any(line.startswith("unknown: code, data and ctrain as they were: ") for line in out)


def test_a_secret_is_taken_from_this_shell_and_said_to_be_unknown(bench: Bench) -> None:
    plan = json.loads((bench.one / "plan.json").read_text())
    plan["plan"]["environment"]["variables"]["MY_TOKEN"] = "***"
    plan["plan"]["environment"]["origins"]["MY_TOKEN"] = "option"
    (bench.one / "plan.json").write_text(json.dumps(plan))
    code, out, error = replay(bench, "--dry-run")
    assert (code, "--env MY_TOKEN: not set in this shell" in error) == (64, True)
    secret = {"MY_TOKEN": "abc"}
    code, out, error = replay(bench, "--dry-run", **secret)
    assert (code, error) == (0, "")
    assert "unknown: env MY_TOKEN: its value is not recorded" in out
    assert differing([line for line in out if "unknown" not in line]) == {}


def test_a_command_whose_code_is_not_copied(bench: Bench) -> None:
    """Outside of git nobody knows what its code was; within, commit and changes by file."""
    words = ("run", "--site", "local", "--image", str(bench.image), "--runs", str(bench.runs))
    folder = bench.folder / "job"
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for arguments in (("add", "-A"), (*who, "commit", "-qm", "one")):
        subprocess.run(["git", "-C", str(folder), *arguments], check=True)
    assert ended(bench.ctrain(*words, "--name", "outside", "--", "bash", "job/train.sh"))[0] == 0
    assert ended(bench.ctrain(*words, "--name", "live", "--live", "./job"))[0] == 0
    where = ("--site", "local", "--runs", str(bench.runs), "--dry-run")
    out = ended(bench.ctrain("replay", "outside", *where))[1].splitlines()
    assert out[:2] == [
        "nothing differs from run outside",
        f"unknown: code: {bench.folder} was not copied, and is in no git repository",
    ]
    assert ended(bench.ctrain("replay", "live", *where))[1].splitlines()[0] == "nothing differs from run live"
    (folder / "train.sh").write_text("exit 0\n")
    out = ended(bench.ctrain("replay", "live", *where))[1].splitlines()
    assert list(differing(out)) == ["uncommitted train.sh"]


@pytest.mark.parametrize(
    "options",
    [
        ("--nodes", "2", "--ranks-per-node", "2", "--mount", "{folder}:/mine:ro", "--mount", "{folder}/data"),
        ("--independent", "--ranks-per-node", "2", "--env", "LINES=a\nb", "--env", "HOME_OF=$HOME"),
        (
            "--launcher",
            "torchrun",
            "--ranks-per-node",
            "2",
            "--restarts",
            "1",
            "--hang-after",
            "90s",
            "--on-hang",
            "stop",
        ),
        ("--launcher", "node", "--preflight", "off"),
    ],
)
def test_the_plan_of_a_replay_is_that_of_the_run(bench: Bench, options: tuple[str, ...]) -> None:
    options = tuple(text.format(folder=bench.folder) for text in options)
    where = ("--site", "local", "--runs", str(bench.runs))
    words = ("--image", str(bench.image), *options, "--name", "same", "./job", "--", "more words")
    first = ended(bench.ctrain("run", *where, *words))
    again = ended(bench.ctrain("replay", "same", *where, "--name", "again"))
    assert again[0] == first[0], again
    assert again[1].splitlines()[0] == "nothing differs from run same", again[1]
    one, other = (json.loads((bench.runs / name / "plan.json").read_text())["plan"] for name in ("same", "again"))
    assert other["mounts"]["code"].pop("source") == str(bench.runs / "same/code")
    assert one["mounts"]["code"].pop("source") == ""
    for each in (one, other):
        del each["environment"]["origins"]
    assert json.loads(json.dumps(other).replace("again", "same")) == one
