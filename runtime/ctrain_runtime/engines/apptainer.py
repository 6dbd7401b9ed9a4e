"""Apptainer and Singularity, 3.9 to 4.x: the argv of `exec`, and the environment of the container."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ctrain_runtime.base import command
from ctrain_runtime.base.bash import LINE_LENGTH, exports, quote_argv
from ctrain_runtime.errors import CtrainError, EngineError

HOME = "/home/ctrain"  # inside; a private directory of the node
NO_EVAL_SINCE = {"apptainer": (1, 1), "singularity": (3, 10)}
OCI_MODE_SINCE = (4, 0)  # of SingularityCE; Apptainer has none
PEM_KEYS_SINCE = (3, 11)  # of SingularityCE: `verify --key`

# Settings of the engine: in a caller's shell they would add binds, variables and options that the plan lacks.
# Apptainer reads both families of names (its documentation, "Environment and Metadata").
CALLER_PREFIXES = ("APPTAINER", "SINGULARITY")
# Read by every bash and loader that starts on the way into the container.
CALLER_VARIABLES = ("BASH_ENV", "ENV", "LD_LIBRARY_PATH", "LD_PRELOAD")


@dataclass(frozen=True)
class Engine:
    """A container engine: its kind (apptainer or singularity), absolute path and version. `fakeroot`: without that
    option it starts nothing here."""

    name: str
    path: str
    version: str
    fakeroot: bool = False


def find_engine() -> Engine:
    """The engine on PATH; Apptainer, if both are. Raises EngineError."""
    for name in ("apptainer", "singularity"):
        path = command.which(name)
        if path:
            return engine_at(path)
    raise EngineError(
        "neither apptainer nor singularity is on PATH",
        "Run: module load apptainer, or module load singularity; or install Apptainer: ctrain help installing",
    )


def find_building_engine() -> Engine:
    """The engine that builds here. Raises EngineError: SingularityCE runs images, and mounts no overlay with --fakeroot
    (seen with 4.5.1)."""
    engine = find_engine()
    if builds(engine):
        return engine
    raise EngineError(
        f"builds need Apptainer, and here is {engine.name} {engine.version} ({engine.path}), which only runs images",
        "Install Apptainer beside it (ctrain help installing); or build elsewhere, and copy by: ctrain store sync",
    )


def builds(engine: Engine) -> bool:
    """Whether it makes images and user layers."""
    return engine.name == "apptainer"


def engine_at(path: str) -> Engine:
    """The engine at `path`. Raises EngineError if it does not work."""
    return read_banner(path, _version(path))


def read_banner(path: str, banner: str) -> Engine:
    """The engine at `path` by what it prints as its version."""
    number = re.search(r"\d+(?:\.\d+)+", banner)
    # A site's `singularity` may be a link to Apptainer: its variables are then called APPTAINERENV_.
    kind = "apptainer" if "apptainer" in banner else "singularity"
    return Engine(kind, path, number.group() if number else banner.strip())


def _version(path: str) -> str:
    try:
        return command.run([path, "--version"]).stdout
    except CtrainError as error:
        raise EngineError(f"{path} does not work here: {error.message}") from error


def exec_argv(
    engine: Engine,
    *,
    workdir: str = "",
    as_root: bool = False,
    cuda: bool = False,
    rocm: bool = False,
    unmounted: str = "cwd",
    binds: Iterable[str] = (),
    overlays: Iterable[str] = (),
) -> list[str]:
    """`apptainer exec OPTIONS`, without the image and the command. A later overlay lies above an earlier one.

    `unmounted` are mounts of the engine's configuration that are left out. `cuda` and `rocm` mount the node's driver
    libraries of NVIDIA's and AMD's GPUs; Intel's are in the image.
    """
    argv = [engine.path, "--quiet", "exec", "--cleanenv", "--no-mount", unmounted]
    if workdir:
        argv += ["--pwd", workdir]
    argv += [*no_oci(engine), *no_eval(engine)]
    if engine.fakeroot:
        argv.append("--fakeroot")
    if as_root:
        argv.append("--userns")  # root in a restricted machine may lack capabilities that a plain exec asks for
    argv += [*(["--nv"] if cuda else []), *(["--rocm"] if rocm else [])]
    for bind in binds:
        argv += ["--bind", bind]
    for overlay in overlays:
        argv += ["--overlay", f"{overlay}:ro"]
    return argv


def isolated_exec_argv(engine: Engine, *, as_root: bool) -> list[str]:
    """`apptainer exec OPTIONS` for an image that nobody trusts: without network, and without files of the host.

    --containall also leaves out the `bind path` entries of the engine's configuration. Of networks, `none` alone is
    allowed to every user (Apptainer's documentation, "Bind Paths and Mounts" and "Network virtualization").
    """
    return [*exec_argv(engine, as_root=as_root), "--containall", "--net", "--network", "none"]


def pull_argv(engine: Engine, reference: str, image: Path) -> list[str]:
    """The command that pulls `reference` into a file, past the engine's own cache: the image would be stored twice."""
    return [engine.path, "pull", *no_oci(engine), "--disable-cache", str(image), reference]


def last_error(output: str) -> str:
    """The last line that an engine wrote, without its level, for use in an error message; "" if it wrote none."""
    line = next((line for line in reversed(output.splitlines()) if line.strip()), "")
    return "".join(filter(str.isprintable, re.sub(r"^\s*(FATAL|ERROR):\s*", "", line)))[-400:]


def clean_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without variables that would change the container, for engines that ctrain itself starts."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(CALLER_PREFIXES) and name not in CALLER_VARIABLES
    }


def container_environment(
    engine: Engine, fixed: Mapping[str, str], passed: Iterable[str], passed_prefixes: Iterable[str]
) -> list[str]:
    """Lines of bash that set the environment of the container: `fixed`, and what of `passed` is set on the node."""
    family = environment_prefix(engine)
    names = [*(f'"${{!{prefix}@}}"' for prefix in passed_prefixes), *map(shlex.quote, passed)]
    lines = textwrap.wrap(
        " ".join(["pass_variables", family, *names]), LINE_LENGTH, break_long_words=False, break_on_hyphens=False
    )
    return [" \\\n  ".join(lines), exports({f"{family}{name}": value for name, value in fixed.items()})]


def environment_prefix(engine: Engine) -> str:
    """What begins the names of variables by which the engine sets those of the container."""
    return f"{engine.name.upper()}ENV_"


def load_modules(engine: Engine, modules: Iterable[str]) -> list[str]:
    """The line of bash that puts the engine on PATH by a site's modules, if it is not; none without modules."""
    return [f"load_modules {quote_argv([engine.path, *modules])}"] if modules else []


def no_eval(engine: Engine) -> list[str]:
    """The option without which a $ in the value of a variable is expanded, or run, by a shell inside; none before."""
    return ["--no-eval"] if _numbers(engine) >= NO_EVAL_SINCE[engine.name] else []


def no_oci(engine: Engine) -> list[str]:
    """The option without which SingularityCE pulls images of another format, and mounts no layers, where its
    configuration has `oci mode = yes`."""
    return ["--no-oci"] if engine.name == "singularity" and _numbers(engine) >= OCI_MODE_SINCE else []


def verifies_pem_keys(engine: Engine) -> bool:
    return engine.name != "singularity" or _numbers(engine) >= PEM_KEYS_SINCE


def _numbers(engine: Engine) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", engine.version)[:2])
