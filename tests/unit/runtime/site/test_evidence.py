from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime.errors import ConfigError
from ctrain_runtime.site import files
from ctrain_runtime.site.evidence import explain, leaf_paths, read_evidence
from ctrain_runtime.site.layers import Layer, Level
from ctrain_runtime.site.model import Site
from ctrain_runtime.site.select import select_site

OF_NO_REAL_SITE = {"generic-pbs", "generic-slurm", "local"}
PROFILES = sorted({path.stem for path in files.BUILT_IN_DIR.glob("*.yaml")} - OF_NO_REAL_SITE)
ABOUT_THE_FILE = {"name", "description", "extends"}

SITE = """
partition: gpu
engine: {path: apptainer, version: 1.3.6}
partitions: {gpu: {nodes: 4, cpus: 64}, debug: {nodes: 1, cpus: 8}}
env: {NCCL_NET: IB, LC_ALL: C}
"""
SOURCES = """
sources:
  - {source: the guide, read: 2026-11-23, sure: documented, keys: [engine.path, partitions, env]}
  - {source: an example, read: 2026-11-22, sure: unverified, keys: [partitions.*.cpus, env.LC_ALL]}
"""


def layer(sources: str, name: str = "ours") -> Layer:
    path = Path(f"{name}.yaml").absolute()
    path.write_text(SITE)
    folder = path.parent / "sources"
    folder.mkdir(exist_ok=True)
    (folder / path.name).write_text(sources)
    return files.read_site_file(path, Level.USER, Site)


@pytest.mark.parametrize("name", PROFILES)
def test_each_value_of_a_real_site_that_ships_has_a_source(name: str) -> None:
    shipped = files.read_site_file(files.BUILT_IN_DIR / f"{name}.yaml", Level.BUILT_IN, Site)
    evidence = read_evidence(shipped)
    facts = [path for path in leaf_paths(shipped.values) if path not in ABOUT_THE_FILE]
    assert [path for path in facts if not any(one.covers(path) for one in evidence)] == []


def test_the_last_source_that_covers_a_value_counts_and_entries_name_theirs() -> None:
    ours = layer(SOURCES)
    guide, example = "documented, 2026-11-23: the guide", "unverified, 2026-11-22: an example"
    keys = ["partition", "engine", "engine.path", "engine.version", "partitions.gpu", "env.NCCL_NET", "env.LC_ALL"]
    assert explain([ours], dict.fromkeys(keys, ours.source)) == {
        "engine": f"path: {guide}; version: unknown",
        "engine.path": guide,
        "partitions.gpu": f"nodes: {guide}; cpus: {example}",
        "env.NCCL_NET": guide,
        "env.LC_ALL": example,
    }


def test_a_value_of_a_higher_layer_does_not_get_the_source_of_the_one_below() -> None:
    ours = layer(SOURCES)
    above = Layer(Level.ENVIRONMENT, "VARIABLE", {"env": {"NCCL_NET": "Socket"}})
    assert explain([ours, above], {"env.NCCL_NET": "VARIABLE", "env.LC_ALL": "default"}) == {}


@pytest.mark.parametrize("name", PROFILES)
def test_a_site_that_extends_one_that_ships_shows_its_sources(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its `detect` is not inherited, and the parent's source of that was called an error of its file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "ctrain/sites/ours.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(f"extends: {name}\nruns: /runs\n")
    selected = select_site("ours")
    texts = explain(selected.layers, selected.sources)
    assert texts.keys() >= {key for key in selected.sources if key.startswith("partitions.")}
    assert selected.sources["detect"] == "default"
    assert "runs" not in texts


def test_a_site_without_sources_has_none(tmp_path: Path) -> None:
    ours = layer(SOURCES)
    (tmp_path / "sources").rename(tmp_path / "gone")
    assert read_evidence(ours) == ()
    assert explain([ours], {"env.NCCL_NET": ours.source}) == {}


def test_sources_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    ours = layer(SOURCES)
    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(ConfigError, match=r"^cannot read .*sources/ours\.yaml: Permission denied$"):
        read_evidence(ours)


@pytest.mark.parametrize(
    ("sources", "complaint"),
    [
        (
            "sources: [{source: a, read: 2026-11-23, sure: documented, keys: [env.NCCL_NETS]}]",
            "env.NCCL_NETS is not set",
        ),
        ("sources: [{source: a, read: 2026-11-23, sure: perhaps, keys: [env]}]", "sure must be documented or "),
        ("sources: [{source: a, read: yesterday, sure: user, keys: [env]}]", "read must be a date, not a string"),
        ("sources: [{source: a, sure: user, keys: [env]}]", "key 'read' is missing"),
        ("keys: []", "unknown key 'keys'"),
        ("[", "line 1: "),
    ],
)
def test_wrong_sources_are_errors_of_their_file(sources: str, complaint: str, tmp_path: Path) -> None:
    ours = layer(sources)
    with pytest.raises(ConfigError) as caught:
        read_evidence(ours)
    assert caught.value.message.startswith(str(tmp_path / "sources/ours.yaml"))
    assert complaint in caught.value.message
