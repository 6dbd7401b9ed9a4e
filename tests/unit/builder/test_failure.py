"""Which command failed and why, by output as sh, pip, make, gcc and apt print it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from ctrain_builder.layers import failure
from ctrain_builder.layers.container import CommandFailed, Container
from ctrain_builder.layers.failure import SectionFailed
from ctrain_runtime.engines.apptainer import Engine

ENGINE = "$ /usr/bin/apptainer --quiet exec image /bin/sh /mnt/inside.sh /bin/sh -ex /mnt/post\n"
PIP_BUILD = """\
+ pip install horovod
Collecting horovod
  error: subprocess-exited-with-error
  x Building wheel for horovod (pyproject.toml) did not run successfully.
      mpi_context.cc:17:10: fatal error: mpi.h: No such file or directory
      compilation terminated.
      make[2]: *** [horovod/CMakeFiles/x.make:76: mpi_context.cc.o] Error 1
      subprocess.CalledProcessError: Command '['cmake']' returned non-zero exit status 2.
  note: This error originates from a subprocess, and is likely not a problem with pip.
  ERROR: Failed building wheel for horovod
ERROR: Failed to build installable wheels for some pyproject.toml based projects (horovod)

[notice] A new release of pip is available: 23.0.1 -> 25.3
[notice] To update, run: python3 -m pip install --upgrade pip
"""
PIP_NAME = """\
+ pip install nosuch
ERROR: Could not find a version that satisfies the requirement nosuch (from versions: none)
ERROR: No matching distribution found for nosuch
[notice] To update, run: pip install --upgrade pip
"""
APT = "+ apt-get install -y nosuch\nReading package lists...\nE: Unable to locate package nosuch\n"
LINK = "+ make -j 8\n/usr/bin/ld: a.o: undefined reference to `MPI_Init'\ncollect2: error: ld returned 1 exit status\n"
TRACEBACK = """\
+ python3 check.py
Traceback (most recent call last):
  File "check.py", line 1, in <module>
ModuleNotFoundError: No module named 'torch'
bye of a background job
"""


@pytest.mark.parametrize(
    ("output", "command", "cause"),
    [
        (PIP_BUILD, "pip install horovod", "mpi_context.cc:17:10: fatal error: mpi.h: No such file or directory"),
        (PIP_NAME, "pip install nosuch", "ERROR: No matching distribution found for nosuch"),
        (APT, "apt-get install -y nosuch", "E: Unable to locate package nosuch"),
        (LINK, "make -j 8", "/usr/bin/ld: a.o: undefined reference to `MPI_Init'"),
        (TRACEBACK, "python3 check.py", "ModuleNotFoundError: No module named 'torch'"),
        ("+ cd src\n+ make\nmake: *** [all] Error 2\n", "make", "make: *** [all] Error 2"),
        ("+ echo hello\nhello\n", "echo hello", "hello"),
        ("+ true\n+ false\n", "false", ""),
        ("cp: cannot stat '/mnt/files/x': No such file\n", "", "cp: cannot stat '/mnt/files/x': No such file"),
        ("--- a\n+++ b\n+ one\nthey differ\n", "", "they differ"),
        ("", "", ""),
    ],
)
def test_the_command_and_the_cause(tmp_path: Path, output: str, command: str, cause: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"{ENGINE}+ fatal error of an earlier command\n{ENGINE}{output}")
    found = failure.read(log)
    assert (found.command, found.cause) == (command, cause)
    assert list(found.lines) == [line for line in output.splitlines() if line]


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo start; ls /nowhere; echo end", r" at `ls /nowhere`: ls: .*/nowhere.*: No such file or directory"),
        ("echo no CUDA here; exit 3", " at `exit 3`: no CUDA here"),
        ("x=$(cat /nowhere); echo $x", " at `cat /nowhere`: cat: /nowhere: No such file or directory"),
        ("true; set +x; cat /nowhere", " at `true`: cat: /nowhere: No such file or directory"),
        ("python3 -c 'import none' 2>&1; true", " at `python3 -c .*`: ModuleNotFoundError: No module named 'none'"),
        (f"test {'x' * 300} = y", rf" at `test x{{{80 - 8}}}\.\.\.`"),
    ],
)
def test_by_what_sh_really_traces(tmp_path: Path, script: str, told: str) -> None:
    log = tmp_path / "log"
    done = subprocess.run(
        ["/bin/sh", "-exc", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    log.write_text(ENGINE + done.stdout)
    assert re.fullmatch(told, str(failure.read(log)))


def test_what_is_run_after_the_failure_hides_no_cause(tmp_path: Path) -> None:
    """An ordinary user's builder changes the owner of what a failed %post has left."""
    container = Container(Engine("apptainer", "/usr/bin/apptainer", "1.4.5"), tmp_path, lambda: None, root=False)
    log = tmp_path / "log"
    with pytest.raises(CommandFailed) as caught:
        container.run(["/bin/sh", "-exc", "cat /nowhere"], log)
    section = SectionFailed("post", caught.value)
    container.run(["/bin/sh", "-c", "echo later"], log)
    assert str(section.failure) == " at `cat /nowhere`: cat: /nowhere: No such file or directory"
    assert section.code == 1 and section.failure.log == log
