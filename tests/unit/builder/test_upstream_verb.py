"""`ctrain upstream`, with a registry that is a table. A real one is asked in tests/integration/registry/."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder.cli import upstream as verb
from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.registry.resolver import DigestResolver
from ctrain_runtime.cli.main import main
from ctrain_runtime.errors import RegistryError
from ctrain_runtime.registry.http_client import Unreachable

IMAGES = """\
images:
  cpu:
    chain: [cpu]
    stack: s
    tag: "1.0"
    tag_argument: VERSION
  torch:
    chain: [torch]
    stack: s
    tag: "24.12"
    tag_argument: TAG
    tags:
      "22.03": {}
      "24.12": {}
"""
TORCH = """\
Bootstrap: docker
From: nvcr.io/nvidia/pytorch:{{ TAG }}-py3

%arguments
    TAG=24.12
"""
CPU = """\
Bootstrap: debootstrap
MirrorURL: {{ MIRROR }}

%post
    echo {{ VERSION }}
"""
NGC = """\
checked: 2026-11-21
generations:
  "7.0": {name: Volta, gpus: [V100]}
  "8.0": {name: Ampere, gpus: [A100]}
  "9.0": {name: Hopper, gpus: [H100]}
releases:
  "22.03": {cuda: 11.6.1, torch: 1.12.0a0+2c9, python: "3.8", minimum_driver: "470", unverified: [torch]}
  "24.12": {cuda: "12.6", torch: 2.6.0a0+df5, python: 3.12.3, driver: "560.35", arch: 7.0 8.0, unverified: [driver]}
  "25.04": {cuda: "12.9", torch: 2.7.0a0+79a, python: "3.12", arch: 8.0 9.0+PTX}
"""
VARIABLES = ["CUDA_VERSION=13.4.1.012", "PYTORCH_VERSION=2.14.0a0+4fd", "CUDA_DRIVER_VERSION=615.65.02",
             "TORCH_CUDA_ARCH_LIST=8.0 9.0"]  # fmt: skip  # rows, as they are read


def name(tag: str) -> str:
    return f"nvcr.io/nvidia/pytorch:{tag}-py3"


class World:
    """The only registry there is. `digests` are by tag; an error in `errors` replaces the answer to a question."""

    def __init__(self) -> None:
        self.digests = {"22.03-py3": "sha256:2222222222222222", "24.12-py3": "sha256:2424242424242424"}
        self.errors: dict[str, RegistryError] = {}
        self.asked: list[str] = []
        self.variables = VARIABLES

    def tags(self, repository: str) -> tuple[str, ...]:
        self._hear("tags", repository)
        return tuple(self.digests)

    def digest(self, reference: str) -> str:
        self._hear("digest", reference)
        return self.digests[reference.rpartition(":")[2]]

    def config(self, reference: str, arch: str) -> dict[str, Any]:
        self._hear("config", reference)
        return {"Env": self.variables, "Labels": {"arch": arch}}

    def _hear(self, question: str, reference: str) -> None:
        assert reference.startswith("nvcr.io/nvidia/")
        self.asked.append(question)
        if question in self.errors:
            raise self.errors[question]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(verb, "RegistryClient", lambda: made)
    return made


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str], world: World) -> Callable[..., tuple[int, str, str]]:
    """ask(ARGUMENTS ...): exit code and what `ctrain upstream` says."""
    assert world
    definitions = tmp_path / "definitions"
    files = {"images.yaml": IMAGES, "ngc.yaml": NGC, "cpu/cpu.def": CPU, "torch/torch.def": TORCH}
    for path, text in files.items():
        (definitions / path).parent.mkdir(parents=True, exist_ok=True)
        (definitions / path).write_text(text)

    def run(*arguments: str) -> tuple[int, str, str]:
        where = ["--definitions", str(definitions), "--cache", str(tmp_path / "cache")]
        code = main(BUILD_VERBS, ["upstream", *where, *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


Ask = Callable[..., tuple[int, str, str]]


def test_packaged_images_can_be_named_beside_own_ones(ask: Ask) -> None:
    code, out, _ = ask("pytorch-ngc", "--offline")
    assert code == 0
    assert "pytorch-ngc  22.03" in out
    assert "\ntorch" not in out


def test_without_a_table_of_its_own_a_directory_has_the_packaged_one(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "definitions/ngc.yaml").unlink()
    code, out, _ = ask("torch")
    assert (code, "12.6" in out) == (0, True), out


def test_nothing_new(ask: Ask, world: World) -> None:
    assert ask() == (
        0,
        """\
image  tag    state   CUDA    framework        Python  driver >=  GPUs
torch  22.03  listed  11.6.1  torch ~1.12.0a0  3.8     470        -
       24.12  listed  12.6    torch 2.6.0a0    3.12.3  ~560       V100, A100
torch: nothing newer than 24.12
""",
        "",
    )
    assert world.asked == ["tags", "digest", "digest"]


def test_new_tags_with_what_changes(ask: Ask, world: World) -> None:
    other = ["21.12-py3", "24.12-py3-igpu", "26.08", "26.08-py3-sdk", "latest"]
    world.digests.update(dict.fromkeys(["26.08-py3", "25.04-py3", *other], "sha256:26"))
    assert ask("torch") == (
        0,
        """\
image  tag    state   CUDA    framework        Python  driver >=  GPUs
torch  22.03  listed  11.6.1  torch ~1.12.0a0  3.8     470        -
       24.12  listed  12.6    torch 2.6.0a0    3.12.3  ~560       V100, A100
       25.04  new     12.9    torch 2.7.0a0    3.12    -          no V100; also H100
       26.08  new     13.4.1  torch 2.14.0a0   -       615        no V100; also H100
torch: 2 new tags. Try: ctrain build torch:26.08
""",
        "",
    )
    assert world.asked.count("config") == 1  # of the tag that is not in the table


TABLE_ONLY = "what no registry was asked about is from ngc.yaml, checked 2026-11-21\n"


@pytest.mark.parametrize(
    ("arguments", "expected", "said"),
    [
        (["--offline"], 0, TABLE_ONLY),
        ([], 79, f"ctrain: nvcr.io cannot be reached. Look\n{TABLE_ONLY}"),
    ],
)
def test_without_a_registry_the_table_is_what_there_is(
    ask: Ask, world: World, arguments: list[str], expected: int, said: str
) -> None:
    world.errors["tags"] = Unreachable("nvcr.io cannot be reached", "Look")
    code, out, err = ask(*arguments)
    assert (code, err) == (expected, said)
    assert out.splitlines()[-2:] == [
        "       25.04  new     12.9    torch 2.7.0a0    3.12    -          no V100; also H100",
        "torch: 1 new tag. Try: ctrain build torch:25.04",
    ]
    assert world.asked == ([] if arguments else ["tags"])


def test_nothing_newer_is_what_only_a_registry_can_tell(ask: Ask, world: World, tmp_path: Path) -> None:
    """The table ends with the day on which it was checked."""
    table = tmp_path / "definitions/ngc.yaml"
    table.write_text("".join(line for line in NGC.splitlines(keepends=True) if "25.04" not in line))
    world.errors["tags"] = Unreachable("nvcr.io cannot be reached", "Look")
    for arguments, expected in ((["--offline"], 0), ([], 79)):
        code, out, _ = ask(*arguments)
        assert (code, out.splitlines()[-1]) == (expected, "torch: versions newer than 24.12 are unknown")


def test_a_registry_that_lists_no_tags_is_still_asked_for_digests(ask: Ask, world: World) -> None:
    world.errors["tags"] = RegistryError("nvcr.io does not let us read tags")
    code, _, err = ask()
    assert (code, err) == (79, f"ctrain: nvcr.io does not let us read tags\n{TABLE_ONLY}")
    assert world.asked == ["tags", "digest", "digest"]


def test_a_tag_that_has_moved_or_is_gone(ask: Ask, world: World, tmp_path: Path) -> None:
    ask()  # makes the cache
    DigestResolver(tmp_path / "cache", registry=world).resolve(name("24.12"))  # type: ignore[arg-type]  # a stand-in
    world.digests = {"24.12-py3": "sha256:9999999999999999"}
    seen = json.loads((tmp_path / "cache/upstream.json").read_text())[name("24.12")]["seen"][:10]
    for _ in range(2):  # looking changes nothing
        _, out, _ = ask()
        assert out.splitlines()[1:] == [
            "torch  22.03  gone   11.6.1  torch ~1.12.0a0  3.8     470        -",
            "       24.12  moved  12.6    torch 2.6.0a0    3.12.3  ~560       V100, A100",
            f"torch 22.03 is gone: the registry no longer has {name('22.03')}",
            f"torch 24.12 has moved: sha256:242424242424 on {seen}, now sha256:999999999999."
            " Run: ctrain build torch:24.12",
            "torch: nothing newer than 24.12",
        ]


def test_json(ask: Ask, world: World) -> None:
    world.digests["25.04-py3"] = "sha256:25"
    world.errors["digest"] = Unreachable("away")
    code, out, err = ask("--json")
    data = json.loads(out)
    assert (code, err, data["checked"], data["troubles"]) == (79, f"ctrain: away\n{TABLE_ONLY}", "2026-11-21", ["away"])
    (image,) = data["images"]
    assert (image["image"], [tag["state"] for tag in image["tags"]]) == ("torch", ["listed", "listed", "new"])
    new = image["tags"][2]
    assert (new["reference"], new["digest"], new["before"]) == (name("25.04"), "", None)
    assert (new["gpus"], new["gained"], new["lost"]) == (["A100", "H100"], ["H100"], ["V100"])
    assert new["release"]["cuda"] == "12.9"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["torhc"], "ctrain: images.yaml has no image 'torhc'. Did you mean 'torch'? It has: cpu, torch\n"),
        (["cpu"], "ctrain: image cpu does not start from an image in a registry. Those that do: torch\n"),
        (["--build-arg", "REGISTRI=x"], "ctrain: no definition of torch uses argument REGISTRI. Known: none\n"),
        (["--build-arg", "TAG"], "ctrain: --build-arg must be NAME=VALUE, not 'TAG'\n"),
        (["--all"], "ctrain: unrecognized arguments: --all. See: ctrain upstream --help\n"),
    ],
)
def test_wrong_arguments(ask: Ask, arguments: list[str], complaint: str) -> None:
    assert ask(*arguments) == (64, "", complaint)


def test_no_image_to_watch(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "definitions/images.yaml").write_text(IMAGES.partition("  torch:")[0])
    assert ask() == (0, "no image of images.yaml starts from one in a registry\n", "")
    told = "ctrain: no image starts from a registry, so that no --build-arg counts. Remove --build-arg\n"
    assert ask("--build-arg", "FOO=x") == (64, "", told)


def test_the_table_is_about_nvidias_images_only(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "definitions/torch/torch.def").write_text(TORCH.replace("nvcr.io/nvidia/", "quay.io/site/"))
    assert ask("--offline")[1].splitlines()[2:] == [
        "       24.12  listed  -     torch -    -       -          -",
        "torch: versions newer than 24.12 are unknown",
    ]


def test_a_sites_copy_of_the_registry(ask: Ask, tmp_path: Path) -> None:
    text = TORCH.replace("nvcr.io", "{{ REGISTRY }}").replace("TAG=24.12", "TAG=24.12\n    REGISTRY=nvcr.io")
    (tmp_path / "definitions/torch/torch.def").write_text(text)
    code, out, _ = ask("--offline", "--json", "--build-arg", "REGISTRY=mirror.example.org/ngc")
    (image,) = json.loads(out)["images"]
    assert (code, image["new_tags_known"]) == (0, False)
    assert [tag["reference"] for tag in image["tags"]] == [
        f"mirror.example.org/ngc/nvidia/pytorch:{tag}-py3" for tag in ("22.03", "24.12", "25.04")
    ]


@pytest.mark.parametrize(
    ("offline", "rows"),
    [
        # Whether there is a 25.04 of this image, the table of another one can't tell.
        (["--offline"], ["       24.12  listed  12.6    tensorflow -  -       ~560       -",
                         "torch: versions newer than 24.12 are unknown"]),
        ([], ["       24.12  listed  13.4.1  tensorflow 2.17.0  -       615        A100, H100",
              "torch: nothing newer than 24.12"]),
    ],
)  # fmt: skip  # rows, as they are read
def test_nvidias_other_images_share_some_of_the_table(
    ask: Ask, world: World, tmp_path: Path, offline: list[str], rows: list[str]
) -> None:
    (tmp_path / "definitions/torch/torch.def").write_text(TORCH.replace("pytorch", "tensorflow"))
    world.variables = [*VARIABLES, "TENSORFLOW_VERSION=2.17.0+nv24.12"]
    assert ask(*offline)[1].splitlines()[2:] == rows
