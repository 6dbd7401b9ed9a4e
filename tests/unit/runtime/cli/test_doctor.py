from __future__ import annotations

import json
from pathlib import Path

import pytest

from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.doctor import engines, fabric
from samples.programs import answer
from samples.sample_images import write_store

Out = pytest.CaptureFixture[str]


def doctor(*arguments: str) -> int:
    return main(RUNTIME_VERBS, ["doctor", "--site", "local", *arguments])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    write_store(tmp_path / "store", {})
    (tmp_path / "store").chmod(0o755)
    return tmp_path / "store"


def test_a_store_without_problems(store: Path, capsys: Out) -> None:
    assert doctor("--store", str(store)) == 0
    subject, _, rest = capsys.readouterr().out.partition("  ")
    assert subject == f"store {store}"
    assert rest.startswith("ok  1 image; writable by ")


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_a_failed_check_is_an_exit_code(store: Path, option: list[str], capsys: Out) -> None:
    (image,) = store.glob("*.sif")
    image.chmod(0o666)
    assert doctor("--store", str(store), *option) == 76
    out, error = capsys.readouterr()
    assert error == ""
    if option:
        (finding,) = json.loads(out)["findings"]
        assert (finding["level"], finding["text"]) == ("fail", f"world-writable: {image}")
        assert finding["hint"] == "Ask the store's owner to run chmod o-w"
    else:
        assert out.split("  ") == [
            f"store {store}",
            "fail",
            f"world-writable: {image}",
            "Ask the store's owner to run chmod o-w\n",
        ]


@pytest.mark.parametrize(("name", "problem"), [("nowhere", "does not exist"), ("config", "is not a store")])
def test_a_directory_that_is_no_store(tmp_path: Path, name: str, problem: str, capsys: Out) -> None:
    (tmp_path / "config").mkdir(exist_ok=True)
    assert doctor("--store", name) == 76
    assert f"{name} {problem}" in capsys.readouterr().out


@pytest.fixture
def healthy(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without problems but that its site has no stores."""
    answer(programs, "apptainer", f"apptainer version 1.4.5\nLIBEXECDIR={tmp_path}\n")
    starter = tmp_path / "apptainer/bin/starter-suid"
    starter.parent.mkdir(parents=True)
    starter.touch()
    starter.chmod(0o4755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(fabric, "adapters", dict)
    monkeypatch.setattr(engines, "_SUBORDINATE_IDS", ())
    return programs


def findings(out: str) -> list[tuple[str, str]]:
    return [(finding["subject"], finding["level"]) for finding in json.loads(out)["findings"]]


def test_all_of_a_machine(healthy: Path, tmp_path: Path, capsys: Out) -> None:
    """A site without stores is no failure."""
    assert doctor("--json") == 0
    subjects = ["site", "engine", "subuid", "scheduler", "fabric"]
    subjects += ["runs", "clock", "image_cache", "home", "engine tmp", "TMPDIR"]
    out = capsys.readouterr().out
    assert [(subject, level.replace("warn", "ok")) for subject, level in findings(out)[:-1]] == [
        (subject, "ok") for subject in subjects
    ]  # a small disk is warned of
    assert findings(out)[-1] == ("stores", "warn")
    last = json.loads(out)["findings"][-1]
    assert last["text"] == "site local has no store configured"
    assert (
        f"ctrain store init DIR, and add `stores: [DIR]` to {tmp_path}/config/ctrain/sites/local.yaml" in last["hint"]
    )
    (healthy / "apptainer").unlink()
    assert doctor() == 70
    assert "engine       fail  neither apptainer nor singularity is on PATH" in capsys.readouterr().out


@pytest.mark.usefixtures("healthy")
def test_an_image_is_checked_on_request(capsys: Out) -> None:
    assert doctor("--json", "--image", "./no.sif") == 70
    assert ("image", "fail") in findings(capsys.readouterr().out)


@pytest.mark.usefixtures("healthy")
def test_several_stores_are_all_checked(store: Path, tmp_path: Path, capsys: Out) -> None:
    (tmp_path / "mine.yaml").write_text(f"name: mine\nscheduler: local\nstores: [nowhere, {store}]\n")
    assert main(RUNTIME_VERBS, ["doctor", "--site", "./mine.yaml", "--json"]) == 70
    assert [level for subject, level in findings(capsys.readouterr().out) if "store" in subject] == ["fail", "ok"]


@pytest.mark.usefixtures("healthy")
def test_right_after_an_installation_its_store_wants_an_image(installed: Path, capsys: Out) -> None:
    assert doctor("--json") == 0
    last = json.loads(capsys.readouterr().out)["findings"][-1]
    assert (last["subject"], last["level"]) == (f"store {installed}/store", "warn")
    assert last["hint"].endswith(
        f"ctrain build pytorch-cpu-slim && ctrain publish pytorch-cpu-slim --store {installed}/store"
    )


@pytest.mark.usefixtures("programs")
def test_a_machine_with_nothing_has_a_line_to_type_for_each_thing(capsys: Out) -> None:
    assert main(RUNTIME_VERBS, ["doctor", "--json"]) == 70
    found = {one["subject"]: one["hint"] for one in json.loads(capsys.readouterr().out)["findings"]}
    assert "ctrain site list" in found["site"]
    assert (
        "module load apptainer, or module load singularity; or install Apptainer: ctrain help inst" in found["engine"]
    )
    assert "ctrain store init DIR" in found["stores"]
