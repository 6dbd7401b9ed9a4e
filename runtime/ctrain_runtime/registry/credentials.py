"""Who we are to a registry: what `apptainer registry login` and `docker login` have left on this machine.

Nothing here is ever printed, and each login is for one host only.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from ctrain_runtime.base import command
from ctrain_runtime.errors import ConfigError, CtrainError

TOKEN = "<token>"  # noqa: S105  # what credential helpers say instead of a name, when the secret is an identity token
_HUB = frozenset(("docker.io", "index.docker.io", "registry-1.docker.io"))
_HUB_KEY = "https://index.docker.io/v1/"


@dataclass(frozen=True)
class Login:
    """A name and a password, or TOKEN and an identity token."""

    name: str
    secret: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The value of a header Authorization."""
        return "Basic " + base64.b64encode(f"{self.name}:{self.secret}".encode()).decode()


def find(host: str, environ: Mapping[str, str]) -> Optional[Login]:
    """The login for a registry's host, from the environment or else the first file that has one. Raises ConfigError."""
    for engine in ("APPTAINER", "SINGULARITY"):
        name, secret = (environ.get(f"{engine}_DOCKER_{part}") for part in ("USERNAME", "PASSWORD"))
        if name and secret:
            return Login(name, secret)
    return next((login for path in _files(environ) if (login := _of_file(path, host))), None)


def _files(environ: Mapping[str, str]) -> list[Path]:
    """In the order in which Apptainer looks; it writes what is not there yet into Docker's file."""
    home = Path(environ.get("HOME", "/"))
    own = environ.get("APPTAINER_CONFIGDIR") or environ.get("SINGULARITY_CONFIGDIR")
    docker = environ.get("DOCKER_CONFIG")
    return [
        *([Path(own) / "docker-config.json", Path(own) / "config.json"] if own else []),
        home / ".apptainer/docker-config.json",
        (Path(docker) if docker else home / ".docker") / "config.json",
        home / ".singularity/docker-config.json",
    ]


def _of_file(path: Path, host: str) -> Optional[Login]:
    names = _HUB if host in _HUB else {host}
    server = _HUB_KEY if host in _HUB else host
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        helpers = {_host(key): name for key, name in data.get("credHelpers", {}).items()}
        helper = next((helpers[name] for name in names if name in helpers), data.get("credsStore"))
        entries = [entry for key, entry in data.get("auths", {}).items() if _host(key) in names]
        kept = next((login for entry in entries if (login := _of_entry(entry))), None)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error
    except (ValueError, AttributeError, TypeError):  # the cause would show what the file holds
        hint = f"Repair it, or log in again: apptainer registry login docker://{host}"
        raise ConfigError(f"{path} is not a valid file of logins", hint) from None
    return (_of_helper(str(helper), server, path) if helper else None) or kept


def _host(key: str) -> str:
    """The host of a key, which may also be an address: https://index.docker.io/v1/."""
    return key.split("://")[-1].split("/")[0]


def _of_entry(entry: Mapping[str, Any]) -> Optional[Login]:
    if token := entry.get("identitytoken"):
        return Login(TOKEN, str(token))
    name, _, secret = base64.b64decode(entry.get("auth", ""), validate=True).decode().partition(":")
    return Login(name, secret) if name and secret else None


def _of_helper(name: str, server: str, path: Path) -> Optional[Login]:
    """Ask the program docker-credential-NAME, which keeps logins in a key ring."""
    program = f"docker-credential-{name}"
    try:
        completed = command.run([program, "get"], stdin=server, check=False)
        if completed.code:
            if "not found" in completed.stdout:
                return None
            raise CtrainError(f"{program} failed: {completed.last_error_line()}")
        answer = json.loads(completed.stdout)
        return Login(str(answer["Username"]), str(answer["Secret"]))
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{program} does not answer with a login for {server}", f"{path} names it") from None
    except CtrainError as error:
        raise ConfigError(error.message, f"{path} names it: repair it there, or install it") from error
