"""Signatures that are added to published versions, by the real engine: second keys, rotation, checks."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.files import manifest_writer
from ctrain_builder.registry import artifacts
from ctrain_builder.store import log
from ctrain_builder.store.publish import CopyObserver, publish
from ctrain_builder.store.sign import Signer
from ctrain_runtime.cli.main import main
from ctrain_runtime.engines.apptainer import find_engine
from ctrain_runtime.errors import GateNotPassed, ImageUnusable
from ctrain_runtime.images import trust, user_layer
from ctrain_runtime.images.image import Image, find_any_arch
from ctrain_runtime.registry.client import RegistryClient, parse
from ctrain_runtime.site.model import Site
from ctrain_runtime.store import policy, signatures
from ctrain_runtime.store.manifest import Layer, read_manifest
from ctrain_runtime.store.store import open_store
from samples import gpg
from samples.layers import write_layer
from samples.plans import a_manifest
from samples.registry import serve
from samples.sample_images import write_image, write_store

LAYER = Layer("base", "k0", 20_000)  # without layers, it would be an image that ctrain did not build
SILENT = CopyObserver(lambda _: None, lambda _: None)


def run(*argv: object) -> str:
    return subprocess.run(list(map(str, argv)), check=True, capture_output=True, text=True).stdout


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("APPTAINER_KEYSDIR", str(tmp_path / "keyring"))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """old.pem, old.pub, new.pem, new.pub"""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("old", "new"):
        run("openssl", "genpkey", "-algorithm", "ed25519", "-out", folder / f"{name}.pem")
        (folder / f"{name}.pem").chmod(0o600)
        run("openssl", "pkey", "-in", folder / f"{name}.pem", "-pubout", "-out", folder / f"{name}.pub")
    return folder


@pytest.fixture
def root(tmp_path: Path, keys: Path) -> Path:
    """A store with one version that was not signed, and one that the old key has signed when it was published."""
    root = write_store(tmp_path / "store")
    for signer in (None, Signer(find_engine(), str(keys / "old.pem"))):
        source = tmp_path / "source.sif"
        source.unlink(missing_ok=True)
        (tmp_path / "part").write_bytes(os.urandom(20_000))
        run("apptainer", "sif", "new", source)
        options = ("--datatype", "4", "--partfs", "1", "--partarch", "2", "--groupid", "1", "--parttype", "2")
        run("apptainer", "sif", "add", *options, source, tmp_path / "part")
        beside = write_image(
            tmp_path, content=source.read_bytes(), digest=trust._digest(source), release=0, layers=(LAYER,)
        )
        publish(source, read_manifest(beside.with_suffix(".json")), root, "", SILENT, signer)
    return root


def store(root: Path, *argv: object, code: int = 0) -> None:
    assert main(BUILD_VERBS, ["store", *map(str, argv), "--store", str(root)]) == code


def image(root: Path, release: int) -> Image:
    return find_any_arch((f"pytorch:24.12-hd-r{release}",), [open_store(root)])


def strict(*trusted: object) -> Site:
    return Site("strict", "local", require_signature=True, trusted_keys=tuple(map(str, trusted)))


def contents(root: Path) -> dict[str, tuple[bytes, int]]:
    """The published files and their times."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.glob("*_*")}


def test_a_second_key_signs_and_no_published_file_changes(root: Path, keys: Path) -> None:
    before = contents(root)
    for release in (1, 2):
        with pytest.raises(ImageUnusable, match=r"not signed by a key that site strict trusts\. .* ctrain store sign"):
            trust.require_trusted(image(root, release), strict(keys / "new.pub"))
    for release in (1, 2):
        store(root, "sign", f"pytorch:24.12-hd-r{release}", "--key", keys / "new.pem")
    assert contents(root) == before
    for release in (1, 2):
        trust.require_trusted(image(root, release), strict(keys / "new.pub"))
    trust.require_trusted(image(root, 2), strict(keys / "old.pub"))
    with pytest.raises(ImageUnusable):
        trust.require_trusted(image(root, 1), strict(keys / "old.pub"))
    assert [(entry.action, entry.version) for entry in log.read(root)][-2:] == [
        ("sign", "24.12-hd-r1"),
        ("sign", "24.12-hd-r2"),
    ]
    (added,) = signatures.added(image(root, 1).path)
    assert added.stat().st_mode & 0o777 == 0o444


def test_a_gate_asks_for_a_key_also_after_the_way_through_an_archive(root: Path, keys: Path, tmp_path: Path) -> None:
    far = write_store(tmp_path / "far")
    for place in (root, far):
        (place / policy.FILE).write_text(f"channels: {{prod: {{signed_by: [{keys / 'new.pub'}]}}}}\n")
    store(root, "promote", "pytorch:24.12-hd-r2", "prod", code=GateNotPassed.exit_code)
    store(root, "sign", "pytorch:24.12-hd-r2", "--key", keys / "new.pem")
    store(root, "promote", "pytorch:24.12-hd-r2", "prod")
    for source, target in ((root, tmp_path / "images.tar"), (tmp_path / "images.tar", far)):
        assert main(BUILD_VERBS, ["store", "sync", str(source), str(target), "--channels"]) == 0
    assert find_any_arch(("pytorch",), [open_store(far)]).manifest.release == 2
    trust.require_trusted(image(far, 2), strict(keys / "new.pub"))


def test_a_user_layer_is_signed_and_every_change_of_it_is_seen(
    tmp_path: Path, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_layer(tmp_path / "my.sqsh", a_manifest())
    layer = user_layer.read(path)
    with pytest.raises(ImageUnusable, match="not signed by a key that site strict trusts"):
        trust.require_trusted_layer(layer, strict(keys / "new.pub"))
    assert main(BUILD_VERBS, ["layer", "sign", str(path), "--key", str(keys / "new.pem")]) == 0
    assert "my.sqsh (sha256:" in (said := capsys.readouterr().out) and " signed with SHA256:" in said
    assert main(BUILD_VERBS, ["layer", "show", str(path)]) == 0
    assert f"\nsigned  by {said.split()[-1]} (not verified)\n" in capsys.readouterr().out
    trust.require_trusted_layer(layer, strict(keys / "new.pub"))
    trust.require_trusted_layer(layer, strict(keys / "old.pub", keys / "new.pub"))
    assert signatures.path_for_layer(path).stat().st_mode & 0o777 == 0o644
    with pytest.raises(ImageUnusable, match="not signed by a key that site strict trusts"):
        trust.require_trusted_layer(layer, strict(keys / "old.pub"))
    moved = path.rename(tmp_path / "other.sqsh")
    signatures.path_for_layer(path).rename(signatures.path_for_layer(moved))
    trust.require_trusted_layer(user_layer.read(moved), strict(keys / "new.pub"))
    write_layer(moved, a_manifest(), einops="0.8.2")
    with pytest.raises(ImageUnusable, match="built again, or changed"):
        trust.require_trusted_layer(user_layer.read(moved), strict(keys / "new.pub"))


def test_keys_are_rotated(root: Path, keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The new key vouches for what the old one has vouched for, and for nothing else."""
    store(root, "verify", "--signatures", "--key", keys / "old.pub", code=69)
    assert "pytorch:24.12-hd-r1 is not signed by any of these keys" in capsys.readouterr().out
    rotate = ("sign", "--all-signed-by", keys / "old.pub", "--key", keys / "new.pem")
    store(root, *rotate)
    told = capsys.readouterr()
    assert "24.12-hd-r1 is left out" in told.err and "24.12-hd-r2" in told.out
    trust.require_trusted(image(root, 2), strict(keys / "new.pub"))
    store(root, "verify", "--signatures", "--key", keys / "new.pub", code=69)
    store(root, "sign", "pytorch:24.12-hd-r1", "--key", keys / "new.pem")
    store(root, "verify", "--signatures", "--key", keys / "new.pub")
    capsys.readouterr()
    store(root, "verify", "--signatures", "--key", keys / "old.pub", "--key", keys / "new.pub", "--json")
    signed_by = [one["signed_by"] for one in json.loads(capsys.readouterr().out)["images"]]
    assert signed_by == [[str(keys / "new.pub")], [str(keys / "old.pub"), str(keys / "new.pub")]]
    store(root, *rotate)
    assert "24.12-hd-r2" in (said := capsys.readouterr().out) and "has a signature by this key already" in said
    assert len(list((root / signatures.SIGNATURES).iterdir())) == 3


def test_a_new_key_does_not_vouch_for_a_manifest_that_was_changed(root: Path, keys: Path) -> None:
    """The file is signed, but its manifest names another digest, for which the file could be changed later."""
    path = image(root, 2).path.with_suffix(".json")
    changed = replace(read_manifest(path), digest=f"sha256:{'0' * 64}")
    path.chmod(0o644)
    manifest_writer.write(path, changed)
    store(root, "sign", "--all-signed-by", keys / "old.pub", "--key", keys / "new.pem")
    assert len(list((root / signatures.SIGNATURES).iterdir())) == 1, "of the old key, when it was published"


def test_a_key_vouches_for_no_file_that_its_manifest_does_not_know(
    root: Path, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = image(root, 1).path
    path.chmod(0o644)
    whole = path.read_bytes()
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    sign = ("sign", "pytorch:24.12-hd-r1", "--key", keys / "new.pem")
    store(root, *sign, code=69)
    assert f"digest mismatch: {path} is sha256:" in capsys.readouterr().err
    assert signatures.added(path) == []
    path.write_bytes(whole)
    store(root, *sign)


def test_show_and_list_tell_who_signed(root: Path, keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(root, "show", "pytorch:24.12-hd-r1")
    assert re.search(r"^signed +no$", capsys.readouterr().out, re.MULTILINE)
    for release in (1, 2):
        store(root, "sign", f"pytorch:24.12-hd-r{release}", "--key", keys / "new.pem")
    capsys.readouterr()
    store(root, "show", "pytorch:24.12-hd-r2", "--json")
    listed = json.loads(capsys.readouterr().out)["signed_by"]
    expected = []
    for name in ("old", "new"):
        der = subprocess.check_output(["openssl", "pkey", "-pubin", "-in", keys / f"{name}.pub", "-outform", "DER"])
        ssh = b"".join(len(part).to_bytes(4, "big") + part for part in (b"ssh-ed25519", der[-32:]))
        expected.append(f"SHA256:{base64.b64encode(hashlib.sha256(ssh).digest()).decode().rstrip('=')}")
    assert sorted(listed) == sorted(expected), "once each, though the old key has signed the file, too"
    store(root, "show", "pytorch:24.12-hd-r2")
    assert f"by {', '.join(listed)}\n" in capsys.readouterr().out
    assert all(one.signed for one in open_store(root).images())


def test_a_key_of_gpgs_agent_and_of_the_engines_key_ring(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with gpg.admin(monkeypatch, tmp_path) as fingerprint:
        store(root, "sign", "pytorch:24.12-hd-r1", "--key", f"gpg:{fingerprint}")
    trust.require_trusted(image(root, 1), strict(fingerprint))
    store(root, "show", "pytorch:24.12-hd-r1")
    assert f"by {fingerprint}\n" in capsys.readouterr().out
    options = ("--name", "Second", "--email", "second@example.org", "--password", "", "--push=false")
    run("apptainer", "key", "newpair", *options, "--bit-length", "2048")
    (second,) = re.findall(r"[0-9A-F]{40}", run("apptainer", "key", "list", "--secret"))
    store(root, "sign", "pytorch:24.12-hd-r1", "--key", "pgp:0")
    trust.require_trusted(image(root, 1), strict(second))
    assert set(signatures.keys(signatures.path_for(image(root, 1).path, second))) == {second}


def test_a_signature_counts_for_its_version_and_digest_alone(
    root: Path, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else whoever can write to the store could offer an old version, with its known holes, as the new one."""
    store(root, "sign", "pytorch:24.12-hd-r1", "--key", keys / "new.pem")
    (added,) = signatures.added(image(root, 1).path)
    other = added.with_name(added.name.replace("-r1.", "-r2."))
    added.rename(other)
    with pytest.raises(ImageUnusable):
        trust.require_trusted(image(root, 2), strict(keys / "new.pub"))
    store(root, "verify", "--signatures", "--key", keys / "old.pub", "--key", keys / "new.pub", code=69)
    assert f"{other} is damaged, or a signature of another version or digest" in capsys.readouterr().out
    other.rename(added)
    path = image(root, 1).path
    path.chmod(0o644)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ImageUnusable, match="digest mismatch"):
        trust.require_trusted(image(root, 1), strict(keys / "new.pub"))


def test_a_forged_statement_is_not_accepted(root: Path, keys: Path, tmp_path: Path) -> None:
    store(root, "sign", "pytorch:24.12-hd-r1", "--key", keys / "new.pem")
    (added,) = signatures.added(image(root, 1).path)
    good = added.read_bytes()
    at = good.index(signatures.statement(image(root, 1).manifest))
    added.chmod(0o644)
    for place in (at, at + 70, good.index(b'"sig":"') + 20):
        added.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(ImageUnusable):
            trust.require_trusted(image(root, 1), strict(keys / "new.pub"))
    (tmp_path / "more").write_bytes(b"0" * 64 + b"  other.sif\n")
    added.write_bytes(good)
    run("apptainer", "sif", "add", "--datatype", "7", "--groupid", "1", added, tmp_path / "more")
    with pytest.raises(ImageUnusable):
        trust.require_trusted(image(root, 1), strict(keys / "new.pub"))


def test_a_damaged_signature_hides_no_other_and_is_replaced(root: Path, keys: Path) -> None:
    before = {*signatures.added(image(root, 2).path)}
    store(root, "sign", "pytorch:24.12-hd-r2", "--key", keys / "new.pem")
    (added,) = {*signatures.added(image(root, 2).path)} - before
    added.chmod(0o644)
    added.write_bytes(added.read_bytes()[:1000])
    trust.require_trusted(image(root, 2), strict(keys / "old.pub"))
    store(root, "show", "pytorch:24.12-hd-r2")
    store(root, "verify", "--signatures", "--key", keys / "old.pub", code=69)
    store(root, "sign", "pytorch:24.12-hd-r2", "--key", keys / "new.pem")
    trust.require_trusted(image(root, 2), strict(keys / "new.pub"))


def test_plain_tools_check_it_too(root: Path, keys: Path) -> None:
    """As docs/signatures.md shows."""
    store(root, "sign", "pytorch:24.12-hd-r1", "--key", keys / "new.pem")
    (added,) = signatures.added(image(root, 1).path)
    run("apptainer", "verify", "--all", "--key", keys / "new.pub", added)
    statement = run("apptainer", "sif", "dump", "1", added)
    subprocess.run(["sha256sum", "--check"], input=statement.encode(), cwd=root, check=True)


def test_sync_brings_added_signatures_along(
    root: Path, keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also those of versions that are there already."""
    there = write_store(tmp_path / "there")
    sync = ["store", "sync", str(root), str(there)]
    assert main(BUILD_VERBS, sync) == 0
    store(root, "sign", "pytorch:24.12-hd-r1", "--key", keys / "new.pem")
    for added in (1, 0):
        capsys.readouterr()
        assert main(BUILD_VERBS, sync) == 0
        assert capsys.readouterr().err.count("24.12-hd-r1: signatures added") == added
    trust.require_trusted(image(there, 1), strict(keys / "new.pub"))


def test_sync_brings_added_signatures_through_a_registry(
    root: Path, keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of versions that are there already; nothing that does not belong to a version is taken from it."""
    if not shutil.which("docker-registry"):
        if os.environ.get("CI"):
            pytest.fail("CI must have docker-registry: see tests/cluster/install")
        pytest.skip("no docker-registry here: tests/cluster/install brings it")
    monkeypatch.setenv("CTRAIN_CACHE", str(tmp_path / "cache"))
    there = write_store(tmp_path / "there")
    with serve(tmp_path / "registry") as registry:
        place = f"oras://{registry.host}/lab"
        for source, target in ((root, place), (place, there)):
            assert main(BUILD_VERBS, ["store", "sync", str(source), str(target)]) == 0
        for name in ("new", "old"):
            store(root, "sign", "pytorch:24.12-hd-r1", "--key", keys / f"{name}.pem")
        for source, target in ((root, place), (place, there)):
            for added in (1, 0):
                capsys.readouterr()
                assert main(BUILD_VERBS, ["store", "sync", str(source), str(target)]) == 0
                told = capsys.readouterr()
                assert told.err.count("24.12-hd-r1: signatures added") == added
                assert "left out" not in told.err
        for name in ("new", "old"):
            trust.require_trusted(image(there, 1), strict(keys / f"{name}.pub"))
        with pytest.raises(ImageUnusable):
            trust.require_trusted(image(there, 2), strict(keys / "new.pub"))
        first, has = signatures.added(image(there, 1).path)[0], signatures.added(image(there, 2).path)
        client, foreign = RegistryClient({}), parse(f"{registry.host}/lab/pytorch:24.12-hd-r2.{'0' * 16}.sig")
        artifacts.push_small(client, foreign, first.read_bytes(), "of another version")
        assert main(BUILD_VERBS, ["store", "sync", place, str(there)]) == 0
        assert signatures.added(image(there, 2).path) == has


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("sign", "--key", "x.pem"), "specify images, or --all-signed-by"),
        (("sign", "pytorch", "--all-signed-by", "x.pub", "--key", "x.pem"), "specify images, or --all-signed-by"),
        (("sign", "pytorch", "--key", "nowhere.pem"), "nowhere.pem not found"),
        (("verify", "--signatures", "--key", "nowhere.pub"), "file nowhere.pub not found"),
        (("verify", "--signatures"), "no keys to check signatures with"),
        (("verify", "--key", "x.pub"), "--key requires --signatures"),
        (("verify", "--signatures", "--quarantine"), "--signatures moves no images"),
    ],
)
def test_mistakes(root: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], complaint: str) -> None:
    store(root, *argv, code=64)
    assert complaint in capsys.readouterr().err
