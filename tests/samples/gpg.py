"""A key that gpg and its agent know."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def admin(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[str]:
    """The key of admin@example.org: its fingerprint. The engine knows its public part from a key ring in `folder`."""
    with tempfile.TemporaryDirectory() as home:  # a short path: the agent's socket is in it
        monkeypatch.setenv("GNUPGHOME", home)
        monkeypatch.setenv("APPTAINER_KEYSDIR", str(folder / "keyring"))
        _run("gpg", "--passphrase", "", "--quick-generate-key", "Admin <admin@example.org>", "ed25519", "sign")
        (folder / "admin.asc").write_bytes(_run("gpg", "--export"))
        subprocess.run(["apptainer", "key", "import", str(folder / "admin.asc")], check=True, capture_output=True)
        told = _run("gpg", "--with-colons", "--list-keys").decode()
        try:
            yield next(line.split(":")[9] for line in told.splitlines() if line.startswith("fpr:"))
        finally:
            subprocess.run(["gpgconf", "--kill", "gpg-agent"], check=True, env={**os.environ, "GNUPGHOME": home})


def _run(program: str, *argv: str) -> bytes:
    return subprocess.run([program, "--batch", "--quiet", *argv], check=True, capture_output=True).stdout
