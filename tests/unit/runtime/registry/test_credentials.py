from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Optional

import pytest

from ctrain_runtime.errors import ConfigError
from ctrain_runtime.registry import credentials
from ctrain_runtime.registry.credentials import TOKEN, Login
from samples.programs import SYSTEM, write_program

AUTH = {"auth": base64.b64encode(b"kim:open:sesame").decode()}
KIM = Login("kim", "open:sesame")


def write(home: Path, name: str, data: Any) -> Path:
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


@pytest.mark.parametrize("key", ["nvcr.io", "https://nvcr.io", "https://nvcr.io/v2/"])
def test_a_login_of_docker(tmp_path: Path, key: str) -> None:
    write(tmp_path, ".docker/config.json", {"auths": {key: AUTH, "other.io": {}}})
    assert credentials.find("nvcr.io", {"HOME": str(tmp_path)}) == KIM


@pytest.mark.parametrize("host", ["other.io", "nvcr.io:443", "io", "evil-nvcr.io", "nvcr.io.evil.org"])
def test_a_login_is_for_its_host_only(tmp_path: Path, host: str) -> None:
    write(tmp_path, ".docker/config.json", {"auths": {"nvcr.io": AUTH}})
    assert credentials.find(host, {"HOME": str(tmp_path)}) is None


@pytest.mark.parametrize("host", ["docker.io", "index.docker.io", "registry-1.docker.io"])
def test_dockers_own_registry_has_several_names(tmp_path: Path, host: str) -> None:
    write(tmp_path, ".docker/config.json", {"auths": {"https://index.docker.io/v1/": AUTH}})
    assert credentials.find(host, {"HOME": str(tmp_path)}) == KIM


def test_an_identity_token(tmp_path: Path) -> None:
    write(tmp_path, ".docker/config.json", {"auths": {"nvcr.io": {**AUTH, "identitytoken": "abc"}}})
    assert credentials.find("nvcr.io", {"HOME": str(tmp_path)}) == Login(TOKEN, "abc")


@pytest.mark.parametrize(
    ("path", "environ"),
    [
        (".apptainer/docker-config.json", {}),
        (".singularity/docker-config.json", {}),
        ("own/docker-config.json", {"APPTAINER_CONFIGDIR": "{home}/own"}),
        ("own/config.json", {"APPTAINER_CONFIGDIR": "{home}/own"}),
        ("own/config.json", {"DOCKER_CONFIG": "{home}/own"}),
    ],
)
def test_where_logins_are(tmp_path: Path, path: str, environ: dict[str, str]) -> None:
    write(tmp_path, path, {"auths": {"nvcr.io": AUTH}})
    made = {name: value.format(home=tmp_path) for name, value in environ.items()}
    assert credentials.find("nvcr.io", {"HOME": str(tmp_path), **made}) == KIM
    assert credentials.find("nvcr.io", {"HOME": str(tmp_path / "elsewhere")}) is None


def test_the_environment_comes_first_and_then_the_engines_file(tmp_path: Path) -> None:
    write(tmp_path, ".docker/config.json", {"auths": {"nvcr.io": AUTH}})
    write(tmp_path, ".apptainer/docker-config.json", {"auths": {"nvcr.io": {"auth": "bGVlOng="}}})
    home = {"HOME": str(tmp_path)}
    assert credentials.find("nvcr.io", home) == Login("lee", "x")
    named = {"APPTAINER_DOCKER_USERNAME": "max", "APPTAINER_DOCKER_PASSWORD": "y"}
    assert credentials.find("nvcr.io", {**home, **named}) == Login("max", "y")
    assert credentials.find("nvcr.io", {**home, "APPTAINER_DOCKER_USERNAME": "max"}) == Login("lee", "x")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"auths": []}',
        '{"auths": {"nvcr.io": "secret"}}',
        '{"auths": {"nvcr.io": {"auth": "secret!"}}}',
        '{"auths": {"nvcr.io": {"auth": 5}}}',
    ],
)
def test_a_damaged_file_is_named_and_not_shown(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, ".docker/config.json", text)
    with pytest.raises(ConfigError) as caught:
        credentials.find("nvcr.io", {"HOME": str(tmp_path)})
    assert caught.value.message == f"{path} is not a valid file of logins"
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__  # nor in a traceback


def test_nothing_shows_a_secret() -> None:
    assert "sesame" not in repr(KIM)


def helper(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program docker-credential-ring."""
    folder.mkdir()
    write_program(folder / "docker-credential-ring", f"#!/bin/sh\n{script}\n")
    monkeypatch.setenv("PATH", f"{folder}:{SYSTEM}")


@pytest.mark.parametrize(
    ("config", "host", "server"),
    [
        ({"credsStore": "ring", "auths": {"nvcr.io": {}}}, "nvcr.io", "nvcr.io"),
        ({"credHelpers": {"nvcr.io": "ring"}, "credsStore": "other"}, "nvcr.io", "nvcr.io"),
        ({"credHelpers": {"docker.io": "ring"}}, "docker.io", "https://index.docker.io/v1/"),
        ({"credHelpers": {"other.io": "ring"}}, "nvcr.io", None),
    ],
)
def test_a_key_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Any, host: str, server: Optional[str]
) -> None:
    write(tmp_path, ".docker/config.json", config)
    answer = '{"ServerURL": "x", "Username": "kim", "Secret": "open:sesame"}'
    helper(tmp_path / "bin", f"echo \"$1 $(cat)\" >{tmp_path}/asked; echo '{answer}'", monkeypatch)
    assert credentials.find(host, {"HOME": str(tmp_path)}) == (KIM if server else None)
    if server:
        assert (tmp_path / "asked").read_text() == f"get {server}\n"


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo 'ring is locked'; exit 1", "docker-credential-ring failed: ring is locked"),
        ("echo secret", "docker-credential-ring does not answer with a login for nvcr.io"),
        ('echo \'{"Secret": "secret"}\'', "docker-credential-ring does not answer with a login for nvcr.io"),
    ],
)
def test_a_key_ring_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, complaint: str) -> None:
    path = write(tmp_path, ".docker/config.json", {"credsStore": "ring"})
    helper(tmp_path / "bin", script, monkeypatch)
    with pytest.raises(ConfigError) as caught:
        credentials.find("nvcr.io", {"HOME": str(tmp_path)})
    assert caught.value.message == complaint
    assert str(path) in caught.value.hint
    assert "secret" not in str(caught.value)


def test_a_key_ring_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, ".docker/config.json", {"credsStore": "desktop"})
    monkeypatch.setenv("PATH", SYSTEM)
    with pytest.raises(
        ConfigError, match=r"^docker-credential-desktop cannot be started: No such file or directory\. .* names it"
    ):
        credentials.find("nvcr.io", {"HOME": str(tmp_path)})


def test_a_key_ring_without_this_login_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, ".docker/config.json", {"credsStore": "ring", "auths": {"nvcr.io": AUTH}})
    helper(tmp_path / "bin", "echo 'credentials not found in native keychain'; exit 1", monkeypatch)
    assert credentials.find("nvcr.io", {"HOME": str(tmp_path)}) == KIM
