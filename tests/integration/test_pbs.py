"""Ranks on hosts of the stand-in of PBS: in a preflight, and as Hydra starts and ends those of MPI."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from ctrain_runtime.store.manifest import checksum
from samples.pbs_hosts import TRAIN, hosts_of_pbs, logs, on_pbs
from samples.runs import ended, wait_for

FAILING = """\
import os
from mpi4py import MPI

rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
print("WORLD", rank, size, flush=True)
MPI.COMM_WORLD.Barrier()
if rank == 3:
    os._exit(9)
MPI.COMM_WORLD.Barrier()
"""


def test_a_strict_preflight_on_a_node_of_pbs(pytorch_cpu: Path, tmp_path: Path) -> None:
    """On several, it fails for good reason: the stand-in's are one machine (test_back_ends.py)."""
    with hosts_of_pbs(tmp_path / "pbs") as bench:
        (bench.folder / "train.py").write_text(TRAIN)
        options = ("--nodes", "1", "--ranks-per-node", "2", "--preflight", "strict")
        code, text = on_pbs(bench, str(pytorch_cpu), "env", *options)
        assert code == 0, text
        ranks, measured = logs(bench.one, "LOSS"), bench.record()["preflight"]
        events = [json.loads(line) for line in (bench.one / "events.jsonl").read_text().splitlines()]
    assert [words[1:3] for words in ranks] == [["0", "2"], ["1", "2"]]
    assert [event["what"] for event in events if event["stage"] == "preflight"] == ["started", "passed"]
    assert len(measured) == 1 and measured[0].startswith("gloo: all-reduce of ")


SAVING = """\
import os, signal, sys, time

def save(number, frame):
    print("SIGNAL", signal.Signals(number).name, flush=True)
    import sqlite3, xml.dom.minidom  # from the image
    print("SAVED", flush=True)
    sys.exit()

signal.signal(signal.SIGTERM, save)
open(os.environ["CTRAIN_RUN_DIR"] + "/up" + os.environ["RANK"], "w").close()
while True:
    time.sleep(0.1)
"""


def test_a_deleted_job_saves_on_all_hosts_and_leaves_nothing(pytorch_cpu: Path, tmp_path: Path) -> None:
    """PBS kills the processes that serve the image on the first host, and signals none on the others."""
    with hosts_of_pbs(tmp_path / "pbs") as bench:
        (bench.folder / "train.py").write_text(SAVING)
        where = ("--site", bench.site, "--runs", str(bench.runs), "--name", "one", "--image", str(pytorch_cpu))
        size = ("--nodes", "2", "--ranks-per-node", "2", "--gpus-per-node", "0", "--preflight", "off")
        run = bench.ctrain("run", *where, *size, "--launcher", "env", "--", "python", "train.py")
        wait_for(lambda: len(list(bench.one.glob("up*"))) == 4)
        (bench.folder / "pbs/1/delete").write_text("operator@login01")
        code, out, error = ended(run)
        assert code == 143, out + error
        assert not bench.orphans()
        assert [logs(bench.one, word) for word in ("SIGNAL", "SAVED")] == [[["SIGNAL", "SIGTERM"]] * 4, [["SAVED"]] * 4]


def test_an_open_mpi_under_hydra_is_refused_before_it_waits(
    pytorch_cpu: Path, foreign_image: Path, tmp_path: Path
) -> None:
    """Hydra speaks PMI, which Open MPI lacks: each rank would train alone. One host has the mpirun of the image."""
    with hosts_of_pbs(tmp_path / "pbs", hydra=foreign_image) as bench:
        (bench.folder / "train.py").write_text(TRAIN)
        code, text = on_pbs(bench, str(pytorch_cpu), "mpi", "--nodes", "2", "--ranks-per-node", "2")
        assert code == 72, text
        assert "Open MPI 4.1.4 of the image" in text and "--launcher gloo" in text
        assert not bench.one.exists()


def test_an_mpi_that_nobody_knew_is_refused_under_hydra_before_it_trains(
    pytorch_cpu: Path, foreign_image: Path, tmp_path: Path
) -> None:
    """The image's manifest does not name its Open MPI; the ranks of the preflight do."""
    manifest = json.loads(pytorch_cpu.with_suffix(".json").read_text())
    del manifest["software"]["mpi"], manifest["checksum"]
    image = tmp_path / pytorch_cpu.name
    image.hardlink_to(pytorch_cpu)
    image.with_suffix(".json").write_text(json.dumps({**manifest, "checksum": checksum(manifest)}))
    with hosts_of_pbs(tmp_path / "pbs", hydra=foreign_image) as bench:
        (bench.folder / "train.py").write_text(TRAIN)
        code, text = on_pbs(bench, str(image), "mpi", "--nodes", "1", "--ranks-per-node", "2")
        assert code == 80, text
        seen = "MPI in the image sees 1 ranks, but 2 were started"
        assert f"{seen}. Pass --launcher gloo for Horovod, or env if the program needs no MPI\n" in text
        assert not list(bench.one.glob("logs/rank*.log")), "the program must not have run"


def test_a_rank_that_fails_under_hydra_ends_the_others_and_leaves_nothing(foreign_image: Path, tmp_path: Path) -> None:
    """Hydra kills the others with SIGKILL, and the engine's processes with them would stay: pbs/hydra.py."""
    with hosts_of_pbs(tmp_path / "pbs", hydra=foreign_image) as bench:
        (bench.folder / "train.py").write_text(FAILING)
        size = ("--nodes", "2", "--ranks-per-node", "2", "--preflight", "off")
        code, text = on_pbs(bench, str(foreign_image), "mpi", *size)
        assert (code, bench.record()["exit"]["code"]) == (9, 9), text
        assert "rank 3 on " in text and " failed first: exit code 9\n" in text
        assert logs(bench.one, "WORLD") == [["WORLD", str(rank), "4"] for rank in range(4)]
        assert not bench.orphans()
    wait_for(lambda: not users(foreign_image))


def users(image: Path) -> set[str]:
    """The processes that have an image open."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if image in [link.readlink() for link in process.joinpath("fd").iterdir()]:
                found.add(process.name)
    return found
