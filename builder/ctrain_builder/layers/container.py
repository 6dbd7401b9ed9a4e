"""How the builder runs the container engine: one argv for all that runs inside an image, one way to run it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ctrain_builder.build_host import secrets
from ctrain_runtime.base import command
from ctrain_runtime.engines.apptainer import Engine, no_eval
from ctrain_runtime.errors import BuildError, DiskFullError, EngineError

# Variables of the engine's own that may say where things come from; all others would change what a build sees.
_KEPT = (
    *("CACHEDIR", "CONFIGDIR", "DISABLE_CACHE"),
    *("DOCKER_USERNAME", "DOCKER_PASSWORD", "DOCKER_HOST", "AUTH_FILE", "NOHTTPS", "NO_HTTPS"),
)
_PREFIXES = ("APPTAINER_", "SINGULARITY_")
# Root's own user ID is root's in a container, too, and may write to these of the kernel's. /sys/fs stays out: cgroups.
_SHOWN = (
    *("/etc/hosts", "/sys/bus", "/sys/class", "/sys/devices"),
    *("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"),
)
NO_MOUNTS = Path(__file__).with_name("no-mounts.json")  # root of a container could mount again, writable
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")
_NO_SECCOMP = re.compile(r"seccomp.*not enabled")
_NO_SUBORDINATE_IDS = re.compile(r"no mapping entry found in /etc/sub[ug]id for (\S+)")
# Only what isn't root's yet: chown takes set-id bits (put back here) and file capabilities from all that it touches.
_CHANGE_OWNER = """\
find /mnt/* \\( ! -user 0 -o ! -group 0 \\) -type f -perm /6000 -exec sh -c '
    for file; do mode=$(stat -c %a "$file"); chown 0:0 "$file"; chmod "$mode" "$file"; done' sh {} +
find /mnt/* \\( ! -user 0 -o ! -group 0 \\) -exec chown -h 0:0 {} +
"""


class CommandFailed(Exception):
    """A command ended with `code`, which is not 0; its output is in `log`."""

    def __init__(self, code: int, log: Path) -> None:
        super().__init__(f"exit code {code}")
        self.code = code
        self.log = log


@dataclass(frozen=True)
class LowerLayers:
    """What a layer is made on: the base image, and the layer files on it, lowest first."""

    base: Path
    layers: tuple[Path, ...] = ()

    @property
    def overlays(self) -> list[str]:
        return [f"{layer}:ro" for layer in self.layers]


@dataclass(frozen=True)
class Container:
    """The engine, and the work directory that its temporary files go to. Its logs don't show `secrets`."""

    engine: Engine
    work: Path
    tick: Callable[[], None]
    root: bool = field(default_factory=lambda: os.geteuid() == 0)
    secrets: tuple[str, ...] = ()

    @property
    def downloads(self) -> Path:
        """The engine's cache, unless the caller has named one."""
        return self.work / "downloads"

    @property
    def overlay(self) -> Path:
        """The directory of a writable overlay."""
        return self.work / "overlay"

    @property
    def overlay_directories(self) -> list[Path]:
        """What an engine writes to: the upper directory, and one for its own use."""
        return [self.overlay / "upper", self.overlay / "work"]

    def new_overlay(self) -> Path:
        """Make them. The upper directory."""
        for directory in self.overlay_directories:
            directory.mkdir(parents=True)
        return self.overlay / "upper"

    def argv(
        self,
        action: str,
        image: Path,
        *,
        overlays: Sequence[str] = (),
        binds: Sequence[str] = (),
        as_root: bool = False,
        gpu: bool = False,
        writable: bool = False,
        hostname: str = "localhost",
        is_engine: bool = False,
    ) -> list[str]:
        """`apptainer ACTION OPTIONS IMAGE`; a command may follow. `as_root`: as the root user of a user namespace.
        `is_engine`: the command is an engine, which mounts, and gets variables as they are.

        --pid: when the container ends, so does everything that was started in it.
        --hostname: a result must not depend on the machine's name, and Horovod's Gloo dies of a segmentation fault
        where that name can't be resolved (horovod issue 2852).
        --contain, --no-mount: of the host's files it sees `binds` and _SHOWN, which it can't make writable again.
        """
        argv = [self.engine.path, "--quiet", action, "--pid", "--cleanenv", "--pwd", "/"]
        argv += ["--hostname", hostname] if hostname else []
        argv += ["--contain", "--no-mount", "home,cwd,tmp,sys,bind-paths"]
        argv += no_eval(self.engine) if is_engine else ["--security", f"seccomp:{NO_MOUNTS}"]
        if as_root:
            argv.append("--fakeroot")
        elif self.root:
            argv.append("--userns")  # root of a restricted machine may lack capabilities that a plain exec asks for
        if gpu:
            argv.append("--nv")
        if writable:
            argv.append("--writable")
        taken = {bind.split(":")[1] for bind in binds}
        shown = (path for path in _SHOWN if path not in taken and Path(path).exists())
        for bind in (*(f"{path}:{path}:ro" for path in shown), *binds):
            argv += ["--bind", bind]
        for overlay in overlays:
            argv += ["--overlay", overlay]
        return [*argv, str(image)]

    def run(
        self,
        argv: Sequence[str],
        log: Path,
        cwd: Path = Path("/"),
        variables: Mapping[str, str] = {},
    ) -> None:
        """Run to the end with `variables` besides the environment; the command and its output go to `log`.

        Raises CommandFailed, or the cause that the log gives: DiskFullError, EngineError.
        """
        with open(log, "a", encoding="utf-8", opener=_private) as file:
            start = file.tell()
            file.write(f"$ {shlex.join(argv)}\n")
        try:
            env = {**self.environment(), **variables}
            code = command.run_logged(argv, log, env=env, cwd=cwd, tick=self.tick)
        finally:
            if self.secrets:
                secrets.mask_file(log, self.secrets, start)
        if code == 0:
            return
        output = "\n".join(last_lines(log, 50))
        unmapped = _NO_SUBORDINATE_IDS.search(output)
        if unmapped:
            hint = f"Add some: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {unmapped[1]}"
            raise EngineError(f"user {unmapped[1]} has no subordinate user IDs, which {self.engine.name} needs", hint)
        if _NO_SECCOMP.search(output):
            hint = "Build with an engine that has it, as packages of distributions do"
            raise EngineError(f"{self.engine.path} has no seccomp, which keeps definitions off the host's files", hint)
        if _NO_SPACE.search(output):
            free = shutil.disk_usage(self.work).free
            what = f"a disk became full ({free / 1e9:.1f} GB are free in {self.work}); the log is {log}"
            raise DiskFullError(what, "Free disk space, or pass --cache DIR")
        raise CommandFailed(code, log)

    def require(self, argv: Sequence[str], log: Path, what: str, variables: Mapping[str, str] = {}) -> None:
        """As `run`, for what fails only if something is wrong here: `what` is then the error. Raises BuildError."""
        try:
            self.run(argv, log, variables=variables)
        except CommandFailed as error:
            raise BuildError(f"{what} (exit code {error.code})", f"Log: {log}") from error

    def output(self, argv: Sequence[str], timeout: float = 120) -> str:
        """What a command prints that takes less than `timeout` seconds."""
        return command.run(argv, env=self.environment(), cwd=Path("/"), timeout=timeout).stdout

    def environment(self) -> dict[str, str]:
        """The caller's environment, with the engine's own variables under control."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("APPTAINER", "SINGULARITY"))}
        for prefix in _PREFIXES:
            own.update({prefix + name: os.environ[prefix + name] for name in _KEPT if prefix + name in os.environ})
            own[prefix + "TMPDIR"] = str(self.work)
        if not any(f"{prefix}CACHEDIR" in own for prefix in _PREFIXES):  # else it would be in the home directory
            own.update({f"{prefix}CACHEDIR": str(self.downloads) for prefix in _PREFIXES})
        return own

    def take_ownership(self, image: Path, directories: Sequence[Path], log: Path) -> None:
        """Make this user the owner of all that a build left in `directories`: an ordinary user's %post makes files that
        belong to subordinate user IDs, which he can neither read nor remove from outside.

        The programs that do it are the image's. They see no directory around these, so they can't put a link there.
        """
        if self.root:
            return
        binds = [f"{directory}:/mnt/{number}" for number, directory in enumerate(directories)]
        argv = [*self.argv("exec", image, binds=binds, as_root=True), "/bin/sh", "-ec", _CHANGE_OWNER]
        self.require(argv, log, f"cannot change the owner of the files that a build left in {self.work}")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def last_lines(log: Path, count: int, read_bytes: int = 20_000) -> list[str]:
    """The last lines of a log that say something, fit for a terminal: without control characters, and without logins in
    addresses, as the log of a running command may still have some."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - read_bytes))
        text = secrets.mask_logins(file.read().decode("utf-8", "replace").replace("\r", "\n"))
    lines = (_CONTROL.sub("", line) for line in text.split("\n"))
    return [line for line in lines if line.strip()][-count:]
