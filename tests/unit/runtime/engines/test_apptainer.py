from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from ctrain_runtime import payload
from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.engines import apptainer
from ctrain_runtime.engines.apptainer import Engine, find_building_engine, find_engine, load_modules
from ctrain_runtime.errors import EngineError
from samples.plans import ENGINE
from samples.programs import SYSTEM, answer, write_program

LIBRARY = f"run=/nowhere\n{payload.text('ctrain.bash')}"


def test_the_argv_of_exec() -> None:
    assert apptainer.exec_argv(ENGINE, workdir="/work dir", cuda=True, binds=["/a:/b:ro", "/c"]) == [
        *("/usr/bin/apptainer", "--quiet", "exec", "--cleanenv", "--no-mount", "cwd"),
        *("--pwd", "/work dir", "--no-eval", "--nv", "--bind", "/a:/b:ro", "--bind", "/c"),
    ]


@pytest.mark.parametrize(
    ("name", "version", "has_it"),
    [
        ("apptainer", "1.0.3", False),
        ("apptainer", "1.1.0", True),
        ("apptainer", "1.10.0", True),
        ("singularity", "3.9.7", False),
        ("singularity", "3.11.0", True),
        ("singularity", "4.5.1", True),
        ("apptainer", "apptainer version unknown", False),
    ],
)
def test_engines_older_than_no_eval_are_not_given_it(name: str, version: str, has_it: bool) -> None:
    assert ("--no-eval" in apptainer.exec_argv(Engine(name, "/usr/bin/engine", version))) is has_it


@pytest.mark.parametrize(
    ("engine", "has_it"),
    [
        (Engine("singularity", "/usr/bin/singularity", "3.11.5"), False),
        (Engine("singularity", "/usr/bin/singularity", "4.0.0"), True),
        (Engine("singularity", "/usr/bin/singularity", "unknown"), False),
        (ENGINE, False),
    ],
)
def test_singularity_is_kept_from_oci_mode(engine: Engine, has_it: bool) -> None:
    """Its sources have --no-oci in exec and pull since 4.0.0, and `oci mode` in singularity.conf."""
    for argv in (apptainer.exec_argv(engine), apptainer.pull_argv(engine, "docker://a", Path("/a.sif"))):
        assert ("--no-oci" in argv) is has_it


def test_nv_and_userns_only_when_asked_for() -> None:
    assert not {"--nv", "--rocm", "--userns", "--pwd"} & set(apptainer.exec_argv(ENGINE))
    assert "--userns" in apptainer.exec_argv(ENGINE, as_root=True)


def test_overlays_keep_their_order_and_are_read_only() -> None:
    argv = apptainer.exec_argv(ENGINE, overlays=["/a.sif", "/b.sqsh"])
    assert argv[-4:] == ["--overlay", "/a.sif:ro", "--overlay", "/b.sqsh:ro"]


@pytest.mark.parametrize(
    ("program", "banner", "name", "version"),
    [
        ("apptainer", "apptainer version 1.4.5\n", "apptainer", "1.4.5"),
        ("apptainer", "apptainer version 1.3.6-1.el9\n", "apptainer", "1.3.6"),
        ("singularity", "singularity version 3.8.7-1.el8\n", "singularity", "3.8.7"),
        ("singularity", "singularity-ce version 4.1.5-jammy\n", "singularity", "4.1.5"),
        ("singularity", "singularity-ce version 4.5.1\n", "singularity", "4.5.1"),  # recorded
        ("singularity", "apptainer version 1.4.5\n", "apptainer", "1.4.5"),  # a link, as upstream packages make it
        ("apptainer", "apptainer version unknown\n", "apptainer", "apptainer version unknown"),
    ],
)
def test_the_engine_on_path(programs: Path, program: str, banner: str, name: str, version: str) -> None:
    answer(programs, program, banner)
    assert find_engine() == Engine(name, str(programs / program), version)


def test_apptainer_comes_before_singularity(programs: Path) -> None:
    answer(programs, "singularity", "singularity version 3.8.7\n")
    answer(programs, "apptainer", "apptainer version 1.4.5\n")
    assert find_engine().name == "apptainer"


def test_apptainer_alone_builds(programs: Path) -> None:
    answer(programs, "singularity", "singularity-ce version 4.5.1\n")
    complaint = r"builds need Apptainer, and here is singularity 4\.5\.1 .*, which only runs images\. Install Apptainer"
    with pytest.raises(EngineError, match=complaint):
        find_building_engine()
    answer(programs, "apptainer", "apptainer version 1.4.5\n")
    assert find_building_engine() == find_engine()


@pytest.mark.usefixtures("programs")
def test_no_engine() -> None:
    with pytest.raises(EngineError, match=r"neither apptainer nor singularity is on PATH. Run: module load apptainer"):
        find_engine()


@pytest.mark.parametrize(
    "profile", ["unset BASH_ENV; echo Welcome; {}", "export BASH_ENV=$HOME/init; echo '{}' >\"$HOME/init\""]
)
def test_modules_load_the_engine_unless_it_is_on_path(tmp_path: Path, profile: str) -> None:
    """The function `module` is that of a login shell; paths and names with special characters stay words.

    A login shell reads BASH_ENV last, if it runs a command: the profile of an installed Lmod sets it, and so defines
    `module` again.
    """
    script = load_modules(Engine("apptainer", "our engine", "1.4.1"), ("/soft/module files", "a$(touch pwned);b"))
    module = 'module() { printf "%s\\n" "$*" >>"$HOME/calls"; PATH=$PATH:$HOME/engines; }'
    (tmp_path / ".bash_profile").write_text(profile.format(module) + "\n")
    answer(tmp_path / "engines", "our engine", "started")
    loaded = ["use /soft/module files", "load a$(touch pwned);b"]
    for path, calls in ((SYSTEM, loaded), (f"{tmp_path}/engines:{SYSTEM}", [])):
        (tmp_path / "calls").write_text("")
        environment = {"HOME": str(tmp_path), "PATH": path}
        argv = ["bash", "-p", "-c", "\n".join([LIBRARY, *script, "our\\ engine"])]
        done = subprocess.run(argv, env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert (done.stdout, (tmp_path / "calls").read_text().splitlines()) == ("started", calls)
    assert not (tmp_path / "pwned").exists()
    assert load_modules(Engine("apptainer", "our engine", "1.4.1"), ()) == []


def test_an_engine_that_does_not_start(programs: Path) -> None:
    answer(programs, "apptainer", error="libseccomp.so.2: cannot open shared object file\n", code=127)
    with pytest.raises(
        EngineError, match=r"apptainer does not work here: .*libseccomp.so.2: cannot open shared object"
    ):
        find_engine()


def test_the_last_error_of_singularity() -> None:
    """Recorded with SingularityCE 4.5.1, with `allow kernel squashfs = no`."""
    reason = "container creation failed: while setting overlay session layout: squashfs image mounts are not authorized"
    assert apptainer.last_error(f"INFO:    Mounting image with FUSE.\nFATAL:   {reason}\n") == reason


HOSTILE = {
    "APPTAINER_BIND": "/etc:/data",
    "APPTAINER_NV": "1",
    "APPTAINERENV_LEAK": "x",
    "SINGULARITY_BINDPATH": "/etc:/data",
    "SINGULARITYENV_LEAK": "x",
    "LD_LIBRARY_PATH": "/host/lib",
    "LD_PRELOAD": "",
    "BASH_ENV": "/dev/null",
    "ENV": "/dev/null",
}


def test_a_clean_environment_keeps_only_what_does_not_change_containers() -> None:
    assert apptainer.clean_environ({**HOSTILE, "PATH": "/bin", "HOME": "/root"}) == {"PATH": "/bin", "HOME": "/root"}


def environment_of_engine(folder: Path, lines: list[str], **environment: str) -> dict[str, str]:
    """What an engine gets that is started after these lines of a script."""
    dump = write_program(
        folder / "dump", "#!/usr/bin/env python3\nimport json, os; print(json.dumps(dict(os.environ)))"
    )
    lines = [LIBRARY, *lines, f'exec env "${{ct_without[@]}}" {dump}']
    argv = ["/bin/bash", "-p", "-c", "\n".join(lines)]
    done = subprocess.run(argv, env={"PATH": SYSTEM, **environment}, capture_output=True, text=True, check=True)
    seen: dict[str, str] = json.loads(done.stdout)
    return {name: value for name, value in seen.items() if name not in ("PATH", "PWD", "SHLVL", "_", "LC_CTYPE")}


def test_the_engines_name_decides_how_variables_pass(tmp_path: Path) -> None:
    old = Engine("singularity", "/usr/bin/singularity", "3.8.7")
    lines = apptainer.container_environment(old, {"A": "it's $HOME"}, ["RANK", "UNSET"], ["SLURM_"])
    seen = environment_of_engine(tmp_path, lines, RANK="3", SLURM_PROCID="4", SLURMD="5")
    assert seen == {
        "RANK": "3",
        "SLURM_PROCID": "4",
        "SLURMD": "5",
        "SINGULARITYENV_A": "it's $HOME",
        "SINGULARITYENV_RANK": "3",
        "SINGULARITYENV_SLURM_PROCID": "4",
    }


def test_nothing_of_a_hostile_shell_reaches_the_engine(tmp_path: Path) -> None:
    lines = apptainer.container_environment(ENGINE, {"A": "1"}, ["RANK"], [])
    assert environment_of_engine(tmp_path, lines, **HOSTILE) == {"APPTAINERENV_A": "1"}


def test_what_the_user_passes_by_name_is_the_callers_value(tmp_path: Path) -> None:
    lines = apptainer.container_environment(ENGINE, {}, ["LD_LIBRARY_PATH", "LC_ALL"], [])
    seen = environment_of_engine(tmp_path, lines, LD_LIBRARY_PATH="/mine", LC_ALL="C.UTF-8")
    assert seen.items() >= {"APPTAINERENV_LD_LIBRARY_PATH": "/mine", "APPTAINERENV_LC_ALL": "C.UTF-8"}.items()
    assert "LD_LIBRARY_PATH" not in seen


def test_a_fixed_value_wins_over_a_passed_one(tmp_path: Path) -> None:
    lines = apptainer.container_environment(ENGINE, {"OMP_NUM_THREADS": "7"}, ["OMP_NUM_THREADS"], [])
    assert environment_of_engine(tmp_path, lines, OMP_NUM_THREADS="1")["APPTAINERENV_OMP_NUM_THREADS"] == "7"


def test_an_image_that_nobody_trusts_shares_nothing_with_the_host() -> None:
    argv = apptainer.isolated_exec_argv(Engine("singularity", "/usr/bin/singularity", "3.9.7"), as_root=False)
    assert argv[1:] == [
        *("--quiet", "exec", "--cleanenv", "--no-mount", "cwd"),
        *("--containall", "--net", "--network", "none"),
    ]


def test_a_pull_bypasses_the_cache_of_the_engine() -> None:
    argv = apptainer.pull_argv(ENGINE, "oras://r.example/x:1", Path("/cache/x.sif"))
    assert argv == ["/usr/bin/apptainer", "pull", "--disable-cache", "/cache/x.sif", "oras://r.example/x:1"]


@pytest.mark.parametrize(
    ("cuda", "rocm", "options"),
    [(False, False, []), (True, False, ["--nv"]), (False, True, ["--rocm"]), (True, True, ["--nv", "--rocm"])],
)
def test_driver_libraries_of_the_gpus_that_the_image_is_for(cuda: bool, rocm: bool, options: list[str]) -> None:
    argv = apptainer.exec_argv(ENGINE, cuda=cuda, rocm=rocm)
    assert [option for option in argv if option in ("--nv", "--rocm")] == options


def test_a_site_whose_engine_starts_nothing_without_fakeroot() -> None:
    assert "--fakeroot" not in apptainer.exec_argv(ENGINE)
    assert "--fakeroot" in apptainer.exec_argv(dataclasses.replace(ENGINE, fakeroot=True))


def test_libraries_of_the_node(tmp_path: Path) -> None:
    """Those that exist; what is missing is named, and starts the container all the same."""
    for name in ("libcxi.so.1", "libjson-c.so.3", "libjson-c.so.5"):
        (tmp_path / name).touch()
    patterns = [f"{tmp_path}/{name}" for name in ("libcxi.so.1", "libjson-c.so.*", "libnl-3.so.200")]
    lines = [LIBRARY, "node=n7 ct_home=/h launch=(exec)", quote_argv(["add_host_libraries", *patterns])]
    lines += ["enter /home/ctrain /i", """printf '%s\\n' "${launch[@]}" """]
    done = subprocess.run(["/bin/bash", "-p", "-uc", "\n".join(lines)], capture_output=True, text=True, check=True)
    names = ",".join(f"{tmp_path}/{name}" for name in ("libcxi.so.1", "libjson-c.so.3", "libjson-c.so.5"))
    assert done.stdout.splitlines() == ["exec", "--containlibs", names, "--home", "/h:/home/ctrain", "/i"]
    assert done.stderr == f"ctrain: host library {tmp_path}/libnl-3.so.200 not found on n7\n"
