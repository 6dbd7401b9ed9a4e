"""What the building machine lends a build: mirrors, certificates, proxies. Bound below /mnt, so that nothing stays.

A definition sources /mnt/build-env.sh, if it is there, as the first line of its %post.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Optional
from urllib.parse import unquote, urlsplit

from ctrain_builder.build_host import secrets
from ctrain_builder.build_host.secrets import BuildSecret
from ctrain_builder.definitions.lock_file import CONSTRAINTS
from ctrain_runtime.errors import ConfigError

INSIDE = "/mnt"
ENVIRONMENT = "build-env.sh"
_SECRETS = "secrets"
# A shell with -x, as that of %post, does not show what it sets here.
_UNTRACED = """\
{{ case $- in *x*) ctrain_trace=x ;; *) ctrain_trace= ;; esac; set +x; }} 2>/dev/null
{exports}if [ "$ctrain_trace" ]; then unset ctrain_trace; set -x; else unset ctrain_trace; fi
"""
_SYSTEM_BUNDLES = ("ssl/certs/ca-certificates.crt", "pki/tls/certs/ca-bundle.crt", "ssl/ca-bundle.pem")
_BUNDLE_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy")
# pip's settings that say where packages come from. The rest (caches, targets, user installs) concern the host only.
_PIP_INDEXES = ("index-url", "extra-index-url", "find-links")
_PIP_SOURCES = (*_PIP_INDEXES, "no-index", "trusted-host", "pypi-url")
_PIP_SETTINGS = (*_PIP_SOURCES, "timeout", "default-timeout", "retries")


@dataclass(frozen=True)
class BuildHost:
    """`package_dirs` are the machine's package directories, in the order of their mount points below /mnt/local."""

    pip: Mapping[str, str]
    package_dirs: tuple[Path, ...]
    bundle: Optional[Path]
    proxies: Mapping[str, str]
    mirror: str = ""
    build_secrets: tuple[BuildSecret, ...] = ()

    @property
    def binds(self) -> list[str]:
        local = (f"{directory}:{INSIDE}/local/{number}:ro" for number, directory in enumerate(self.package_dirs))
        return [*local, *(f"{one.path}:{INSIDE}/{_SECRETS}/{one.name}:ro" for one in self.build_secrets)]

    @property
    def secrets(self) -> tuple[str, ...]:
        own = (word for one in self.build_secrets for word in one.words)
        return (*own, *secrets.find([*self.proxies.values(), *self.pip.values(), self.mirror]))


def detect(environ: Mapping[str, str], etc: Path = Path("/etc")) -> BuildHost:
    """What this machine uses itself, from its pip, apt and proxy configuration."""
    directories: list[Path] = []
    of_pip = _pip_settings(environ, etc)
    settings = {key: of_pip[key] for key in _PIP_SETTINGS if key in of_pip}
    for key in _PIP_INDEXES:
        if key in settings:
            words = (_bound(word, key == "find-links", directories) for word in settings[key].split())
            settings[key] = " ".join(words)
    named = [environ[name] for name in _BUNDLE_VARIABLES if environ.get(name)] + [of_pip.get("cert", "")]
    bundles = [Path(name) for name in named if name] + [etc / name for name in _SYSTEM_BUNDLES]
    bundle = next((path for path in bundles if path.is_file()), None)
    proxies = {
        name: value for name in _PROXY_VARIABLES if (value := environ.get(name) or environ.get(name.upper(), ""))
    }
    return BuildHost(settings, tuple(directories), bundle, proxies, debian_mirror(etc))


def write(host: BuildHost, directory: Path, constraints: str = "") -> None:
    """Fill the directory that is bound at /mnt. `constraints`: of pip's packages; "" for none."""
    environment = {**host.proxies, **{name.upper(): value for name, value in host.proxies.items()}}
    # With this name pip reads no files at all. Those of an image may name an index that is gone: pip would retry it.
    environment["PIP_CONFIG_FILE"] = os.devnull
    environment.update({_variable(key): value for key, value in host.pip.items()})
    environment["PYTHONHASHSEED"] = "0"  # sets that get into files have the same order each time
    if host.bundle:
        shutil.copyfile(host.bundle, directory / "ca-bundle.crt")
        environment.update(dict.fromkeys(_BUNDLE_VARIABLES, f"{INSIDE}/ca-bundle.crt"))
    for number in range(len(host.package_dirs)):
        (directory / "local" / str(number)).mkdir(parents=True)
    for one in host.build_secrets:
        (directory / _SECRETS).mkdir(exist_ok=True)
        (directory / _SECRETS / one.name).touch()
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    unset = f"unset {' '.join(map(_variable, _PIP_SOURCES))}\n"  # those of an image
    if constraints:
        (directory / CONSTRAINTS).write_text(constraints, encoding="utf-8")
        both = f"${{PIP_CONSTRAINT:+$PIP_CONSTRAINT }}{INSIDE}/{CONSTRAINTS}"  # an image may have its own
        exports += f'export PIP_CONSTRAINT="{both}"\n'
    (directory / ENVIRONMENT).write_text(_UNTRACED.format(exports=unset + exports), encoding="utf-8")


def _variable(key: str) -> str:
    """The variable by which pip gets a setting."""
    return f"PIP_{key.upper().replace('-', '_')}"


def _pip_settings(environ: Mapping[str, str], etc: Path) -> dict[str, str]:
    """pip's settings as pip itself would see them: system, user and named files, then PIP_* variables."""
    home = Path(environ.get("HOME", "/root"))
    config_home = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    paths = [etc / "xdg/pip/pip.conf", etc / "pip.conf", home / ".pip/pip.conf", config_home / "pip/pip.conf"]
    if environ.get("PIP_CONFIG_FILE", os.devnull) != os.devnull:
        paths.append(Path(environ["PIP_CONFIG_FILE"]))
    parser = configparser.RawConfigParser()
    try:
        parser.read(paths, encoding="utf-8")
    except configparser.Error as error:
        raise ConfigError(f"pip's configuration is damaged: {' '.join(str(error).split())}") from error
    settings: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            settings.update({key.replace("_", "-"): value for key, value in parser.items(section)})
    prefix = "PIP_"
    settings.update(
        {
            name[len(prefix) :].lower().replace("_", "-"): value
            for name, value in environ.items()
            if name.startswith(prefix)
        }
    )
    return settings


def _bound(word: str, links: bool, directories: list[Path]) -> str:
    """A package location as the build will see it; a local directory is added to `directories`."""
    parts = urlsplit(word)
    path = Path(unquote(parts.path))
    if parts.scheme not in ("", "file") or not path.is_absolute() or not path.exists():
        return word
    # The pages of an index link to files beside it (../../files/...), so the directory above is bound.
    shared = path if links and path.is_dir() else path.parent
    if shared not in directories:
        directories.append(shared)
    inside = f"file://{INSIDE}/local/{directories.index(shared)}"
    return inside if shared == path else f"{inside}/{path.name}"


def debian_mirror(etc: Path) -> str:
    """The mirror of Debian's main archive that this machine's apt uses; "" when this is no Debian or there is none."""
    release = etc / "os-release"
    facts = (
        dict(line.split("=", 1) for line in release.read_text().splitlines() if "=" in line)
        if release.is_file()
        else {}
    )
    suite = facts.get("VERSION_CODENAME", "").strip('"')
    if facts.get("ID", "").strip('"') != "debian" or not suite:
        return ""
    for uri, suites, components in _apt_sources(etc / "apt"):
        if uri.startswith("http") and suite in suites and "main" in components:
            return uri.rstrip("/")
    return ""


def _apt_sources(apt: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """(URI, suites, components) of every package source, in both of apt's formats."""
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]:
        if path.suffix == ".list" and path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                words = re.sub(r"\[[^]]*\]", "", line.split("#")[0]).split()
                if len(words) > 3 and words[0] == "deb":
                    yield words[1], [words[2]], words[3:]
        elif path.suffix == ".sources" and path.is_file():
            text = re.sub(r"(?m)^#.*\n?", "", path.read_text(encoding="utf-8"))
            for stanza in re.split(r"\n\s*\n", text):
                yield from _deb822(stanza)


def _deb822(stanza: str) -> Iterator[tuple[str, list[str], list[str]]]:
    fields = {key.lower(): value.split() for key, value in re.findall(r"(?m)^([\w-]+):((?:.*(?:\n[ \t].*)*))", stanza)}
    if "deb" in fields.get("types", []) and fields.get("enabled", ["yes"]) != ["no"]:
        for uri in fields.get("uris", []):
            yield uri, fields.get("suites", []), fields.get("components", [])
