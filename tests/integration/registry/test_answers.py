"""A real registry as it is, and what is remembered of it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from ctrain_builder.registry.resolver import DigestResolver
from ctrain_runtime.errors import RegistryError
from ctrain_runtime.registry.client import RegistryClient
from ctrain_runtime.registry.http_client import Unreachable
from samples import registry as samples
from samples.registry import NAME, TAGS, Answer, Front, Request, digest_of, front, spoil


def test_a_tag_is_resolved_to_the_digest_that_was_pushed(
    real: samples.Registry, client: RegistryClient, layouts: Path
) -> None:
    digest = client.digest(f"{real.host}/{NAME}:24.12-py3")
    assert digest == digest_of(layouts / "one")
    assert client.digest(f"docker://{real.host}/{NAME}:24.12-py3@{digest}") == digest


def test_a_tag_for_several_architectures_has_the_digest_of_its_index(
    real: samples.Registry, client: RegistryClient, layouts: Path
) -> None:
    assert client.digest(f"{real.host}/multi:1") == digest_of(layouts / "index")
    assert "ARCH=arm64" in client.config(f"{real.host}/multi:1", "arm64")["Env"]
    assert "ARCH=amd64" in client.config(f"{real.host}/multi:1")["Env"]
    with pytest.raises(
        RegistryError, match=r"multi:1 has no image for linux/ppc64le\. It has linux/amd64, linux/arm64$"
    ):
        client.config(f"{real.host}/multi:1", "ppc64le")


def test_what_an_image_takes_to_download(real: samples.Registry, client: RegistryClient, layouts: Path) -> None:
    blobs = layouts / "index" / "blobs" / "sha256"
    index = json.loads((blobs / digest_of(layouts / "index").partition(":")[2]).read_text())
    for part in index["manifests"]:
        manifest = json.loads((blobs / part["digest"].partition(":")[2]).read_text())
        stored = sum((blobs / layer["digest"].partition(":")[2]).stat().st_size for layer in manifest["layers"])
        assert client.size(f"{real.host}/multi:1", part["platform"]["architecture"]) == stored > 0


def test_what_an_image_says_of_itself(real: samples.Registry, client: RegistryClient) -> None:
    config = client.config(f"{real.host}/{NAME}:24.12-py3")
    assert "CUDA_VERSION=12.6.3.004" in config["Env"]
    assert config["Labels"] == {"com.nvidia.pytorch.version": "2.6.0a0"}


def in_pages(request: Request, answer: Answer) -> None:
    """Send tags page by page, as the specification has it and nvcr.io does; Debian's registry sends all at once."""
    if "/tags/list" in request.path:
        query = parse_qs(urlsplit(request.path).query)
        size, last = int(query["n"][0]), query.get("last", [""])[0]
        left = [tag for tag in sorted(json.loads(answer.body)["tags"]) if tag > last]
        answer.body = json.dumps({"tags": left[:size]}).encode()
        if left[size:]:
            answer.headers["Link"] = f'</v2/{NAME}/tags/list?n={size}&last={left[size - 1]}>; rel="next"'


@pytest.mark.parametrize(("page", "requests"), [(1000, 1), (5, 1), (2, 3)])
def test_all_tags_are_found_page_by_page(before: Front, page: int, requests: int) -> None:
    before.fault = in_pages
    assert list(RegistryClient({}, page=page).tags(f"{before.host}/{NAME}")) == TAGS
    assert len(before.asked("/tags/list")) == requests


def test_pages_that_lead_in_circles_end(before: Front, client: RegistryClient) -> None:
    before.fault = spoil("tags", lambda answer: answer.headers.update(Link=f'</v2/{NAME}/tags/list?n=9>; rel="next"'))
    assert sorted(client.tags(f"{before.host}/{NAME}")) == TAGS
    assert len(before.asked("/tags/list")) == 2


def test_an_unknown_tag_and_the_near_ones(real: samples.Registry, client: RegistryClient) -> None:
    with pytest.raises(RegistryError) as caught:
        client.digest(f"{real.host}/{NAME}:24.13-py3")
    assert caught.value.message == f"{real.host}/{NAME} has no tag 24.13-py3"
    assert caught.value.hint.startswith("It has 24.12-py3, ")


def test_an_unknown_repository_and_an_unknown_digest(real: samples.Registry, client: RegistryClient) -> None:
    with pytest.raises(RegistryError, match=rf"^{real.host} has no repository nvidia/pytorhc\."):
        client.digest(f"{real.host}/nvidia/pytorhc:24.12-py3")
    with pytest.raises(RegistryError, match=rf"^{real.host} has no image sha256:0{{64}} in {NAME}\."):
        client.digest(f"{real.host}/{NAME}@sha256:{'0' * 64}")


def test_the_engine_builds_from_the_digest_even_when_the_tag_has_moved(
    tmp_path: Path, real: samples.Registry, client: RegistryClient, layouts: Path
) -> None:
    real.push(layouts / "one", "moving:1")
    digest = client.digest(f"{real.host}/moving:1")
    real.push(layouts / "two", "moving:1")
    assert client.digest(f"{real.host}/moving:1") == digest_of(layouts / "two") != digest
    environment = {**os.environ, "APPTAINER_CACHEDIR": str(tmp_path / "cache"), "APPTAINER_TMPDIR": str(tmp_path)}
    argv = ["apptainer", "build", "--fakeroot", "--sandbox", "box", f"docker://{real.host}/moving@{digest}"]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "box/etc/hello").read_text() == "hello\n"


def test_a_registry_that_is_gone_stops_no_build(tmp_path: Path, real: samples.Registry, layouts: Path) -> None:
    with front(real) as gone:
        reference = f"{gone.host}/{NAME}:24.12-py3"
        assert DigestResolver(tmp_path).resolve(reference) == digest_of(layouts / "one")
    later = DigestResolver(tmp_path, registry=RegistryClient({}, pause=lambda _: None))
    assert later.resolve(reference) == digest_of(layouts / "one")
    assert [error.message for error in later.troubles.values()] == [
        f"{gone.host} cannot be reached: Connection refused"
    ]
    with pytest.raises(Unreachable, match="Connection refused"):
        later.resolve(f"{gone.host}/{NAME}:25.01-py3")


def test_a_tag_that_moves_is_seen_by_the_next_builder(tmp_path: Path, real: samples.Registry, layouts: Path) -> None:
    real.push(layouts / "one", "moved:1")
    reference = f"{real.host}/moved:1"
    first = DigestResolver(tmp_path)
    assert first.resolve(reference) == digest_of(layouts / "one")
    real.push(layouts / "two", "moved:1")
    assert first.resolve(reference) == digest_of(layouts / "one")  # one plan sees one state
    assert DigestResolver(tmp_path, offline=True).resolve(reference) == digest_of(layouts / "one")
    assert DigestResolver(tmp_path).resolve(reference) == digest_of(layouts / "two")
    assert DigestResolver(tmp_path, offline=True).resolve(reference) == digest_of(layouts / "two")
