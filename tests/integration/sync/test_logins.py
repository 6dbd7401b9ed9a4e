"""`ctrain store sync` and a registry that asks for a login."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ctrain_builder.store.publish import publish
from ctrain_runtime.store.store import Store
from samples import registry as samples
from samples.registry import PASSWORD, USER, Answer, Front, demand_token, front, serve
from samples.stores import Images
from samples.syncing import R1, R2, Sync, place, same, spoil

LOGIN = {"APPTAINER_DOCKER_USERNAME": USER, "APPTAINER_DOCKER_PASSWORD": PASSWORD}


def test_a_registry_with_logins(
    store: Store, real: samples.Registry, tmp_path: Path, sync: Sync, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert real  # is there, or was skipped
    with serve(tmp_path / "locked", password=True) as locked:
        said = sync(store.root, place(locked), code=79)
        assert f"{locked.host} denies write access to lab/images/small. Log in with: " in said
        assert "denies read access to its list of repositories" in sync(place(locked), store.root, code=79)
        monkeypatch.setenv("APPTAINER_DOCKER_USERNAME", USER)
        monkeypatch.setenv("APPTAINER_DOCKER_PASSWORD", "tell nobody")
        assert "nobody" not in sync(store.root, place(locked), code=79)
        monkeypatch.setenv("APPTAINER_DOCKER_PASSWORD", PASSWORD)
        sync(store.root, place(locked), "--channels")
        sync(place(locked), tmp_path / "other", "--channels")
    same(store, tmp_path / "other", R1, R2)


def test_tokens(store: Store, before: Front, tmp_path: Path, sync: Sync, monkeypatch: pytest.MonkeyPatch) -> None:
    demand_token(before)
    for name, value in LOGIN.items():
        monkeypatch.setenv(name, value)
    sync(store.root, place(before), "--channels")
    assert {urlsplit(one.path).query for one in before.asked("/token")} == {
        "service=test%2C+really&scope=repository%3Alab%2Fimages%2Fsmall%3Apull%2Cpush"
    }
    sync(place(before), tmp_path / "other", "--channels")
    same(store, tmp_path / "other", R1, R2)


@pytest.mark.usefixtures("pushed")
def test_a_login_that_may_only_read(before: Front, images: Images, tmp_path: Path, sync: Sync) -> None:
    before.stand = lambda request: Answer(403, {}, b"{}") if request.method not in ("GET", "HEAD") else None
    sync(place(before), tmp_path / "other")
    third = images.new()
    publish(third.path, third.manifest, tmp_path / "other")
    said = sync(tmp_path / "other", place(before), code=79)
    assert f"{before.host} denies write access to lab/images/small" in said


def test_an_upload_that_is_sent_elsewhere_brings_no_login_there(
    store: Store, before: Front, real: samples.Registry, sync: Sync, monkeypatch: pytest.MonkeyPatch
) -> None:
    demand_token(before)
    for name, value in LOGIN.items():
        monkeypatch.setenv(name, value)
    with front(real) as storage:
        before.fault = spoil(
            "POST",
            "/uploads/",
            lambda answer: answer.headers.update(
                Location=answer.headers["Location"].replace(before.host, storage.host)
            ),
            times=100,
        )
        sync(store.root, place(before), "small:prod")
        assert storage.asked("/uploads/")
        assert [one for one in storage.requests if "authorization" in one.headers] == []
