"""`ctrain jupyter` on a real node: the real JupyterLab, in a real browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from samples.cluster import Cluster, until
from samples.kept import kept

TUNNEL = re.compile(r"tunnel    ssh -N -L ([0-9]+):(node[0-9]+):([0-9]+) researcher@192\.0\.2\.1 ")
URL = re.compile(r"notebook  (http://127\.0\.0\.1:([0-9]+)/\?token=[0-9a-f]{48})\n")
REQUIREMENTS = "jupyterlab\n"
SLOW_MS = 120_000  # for the first page of a new server, and for a kernel, on a busy machine


@pytest.fixture
def chromium() -> str:
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if not program:
        if os.environ.get("CI"):
            pytest.fail("CI must have Chromium: see tests/cluster/install")
        pytest.skip("no Chromium here: tests/cluster/install brings it")
    return program


@pytest.fixture
def folder(cluster: Cluster) -> Path:
    """A directory of the researcher's with lab.sqsh, a user layer with JupyterLab."""
    folder = cluster.write("lab/requirements.txt", REQUIREMENTS).parent
    lab = folder / "lab.sqsh"

    def make(path: Path) -> None:
        argv = ["ctrain", "layer", "build", "requirements.txt", "--on", "pytorch-cpu", "-o", lab.name]
        settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        made = cluster.run(*argv, cwd=folder, **settings)
        assert made.returncode == 0, made.stdout + made.stderr
        shutil.move(lab, path)

    shutil.copyfile(kept("lab.sqsh", f"{cluster.digest} {REQUIREMENTS}", make), lab)
    shutil.chown(lab, "researcher", "researcher")
    return folder


def test_a_notebook_on_a_node_in_a_browser(cluster: Cluster, folder: Path, chromium: str) -> None:
    run = cluster.runs("lab")
    where = ["--gpus-per-node", "1", "--runs", str(run.parent), "--name", run.name]
    argv = ["ctrain", "jupyter", "pytorch-cpu", "--layer", "lab.sqsh", *where]
    started = cluster.start(*argv, cwd=folder, SSH_CONNECTION="192.0.2.7 50022 192.0.2.1 22")
    log = run / "logs/rank0.log"
    until(lambda: log.exists() and URL.search(log.read_text()) is not None, "the URL")
    ((url, port),) = URL.findall(log.read_text())
    ((near, node, far),) = TUNNEL.findall(log.read_text())
    assert near == far == port
    address = cluster.run("getent", "ahostsv4", node).stdout.split()[0]
    job = json.loads((run / "record.json").read_text())["attempts"][0]["job_id"]
    listening = cluster.run("srun", "--overlap", f"--jobid={job}", "cat", "/proc/net/tcp").stdout
    bound = re.findall(rf": ([0-9A-F]{{8}}):{int(port):04X} 00000000:0000 0A", listening)
    assert bound == [socket.inet_aton(address)[::-1].hex().upper()], "the node's own address, not all"
    browse(chromium, url, f"MAP 127.0.0.1:{port} {address}:{port}")
    started.send_signal(signal.SIGINT)
    out, _ = started.communicate(timeout=90)
    assert url in out
    until(lambda: cluster.run("squeue", "--me", "--noheader", "--states=RUNNING").stdout == "", "the end of the job")


def browse(chromium: str, url: str, tunnel: str) -> None:
    """Run a cell in a new notebook; `tunnel` is the browser's rule in the place of ssh's tunnel."""
    options = [f"--host-resolver-rules={tunnel}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        expect.set_options(timeout=SLOW_MS)
        browser = playwright.chromium.launch(executable_path=chromium, args=options)
        stranger = browser.new_page()
        stranger.goto(url.partition("?")[0], timeout=SLOW_MS)
        expect(stranger).to_have_title("Jupyter Server")  # asks for the token
        page = browser.new_page()
        page.set_default_timeout(SLOW_MS)
        page.goto(url)
        page.locator(".jp-LauncherCard[data-category=Notebook]").first.click()
        page.locator(".jp-Notebook .cm-content").first.click()
        page.keyboard.insert_text("import os, torch; print('rank', os.environ['RANK'], torch.ones(6).sum().item() * 7)")
        # JupyterLab runs no cell as long as its kernel starts.
        expect(page.get_by_role("button", name="Python 3 (ipykernel) | Idle")).to_be_visible()
        page.keyboard.press("Shift+Enter")
        expect(page.locator(".jp-OutputArea-output").first).to_have_text("rank 0 42.0\n")
        browser.close()
