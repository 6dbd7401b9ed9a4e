"""Images for runs that are not in a store: files, sandboxes, references."""

from __future__ import annotations

import dataclasses
from hashlib import sha256
from pathlib import Path

import pytest

from ctrain_runtime.errors import (
    CtrainError,
    ImageUnusable,
    RegistryError,
)
from ctrain_runtime.images import remote
from ctrain_runtime.images.pull import ResolvedReference
from ctrain_runtime.registry.http_client import Unreachable
from ctrain_runtime.run.prepare import prepare
from ctrain_runtime.store.manifest import Requires
from samples import programs as fakes
from samples.background_calls import wait_for_calls
from samples.run_requests import GPU, asked, make_machine, plan_of
from samples.sample_images import sif, write_image


@pytest.fixture(autouse=True)
def machine(programs: Path, tmp_path: Path) -> Path:
    return make_machine(programs, tmp_path)


ENGINE = """\
#!/bin/bash
echo "$*" >>{calls}
case $* in
  --version) echo apptainer version 1.4.5 ;;
  *pull*) /bin/cp {source} "$3" ;;
  *inspect*) echo '{{"data": {{"attributes": {{"labels": {{}}}}}}}}' ;;
  *exec*) echo 'glibc 2.36'; echo '{{"python": "3.11.2", "cuda": "12.6"}}' ;;
  *) exit 255 ;;
esac
"""
REFERENCE = "docker://r.example/team/train:1"


class FakeRegistry:
    """What references mean; it cannot be reached at first."""

    def __init__(self) -> None:
        self.resolved: dict[str, ResolvedReference] = {}
        self.error: CtrainError = Unreachable("r.example cannot be reached: gone")
        self.asked = 0

    def resolve(self, reference: str) -> ResolvedReference:
        self.asked += 1
        if reference not in self.resolved:
            raise self.error
        return self.resolved[reference]

    def push(self, reference: str, letter: str) -> None:
        """Let `reference` mean the image whose digest is made of this letter."""
        digest = f"sha256:{letter * 64}"
        name = f"docker://r.example/team/train@{digest}"
        self.resolved[reference] = ResolvedReference(digest, f"oci-sha256-{letter * 64}-x.sif", name)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> FakeRegistry:
    fake = FakeRegistry()
    monkeypatch.setattr(remote, "resolve", fake.resolve)
    return fake


@pytest.fixture
def foreign(machine: Path, programs: Path, registry: FakeRegistry) -> Path:
    """The path of an image that ctrain did not build; references are pulled as it."""
    assert registry
    path = machine / "foreign.sif"
    path.write_bytes(sif())
    fakes.write_program(programs / "apptainer", ENGINE.format(calls=machine / "engine", source=path))
    return path


def test_an_image_that_ctrain_did_not_build(foreign: Path) -> None:
    prepared = prepare(asked(image="./foreign.sif", options={"nodes": 2}))
    planned = prepared.launch.plan.image
    assert (planned.name, planned.version, planned.marker, planned.cuda) == ("foreign.sif", "", "", True)
    assert (planned.path, planned.digest) == (str(foreign), f"sha256:{sha256(sif()).hexdigest()}")
    contents = "contents cuda 12.6, glibc 2.36, python 3.11.2"
    assert prepared.notes == (
        f"foreign.sif is untested: ctrain did not build it; {contents}",
        "not compared with partition gpu: the driver, the image's GPU code",
    )


def test_an_adopted_image_is_known_by_its_manifest(foreign: Path) -> None:
    software = {"cuda": "12.6", "glibc": "2.36"}
    facts = {"name": "env", "tag": "1.0", "stack": "adopted", "release": 1, "layers": (), "tests": ()}
    path = write_image(foreign.parent / "store", software=software, requires=Requires(), **facts)
    prepared = prepare(asked(image="env", options={"nodes": 2}))
    planned = prepared.launch.plan.image
    assert (planned.name, planned.version, planned.path, planned.cuda) == ("env", "1.0-adopted-r1", str(path), True)
    assert prepared.notes == (
        "env:1.0-adopted-r1 is untested: it was adopted, ctrain did not build it",
        "not compared with partition gpu: the driver, the image's GPU code",
    )
    assert "exec" not in (foreign.parent / "engine").read_text(), "nothing of it was run"
    path.write_bytes(sif(data=b"longer than it was"))
    with pytest.raises(ImageUnusable, match="size mismatch"):
        prepare(asked(image="env"))


def test_an_image_that_does_not_fit_the_nodes_names_one_that_does(machine: Path, programs: Path) -> None:
    requires = Requires(arch=("7.5", "8.0"))
    write_image(machine / "store", tag="25.04", release=1, requires=requires, published="2026-11-20T01:02:03Z")
    fakes.slurm(programs, dataclasses.replace(GPU, gpu_type="v100"))
    with pytest.raises(ImageUnusable) as caught:
        prepare(asked(image="pytorch:25.04-hd-r1"))
    assert caught.value.message == (
        "image pytorch 25.04-hd-r1 does not fit: GPU V100 (compute capability 7.0)"
        " is older than the image's GPU code (7.5 8.0)"
    )
    assert caught.value.hint == "Nearest image that fits: --image pytorch:24.12-hd-r3"
    assert plan_of(image="pytorch:25.04-hd-r1", options={"gpus_per_node": 0}).size.gpus_per_node == 0


def test_the_driver_of_a_partition_is_the_sites_word(foreign: Path) -> None:
    Path("old.yaml").write_text(
        "name: old\nextends: generic-slurm\npartitions: {gpu: {nodes: 4, cpus: 16, driver: 470.57.02}}\n"
    )
    problem = "CUDA 12.6 needs driver 525 or newer, partition gpu has 470.57.02"
    with pytest.raises(ImageUnusable, match=f"{problem}, and the image has no libraries for forward compatibility"):
        prepare(asked("./old.yaml", image=str(foreign)))
    prepared = prepare(asked("./old.yaml", image="pytorch"))
    unlisted = "whether it runs by forward compatibility is unknown, no list names that driver"
    note = f"CUDA 12.6 needs driver 525, partition gpu has 470.57.02: {unlisted}"
    assert prepared.notes == (note,)
    assert prepared.launch.plan.image.native_driver == 525


def test_a_sandbox_is_not_staged(foreign: Path) -> None:
    (foreign.parent / "box/.singularity.d").mkdir(parents=True)
    Path("staging.yaml").write_text("name: staging\nextends: generic-slurm\nstaging: /local\n")
    plan = plan_of("./staging.yaml", image="./box")
    assert (plan.image.path, plan.image.digest, plan.staging.directory) == (str(foreign.parent / "box"), "", "")
    assert plan_of("./staging.yaml", image="./foreign.sif").staging.directory == "/local"


def test_a_reference_is_pulled_into_the_cache_of_the_site_or_the_user(foreign: Path) -> None:
    reported: list[str] = []
    request = asked(image=REFERENCE, report=lambda what, _: reported.append(what))
    plan = prepare(request).launch.plan
    digest = sha256(sif()).hexdigest()
    assert plan.image.path == str(foreign.parent / f"cache/ctrain/images/sha256-{digest}.sif")
    assert (plan.image.name, plan.image.digest) == (REFERENCE, f"sha256:{digest}")
    assert f"pulling {REFERENCE}" in reported
    notes = prepare(request).notes
    unknown = f"{REFERENCE} was pulled before; whether it has moved is unknown: r.example cannot be reached: gone"
    assert unknown in notes
    foreign.write_bytes(sif(data=b"newer"))
    assert prepare(asked(image=REFERENCE)).launch.plan.image.digest == f"sha256:{digest}"
    again = prepare(asked(image=REFERENCE, pull=True)).launch.plan.image.digest
    assert again == f"sha256:{sha256(foreign.read_bytes()).hexdigest()}"
    other, shared = f"{REFERENCE}-other", foreign.parent / "shared"
    Path("shared.yaml").write_text(f"name: shared\nextends: generic-slurm\nimage_cache: {shared}\n")
    assert plan_of("./shared.yaml", image=REFERENCE).image.digest == again, "the user's own is found first"
    assert plan_of("./shared.yaml", image=other).image.path.startswith(f"{foreign.parent}/cache/"), "it does not exist"
    shared.mkdir()
    other = f"{REFERENCE}-third"
    assert plan_of("./shared.yaml", image=other).image.path.startswith(f"{shared}/sha256-")
    assert plan_of("./shared.yaml", image=other).image.path.startswith(f"{shared}/sha256-")


def pulls(foreign: Path) -> list[str]:
    """What the engine pulled, in order."""
    calls = (foreign.parent / "engine").read_text().splitlines()
    return [line.split()[-1] for line in calls if line.startswith("pull ")]


def test_a_moved_tag_is_noticed_and_followed_when_asked_to(foreign: Path, registry: FakeRegistry) -> None:
    registry.push(REFERENCE, "a")
    first = prepare(asked(image=REFERENCE))
    assert prepare(asked(image=REFERENCE)).notes == first.notes
    foreign.write_bytes(sif(data=b"newer"))
    registry.push(REFERENCE, "b")
    still = prepare(asked(image=REFERENCE))
    assert f"{REFERENCE} has moved since it was pulled; --pull pulls what it means now" in still.notes
    assert still.launch.plan.image.digest == first.launch.plan.image.digest
    moved = plan_of(image=REFERENCE, pull=True).image.digest
    assert moved != first.launch.plan.image.digest
    assert pulls(foreign) == [f"docker://r.example/team/train@sha256:{letter * 64}" for letter in "ab"]
    assert plan_of(image=REFERENCE, pull=True).image.digest == moved
    assert len(pulls(foreign)) == 2, "it has not moved again"
    assert "has moved" not in str(prepare(asked(image=REFERENCE)).notes)


def test_one_image_of_two_names_is_pulled_once(foreign: Path, registry: FakeRegistry) -> None:
    other = f"{REFERENCE}-other"
    for reference in (REFERENCE, other):
        registry.push(reference, "a")
    first, second = (plan_of(image=reference).image for reference in (REFERENCE, other))
    assert (first.path, first.name, second.name) == (second.path, REFERENCE, other)
    assert len(pulls(foreign)) == 1
    registry.resolved.clear()
    assert plan_of(image=other).image.path == first.path, "both names are known without the registry"


def test_a_reference_by_digest_is_asked_once(foreign: Path, registry: FakeRegistry) -> None:
    reference = f"docker://r.example/team/train@sha256:{'a' * 64}"
    registry.push(reference, "a")
    for _ in range(2):
        assert plan_of(image=reference).image.name == reference
    assert (registry.asked, len(pulls(foreign))) == (1, 1)


def test_an_image_of_a_library_is_pulled_only_if_its_digest_is_known(foreign: Path, registry: FakeRegistry) -> None:
    digest = sha256(sif()).hexdigest()
    reference = f"library://l.example/team/nets/small:sha256.{digest}"
    problem = rf"^cannot pull {reference}: r.example cannot be reached: gone\. Check the host, the network"
    with pytest.raises(RegistryError, match=problem):
        prepare(asked(image=reference))
    assert not (foreign.parent / "engine").exists() or not pulls(foreign)
    assert "would be pulled" in str(prepare(asked(image=reference, dry_run=True)).notes)
    registry.resolved[reference] = ResolvedReference(f"sha256:{digest}", f"sha256-{digest}.sif", reference)
    asked_before = registry.asked
    for _ in range(2):
        assert plan_of(image=reference).image.digest == f"sha256:{digest}"
    assert registry.asked == asked_before + 1, "a tag that is a digest never moves"


def test_a_registry_that_refuses_ends_a_run_only_if_it_is_needed(foreign: Path, registry: FakeRegistry) -> None:
    registry.error = RegistryError("r.example/team/train has no tag 1", "It has 2")
    with pytest.raises(RegistryError, match=r"^r.example/team/train has no tag 1. It has 2$"):
        prepare(asked(image=REFERENCE))
    assert not (foreign.parent / "engine").exists() or not pulls(foreign)
    registry.push(REFERENCE, "a")
    prepare(asked(image=REFERENCE))
    registry.resolved.clear()
    assert "is unknown: r.example/team/train has no tag 1" in str(prepare(asked(image=REFERENCE)).notes)
    with pytest.raises(RegistryError):
        prepare(asked(image=REFERENCE, pull=True))


@pytest.mark.parametrize("known", [True, False])
def test_a_dry_run_pulls_nothing_and_says_what_it_cannot_know(
    foreign: Path, registry: FakeRegistry, known: bool
) -> None:
    if known:
        registry.push(REFERENCE, "a")
    Path("signed.yaml").write_text("name: signed\nextends: generic-slurm\nrequire_signature: true\n")
    cache = foreign.parent / "cache/ctrain/images"
    prepared = prepare(asked("./signed.yaml", image=REFERENCE, dry_run=True))
    named = f"{REFERENCE} (sha256:aaaaaaaaaaaa)" if known else REFERENCE
    note = f"{named} would be pulled into {cache}; until then nothing of it is known or checked"
    assert note in prepared.notes
    image = prepared.launch.plan.image
    assert (image.name, image.digest, image.cuda) == (REFERENCE, "", True)
    assert not cache.exists()
    pulled = plan_of(image=REFERENCE).image.path
    assert Path(image.path).resolve() == Path(pulled)
    for again in (False, known):
        later = prepare(asked(image=REFERENCE, dry_run=True, pull=again))
        assert later.launch.plan.image.path == pulled, "what is pulled is used"
    assert len(pulls(foreign)) == 1


def test_the_image_that_others_have_pulled_is_used_where_it_is(foreign: Path, registry: FakeRegistry) -> None:
    shared = foreign.parent / "shared"
    shared.mkdir()
    Path("shared.yaml").write_text(f"name: shared\nextends: generic-slurm\nimage_cache: {shared}\n")
    registry.push(REFERENCE, "a")
    first = plan_of("./shared.yaml", image=REFERENCE).image.path
    Path("gone.yaml").write_text(f"name: gone\nextends: generic-slurm\nimage_cache: {foreign.parent}/other\n")
    assert plan_of("./gone.yaml", image=REFERENCE).image.path.startswith(f"{foreign.parent}/cache/")
    assert first.startswith(f"{shared}/sha256-")


@pytest.mark.parametrize("image", ["./foreign.sif", REFERENCE, "./box"])
def test_a_site_that_allows_only_images_of_its_stores(foreign: Path, image: str) -> None:
    (foreign.parent / "box/.singularity.d").mkdir(parents=True)
    Path("strict.yaml").write_text("name: strict\nextends: generic-slurm\nimages: store\n")
    refused = r"^site strict runs only images of its stores, not .* \(.*strict.yaml.*\). List them with: ctrain images"
    with pytest.raises(ImageUnusable, match=refused):
        prepare(asked("./strict.yaml", image=image))
    wait_for_calls()
    assert (foreign.parent / "engine").read_text() == "--version\n", "nothing was pulled or run"
    inside = str(foreign.parent / "store/pytorch_24.12-hd-py3-r3.sif")
    assert plan_of("./strict.yaml", image=inside).image.version == "24.12-hd-r3"
    assert plan_of("./strict.yaml", image="pytorch").image.version == "24.12-hd-r3"
    Path(inside).with_suffix(".json").unlink()
    with pytest.raises(ImageUnusable, match=refused):  # retired, or never published
        prepare(asked("./strict.yaml", image=inside))


@pytest.mark.parametrize(
    ("image", "complaint"),
    [
        ("./foreign.sif", r"^image .*foreign.sif is not signed .* Ask its publisher to run: apptainer sign "),
        (REFERENCE, r"^image .*sha256-.*.sif is not signed"),
        ("./box", r"requires signatures, and sandbox .*/box cannot have one. Pack it as a .sif$"),
    ],
)
def test_signatures_are_required_of_them_too_before_anything_of_them_runs(
    foreign: Path, image: str, complaint: str
) -> None:
    (foreign.parent / "box/.singularity.d").mkdir(parents=True)
    Path("signed.yaml").write_text(
        f"name: signed\nextends: generic-slurm\nrequire_signature: true\ntrusted_keys: [{'A' * 40}]\n"
    )
    with pytest.raises(ImageUnusable, match=complaint):
        prepare(asked("./signed.yaml", image=image))
    wait_for_calls()
    assert " exec " not in (foreign.parent / "engine").read_text()
