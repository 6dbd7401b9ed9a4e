"""The rules of a store: policy.yaml at its root, which its administrators write. Without it there are none.

Its commands (scanner, hooks) run as who changes the store: only a file of root's or of that user's own may name them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional, Union

from ctrain_runtime.base import config, strict_yaml
from ctrain_runtime.errors import ConfigError
from ctrain_runtime.store.store import TAG_RE, is_gone

Days = Union[int, float]
FILE = "policy.yaml"
ANY = "*"
EVENTS = (PUBLISH, PROMOTE, WITHDRAW) = ("publish", "promote", "withdraw")
SBOM = "{sbom}"  # in the scanner's command: the path of a version's package list


@dataclass(frozen=True)
class Gates:
    """What a version needs before a channel may point to it. `signed_by`: one of these keys; `base_max_age` and
    `scan_max_age` in days; `scan`: the scanner's last verdict is clean."""

    tests: bool = False
    signed_by: tuple[str, ...] = ()
    base_max_age: Optional[Days] = None
    scan: bool = False
    scan_max_age: Optional[Days] = None


@dataclass(frozen=True)
class Scanner:
    """`command`: argv with {sbom}; `clean` and `findings`: its exit codes that mean these. Any other is a failure."""

    command: tuple[str, ...]
    clean: tuple[int, ...]
    findings: tuple[int, ...]


@dataclass(frozen=True)
class Retention:
    """Which versions of an image stay offered, besides those that channels and jobs need: the `newest` of each tag and
    stack, all of the last `months`, and the last so many that each of the `channels` has pointed to."""

    newest: int = 0
    months: int = 0
    channels: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Mirror:
    """`source`: the directory of a store; `images`: NAME, NAME:VERSION or NAME:CHANNEL, () for all."""

    source: str
    images: tuple[str, ...] = ()


@dataclass(frozen=True)
class Policy:
    """`channels`: the gates of each channel, by its name, of all images. `retention`: by image; ANY is for others.
    `hooks`: argv by event."""

    channels: dict[str, Gates] = field(default_factory=dict)
    scanner: Optional[Scanner] = None
    retention: dict[str, Retention] = field(default_factory=dict)
    mirror: Optional[Mirror] = None
    hooks: dict[str, tuple[str, ...]] = field(default_factory=dict)


def load(root: Path) -> Policy:
    """The policy of the store at `root`. Raises ConfigError: a policy that cannot be read lets nothing pass."""
    path = root / FILE
    if is_gone(path):
        return Policy()
    policy = config.load(Policy, strict_yaml.read(path), str(path))
    for channel, gates in policy.channels.items():
        _check_gates(path, channel, gates)
        if gates.scan and policy.scanner is None:
            hint = f"Add: scanner: {{command: [grype, 'sbom:{SBOM}', --fail-on, high], clean: [0], findings: [2]}}"
            raise ConfigError(f"{path}: channels.{channel}: scan needs a scanner", hint)
    for name, rule in policy.retention.items():
        _check_retention(f"{path}: retention.{name}", rule)
    for event, argv in policy.hooks.items():
        if event not in EVENTS or not argv:
            what = f"{path}: hooks.{event} must be the command of one of {', '.join(EVENTS)}"
            raise ConfigError(what, "As in: publish: [/usr/local/bin/tell-users, --quietly]")
    if policy.scanner:
        _check_scanner(path, policy.scanner)
    return policy


def require_own(root: Path) -> None:
    """Raise ConfigError unless its commands may run as this user: others must not name them."""
    path = root / FILE
    owner = path.stat()
    if owner.st_uid not in (0, os.geteuid()) or owner.st_mode & 0o022:
        hint = f"chown it to root or yourself, and: chmod go-w {path}"
        raise ConfigError(f"no command of {path} is run: somebody else can write to it", hint)


def _check_gates(path: Path, channel: str, gates: Gates) -> None:
    where = f"{path}: channels.{channel}"
    if not TAG_RE.fullmatch(channel):
        raise ConfigError(f"{where}: {channel!r} is not a channel name", "Use letters, digits, '.' and '-'")
    for key in ("base_max_age", "scan_max_age"):
        days = getattr(gates, key)
        if days is not None and not 0 < days < float("inf"):
            raise ConfigError(f"{where}.{key} must be a positive number of days, not {days:g}")
    if gates.scan_max_age is not None and not gates.scan:
        raise ConfigError(f"{where}: scan_max_age without scan", "Add: scan: true")


def _check_retention(where: str, rule: Retention) -> None:
    counts = {"newest": rule.newest, "months": rule.months, **rule.channels}
    for key, count in counts.items():
        if count < 0:
            raise ConfigError(f"{where}: {key} must be a positive integer, not {count}")
    if not any(counts.values()):
        raise ConfigError(f"{where} keeps no version", "Add newest, months or channels, as in: {newest: 5, months: 3}")


def _check_scanner(path: Path, scanner: Scanner) -> None:
    if not scanner.command or not any(SBOM in word for word in scanner.command[1:]):
        hint = "As in: [grype, 'sbom:{sbom}', --fail-on, high]"
        raise ConfigError(f"{path}: scanner.command must have {SBOM}, the path of the package list", hint)
    if 0 in scanner.findings:
        hint = "Let the scanner end with another code when it has findings: trivy --exit-code 2, grype --fail-on high"
        raise ConfigError(f"{path}: scanner.findings must not have 0: it is every program's success", hint)
    if not scanner.clean or not scanner.findings:
        raise ConfigError(
            f"{path}: scanner needs exit codes for clean and findings", "As in: clean: [0], findings: [2]"
        )
    if both := set(scanner.clean) & set(scanner.findings):
        raise ConfigError(f"{path}: scanner: exit code {min(both)} is both clean and findings")
