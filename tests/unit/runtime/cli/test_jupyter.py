"""`ctrain jupyter` with the fake engine, and a server that does what Jupyter's does at its start."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from samples.runs import Bench, ended, wait_for

SERVER = """\
#!/bin/sh
echo "$JUPYTER_TOKEN" >{folder}/token
echo "$@" >{folder}/options
mkdir -p "$JUPYTER_RUNTIME_DIR"
printf '{{\\n  "pid": %s,\\n  "port": 23456,\\n  "url": "x"\\n}}' $$ >"$JUPYTER_RUNTIME_DIR/jpserver-$$.json"
exec sleep 1000
"""
URL = re.compile(r"notebook  http://127\.0\.0\.1:23456/\?token=([0-9a-f]{48})\n")


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, getattr(request, "param", "local"))
    yield bench
    bench.end()


def words(bench: Bench, *arguments: str) -> tuple[str, ...]:
    where = ("--site", bench.site, "--runs", str(bench.runs), "--name", "one")
    return "jupyter", str(bench.image), *where, *arguments


def started(bench: Bench, *arguments: str, program: str = "jupyter-lab", **variables: str) -> subprocess.Popen[str]:
    """`ctrain jupyter` once its server is up."""
    file = bench.folder / "bin" / program
    file.write_text(SERVER.format(folder=bench.folder))
    file.chmod(0o755)
    process = bench.ctrain(*words(bench, *arguments), **variables)
    try:
        wait_for(lambda: (bench.one / "logs/rank0.log").exists() and "notebook  " in bench.log(0))
    except AssertionError as error:  # seen once, on a busy machine: what was it waiting for?
        files = {path.name: path.read_text() for path in bench.one.rglob("*") if path.suffix in (".log", ".jsonl")}
        process.kill()
        raise AssertionError(f"{files}\n{bench.processes()}\n{process.communicate()}") from error
    return process


@pytest.mark.parametrize("program", ["jupyter-lab", "jupyter-notebook"])
def test_the_url_has_a_token_that_only_the_user_can_see(bench: Bench, program: str) -> None:
    process = started(bench, "--", "--ServerApp.root_dir=/data", program=program)
    arguments = b"".join(bench.processes().values())
    process.send_signal(signal.SIGINT)
    code, out, _ = ended(process)
    url = URL.search(out)
    assert url is not None
    token = url[1]
    assert (bench.folder / "token").read_text() == f"{token}\n"
    assert arguments
    assert token.encode() not in arguments
    assert bench.one.stat().st_mode & 0o777 == 0o700
    assert token not in (bench.one / "plan.json").read_text() + (bench.one / "record.json").read_text()
    assert "tunnel" not in out
    options = (bench.folder / "options").read_text().split()
    assert options[:4] == ["--no-browser", "--allow-root", "--log-level=WARN", "--ip=127.0.0.1"]
    assert 20000 <= int(options[4].partition("--port=")[2]) < 32000
    assert options[5:] == ["--ServerApp.root_dir=/data"]
    assert code == 130
    assert bench.record()["exit"]["by"] == "user"
    assert not bench.orphans()


@pytest.mark.parametrize("bench", ["pbs"], indirect=True)
def test_on_a_node_of_pbs(bench: Bench) -> None:
    process = started(bench, "--port", "23456")
    process.send_signal(signal.SIGINT)
    code, out, error = ended(process)
    assert (code, error) == (130, "")
    assert URL.search(out)
    assert re.search(r"^tunnel    ssh -N -L 23456:127\.0\.0\.1:23456 \S+@\S+ ", out, re.MULTILINE)
    (attempt,) = bench.record()["attempts"]
    assert (attempt["job_id"], attempt["outcome"]) == ("1.login01", "cancelled by its user")
    assert not bench.orphans()


def test_over_ssh_the_tunnel_is_shown_to_the_address_that_the_user_has_reached(bench: Bench) -> None:
    process = started(bench, "--port", "23456", SSH_CONNECTION="192.0.2.7 50022 192.0.2.1 22")
    process.send_signal(signal.SIGINT)
    _, out, _ = ended(process)
    assert re.search(r"^tunnel    ssh -N -L 23456:127\.0\.0\.1:23456 \S+@192\.0\.2\.1 ", out, re.MULTILINE)
    assert "--port=23456" in (bench.folder / "options").read_text()


def test_an_image_without_jupyter(bench: Bench) -> None:
    code, out, _ = ended(bench.ctrain(*words(bench)))
    assert code == 127
    assert "ctrain: JupyterLab not found in the image. Add it in a user layer: " in out


def test_a_dry_run_shows_no_token(bench: Bench) -> None:
    code, out, _ = ended(bench.ctrain(*words(bench, "--dry-run")))
    assert code == 0
    assert "JUPYTER_TOKEN=***" in out
    assert not re.search(r"[0-9a-f]{48}", out)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--port", "0"), "--port must be between 1 and 65535, not 0"),
        (("--port", "65536"), "--port must be between 1 and 65535, not 65536"),
        (("--env", "JUPYTER_TOKEN=mine"), "--env: JUPYTER_TOKEN is made by ctrain. Remove it"),
        (("--env", "JUPYTER_TOKEN"), "--env: JUPYTER_TOKEN is made by ctrain. Remove it"),
    ],
)
def test_mistakes(options: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(RUNTIME_VERBS, ["jupyter", "pytorch", "--site", "local", *options]) == 64
    assert capsys.readouterr().err == f"ctrain: {complaint}\n"
