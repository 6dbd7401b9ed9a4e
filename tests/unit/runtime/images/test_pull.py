from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from hashlib import sha256
from pathlib import Path

import pytest

from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import ConfigError, CtrainError, DiskFullError, ImageUnusable, RegistryError, UsageError
from ctrain_runtime.images import pull as module
from ctrain_runtime.images.pull import PulledImage, ResolvedReference, check_reference, find_cached, find_resolved, pull
from samples.programs import write_program
from samples.runs import wait_for
from samples.sample_images import sif

REFERENCE = "oras://r.example:5000/team/train:1"
NO_PROCESS = 1 << 22  # above the largest number of a process (proc(5), pid_max)
# As Apptainer 1.4.5 ends when the registry is gone, and when the disk is full.
REFUSED = """\
INFO:    Converting OCI blobs to SIF format
FATAL:   While pulling image from oci registry: error fetching image to cache: failed to get checksum for X: dial tcp \
127.0.0.1:1: connect: connection refused
"""
FULL = "FATAL:   While making image from oci registry: copy: write /tmp/bundle/x: no space left on device\n"


class Pulls:
    """A cache, and an engine whose pulls copy the file `source`."""

    def __init__(self, folder: Path) -> None:
        self.cache, self.source, self.calls = folder / "cache", folder / "source", folder / "calls"
        self.source.write_bytes(sif())
        self.engine = Engine("apptainer", str(folder / "apptainer"), "1.4.5")
        self.answer(f'cp {self.source} "$3"')
        self.reported: list[str] = []

    def answer(self, script: str) -> None:
        write_program(Path(self.engine.path), f'#!/bin/bash\necho "$*" >>{self.calls}\n{script}\n')

    def report(self, what: str, _: str) -> None:
        self.reported.append(what)

    def pull(self, reference: str = REFERENCE, *, again: bool = False) -> PulledImage:
        cached = None if again else find_cached(reference, [self.cache])
        return cached or pull(reference, None, self.cache, self.engine, self.report, again=again)

    def names(self) -> list[str]:
        """What lies in the cache, without locks."""
        return sorted(path.name for path in self.cache.iterdir() if path.suffix != ".lock")


@pytest.fixture
def pulls(tmp_path: Path) -> Pulls:
    return Pulls(tmp_path)


def test_a_reference_is_pulled_once(pulls: Pulls) -> None:
    first = pulls.pull()
    assert first.path.name == f"sha256-{first.digest[7:]}.sif"
    assert first.path.read_bytes() == sif()
    pulls.answer("exit 1")  # the network is gone
    assert pulls.pull() == PulledImage(first.path, first.digest)
    assert len(pulls.calls.read_text().splitlines()) == 1
    link, image = sorted(pulls.names(), key=len)
    assert (link.startswith("r.example_5000_team_train_1-"), image) == (True, first.path.name)
    assert "--disable-cache" in pulls.calls.read_text()


def test_what_two_references_mean_is_stored_once(pulls: Pulls) -> None:
    assert pulls.pull().path == pulls.pull("docker://r.example/other").path
    assert len(pulls.names()) == 3


def test_again_follows_a_moved_tag_and_keeps_the_old_image_for_queued_jobs(pulls: Pulls) -> None:
    old = pulls.pull()
    pulls.source.write_bytes(sif(data=b"newer"))
    assert pulls.pull().path == old.path
    new = pulls.pull(again=True)
    assert (new.path.read_bytes(), old.path.read_bytes()) == (sif(data=b"newer"), sif())
    assert pulls.pull().path == new.path


@pytest.mark.parametrize(
    "reference",
    ["docker://", "docker://a b", "shub://x", "http://x/y", "docker://x\n", "oras://-x", "library://"],
)
def test_a_reference_that_engines_do_not_pull(pulls: Pulls, reference: str) -> None:
    with pytest.raises(UsageError, match="invalid image reference"):
        pulls.pull(reference)
    assert not pulls.cache.exists()


@pytest.mark.parametrize("name", ["alpine:3.8", "default/alpine", "team/nets/small:1"])
def test_a_library_has_no_default(name: str) -> None:
    missing = rf"^library://{name} does not name its library, .* Write library://HOST/ENTITY/COLLECTION/NAME:TAG; "
    with pytest.raises(UsageError, match=missing):
        check_reference(f"library://{name}")


def test_what_a_library_sends_is_what_it_announced(pulls: Pulls, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, digest = "library://l.example/team/nets/small:1", f"sha256:{sha256(sif()).hexdigest()}"
    resolved = ResolvedReference(digest, f"{digest.replace(':', '-')}.sif", reference)
    pulls.source.write_bytes(sif(data=b"other"))
    mismatch = rf"^digest mismatch for {reference}: announced {digest}, received sha256:[0-9a-f]{{64}}\. Run it again: "
    with pytest.raises(RegistryError, match=mismatch):
        pull(reference, resolved, pulls.cache, pulls.engine, pulls.report)
    assert pulls.names() == []
    pulls.source.write_bytes(sif())
    pulls.answer(f'[ -z "$APPTAINER_LIBRARY$SINGULARITY_LIBRARY" ] && cp {pulls.source} "$3"')
    for name in ("APPTAINER_LIBRARY", "SINGULARITY_LIBRARY"):
        monkeypatch.setenv(name, "https://other.example")
    assert pull(reference, resolved, pulls.cache, pulls.engine, pulls.report).digest == digest


@pytest.mark.parametrize(
    ("script", "kind", "reason"),
    [
        (
            f"printf %s '{REFUSED}' >&2; exit 255",
            RegistryError,
            r"cannot pull oras.*: While pulling .* refused\. C",
        ),
        (
            f"head -c 9 {{source}} >$3; printf %s '{FULL}' >&2; exit 255",
            DiskFullError,
            "no space left.*APPTAINER_TMPDIR",
        ),
        ("exit 3", RegistryError, "the engine wrote no reason"),
        ("printf '\\033[31mred\\007' >&2; exit 1", RegistryError, r"train:1: \[31mred\. Check"),
        ("head -c 900 {source} >$3", ImageUnusable, "truncated"),
        ("true", ImageUnusable, "cannot read"),
    ],
)
def test_a_pull_that_fails_leaves_nothing(pulls: Pulls, script: str, kind: type[CtrainError], reason: str) -> None:
    pulls.answer(script.replace("{source}", str(pulls.source)))
    with pytest.raises(kind, match=reason) as caught:
        pulls.pull()
    assert "\033" not in str(caught.value)
    assert pulls.names() == []
    pulls.answer(f'cp {pulls.source} "$3"')
    assert pulls.pull().path.is_file()


def test_what_the_engine_unpacked_goes_with_the_pull(
    pulls: Pulls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPTAINER_TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    pulls.answer('mkdir -p "$APPTAINER_TMPDIR/rootfs/etc"; chmod 500 "$APPTAINER_TMPDIR/rootfs"; exit 1')
    with pytest.raises(RegistryError):
        pulls.pull()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_directory_to_unpack_in_that_does_not_exist(
    pulls: Pulls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPTAINER_TMPDIR", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match=r"^APPTAINER_TMPDIR=.*missing is not a directory\. Create it, or unset"):
        pulls.pull()
    assert pulls.names() == []


def test_an_image_is_pulled_by_what_its_reference_means(pulls: Pulls) -> None:
    resolved = ResolvedReference(
        f"sha256:{'a' * 64}", f"oci-sha256-{'a' * 64}-x86_64.sif", "docker://r.example/x@sha256:aa"
    )
    first = pull("docker://r.example/x:1", resolved, pulls.cache, pulls.engine, pulls.report)
    assert pulls.calls.read_text().split()[-1] == resolved.reference
    assert find_resolved(resolved, [pulls.cache]) == first
    assert (pulls.cache / resolved.entry).resolve() == first.path
    assert pull("docker://r.example/x:2", resolved, pulls.cache, pulls.engine, pulls.report, again=True) == first
    assert find_cached("docker://r.example/x:2", [pulls.cache]) == first
    assert len(pulls.calls.read_text().splitlines()) == 1
    assert {what for what in pulls.reported if what.startswith("pulling")} == {"pulling docker://r.example/x:1"}


def test_a_sif_file_that_changed_after_the_question_has_its_own_name(pulls: Pulls) -> None:
    """Its registry announced another digest: no entry may claim that."""
    resolved = ResolvedReference(f"sha256:{'a' * 64}", f"sha256-{'a' * 64}.sif", REFERENCE)
    image = pull(REFERENCE, resolved, pulls.cache, pulls.engine, pulls.report)
    assert image.digest != resolved.digest
    assert find_resolved(resolved, [pulls.cache]) is None
    assert find_cached(REFERENCE, [pulls.cache]) == image


def test_a_cache_that_anybody_could_put_images_into(pulls: Pulls) -> None:
    pulls.cache.mkdir()
    pulls.cache.chmod(0o777)
    with pytest.raises(ConfigError, match=r"is world-writable. Run: chmod o-w"):
        pulls.pull()


def test_images_that_anybody_could_have_put_there_are_not_taken(pulls: Pulls) -> None:
    pulls.pull()
    pulls.cache.chmod(0o1777)
    with pytest.raises(ConfigError, match=r"is world-writable. Run: chmod o-w"):
        find_cached(REFERENCE, [pulls.cache])


def test_an_image_is_found_in_any_of_several_caches(pulls: Pulls, tmp_path: Path) -> None:
    image = pulls.pull()
    assert find_cached(REFERENCE, [tmp_path / "missing", pulls.cache]) == image
    assert find_cached(REFERENCE, [tmp_path / "missing"]) is None


def test_a_cache_where_a_file_lies(pulls: Pulls) -> None:
    pulls.cache.touch()
    with pytest.raises(CtrainError, match=r"cannot write to the image cache .*: File exists"):
        pulls.pull()


@pytest.mark.parametrize(("directory", "file"), [(0o700, 0o600), (0o770, 0o640), (0o755, 0o644)])
def test_those_who_may_read_the_cache_may_read_its_images(pulls: Pulls, directory: int, file: int) -> None:
    pulls.cache.mkdir()
    pulls.cache.chmod(directory)
    assert pulls.pull().path.stat().st_mode & 0o777 == file


@pytest.mark.parametrize("target", ["../secret.sif", "other.sif", f"sha256-{'0' * 64}.sif"])
def test_a_symlink_that_points_to_no_image_of_the_cache_is_pulled_anew(pulls: Pulls, target: str) -> None:
    pulls.cache.mkdir()
    (pulls.cache / "other.sif").write_bytes(b"x")
    pulls.pull()
    link = next(path for path in pulls.cache.iterdir() if path.is_symlink())
    link.unlink()
    link.symlink_to(target)
    pulls.pull()
    assert len(pulls.calls.read_text().splitlines()) == 2
    assert link.resolve().read_bytes() == sif()


PROCESS = """\
import sys
from pathlib import Path
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.images.pull import pull
engine = Engine("apptainer", sys.argv[1], "1.4.5")
print(pull(sys.argv[2], None, Path(sys.argv[3]), engine, lambda what, _: print(what, flush=True)).path)
"""


def test_a_registry_that_falls_silent_is_not_waited_for(
    pulls: Pulls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STALL_SECONDS", 0.5)
    monkeypatch.setattr(module, "_CHECK_SECONDS", 0.1)
    pulls.answer(f'echo $$ >{tmp_path / "pid"}; head -c 900 {pulls.source} >"$3"; exec sleep 300')
    silent = rf"cannot pull {REFERENCE}: no progress for 0\.5 s after \d.*B from r\.example:5000\. Check the network"
    with pytest.raises(RegistryError, match=silent):
        pulls.pull()
    assert pulls.names() == []
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_slow_pull_goes_on_as_long_as_files_change(tmp_path: Path) -> None:
    (tmp_path / "rootfs/etc").mkdir(parents=True)
    stall = module._Stall(REFERENCE, (tmp_path / "new", tmp_path))
    for number in range(1, 9):
        stall.check(200.0 * number)
        (tmp_path / f"rootfs/etc/{number}").write_bytes(b"x" * 4096)
    stall.check(1800.0)
    (tmp_path / "rootfs/etc/1").unlink()  # what was unpacked is removed at the end
    stall.check(2000.0)
    stall.check(2299.0)
    with pytest.raises(RegistryError, match=r"no progress for 300 s after"):
        stall.check(2330.0)


def start(pulls: Pulls) -> subprocess.Popen[str]:
    package = Path(sys.modules["ctrain_runtime"].__path__[0]).parent
    argv = [sys.executable, "-c", textwrap.dedent(PROCESS), pulls.engine.path, REFERENCE, str(pulls.cache)]
    return subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(package)}, stdout=subprocess.PIPE, text=True)


def test_processes_at_once_pull_once(pulls: Pulls, tmp_path: Path) -> None:
    pulls.answer(f'until [ -e {tmp_path / "go"} ]; do sleep 0.02; done; cp {pulls.source} "$3"')
    first = start(pulls)
    wait_for(pulls.calls)
    second = start(pulls)
    assert second.stdout
    waiting = second.stdout.readline()
    (tmp_path / "go").touch()
    outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert waiting == f"waiting for another process to pull {REFERENCE}\n"
    assert outputs[0].split()[-1] == outputs[1].split()[-1]
    assert len(pulls.calls.read_text().splitlines()) == 1


def test_a_pull_leaves_the_directories_of_others_that_run(
    pulls: Pulls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPTAINER_TMPDIR", str(tmp_path))
    pulls.answer(
        f'touch $APPTAINER_TMPDIR/up; until [ -e {tmp_path / "go"} ]; do sleep 0.02; done; cp {pulls.source} "$3"'
    )
    first = start(pulls)
    wait_for(lambda: list(tmp_path.glob("ctrain-pull-*/up")))
    pulls.answer(f'cp {pulls.source} "$3"')
    elsewhere = tmp_path / f"ctrain-pull-{NO_PROCESS}-x@other-{socket.gethostname()}"  # on a disk that hosts share
    elsewhere.mkdir()
    pulls.pull("oras://r.example/other")
    assert len(list(tmp_path.glob("ctrain-pull-*/up"))) == 1
    (tmp_path / "go").touch()
    first.communicate(timeout=60)
    assert first.returncode == 0
    assert list(tmp_path.glob("ctrain-pull-*")) == [elsewhere]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_pull_is_no_image_and_its_rest_goes_with_the_next(
    pulls: Pulls, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPTAINER_TMPDIR", str(tmp_path))
    pid = tmp_path / "pid"
    pulls.answer(f'head -c 900 {pulls.source} >"$3"; echo $$ >{pid}; exec sleep 300')
    process = start(pulls)
    wait_for(pid)
    wait_for(lambda: pid.read_text().strip())
    process.send_signal(number)
    process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert pulls.names() == []
        assert not Path(f"/proc/{pid.read_text().strip()}").exists()
    else:
        os.kill(int(pid.read_text()), signal.SIGKILL)
        assert [name for name in pulls.names() if not name.startswith(".")] == []
    pulls.answer(f'cp {pulls.source} "$3"')
    image = pulls.pull().path
    assert len(pulls.names()) == 2
    assert image.read_bytes() == sif()
    assert list(tmp_path.glob("ctrain-pull-*")) == []
