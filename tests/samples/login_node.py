"""A login node that is this machine, behind a stand-in for ssh."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from samples.programs import SYSTEM, write_program
from samples.runs import CTRAIN, Bench

HOST = "kim@login"
SSH = """\
#!/bin/bash
# ssh [OPTIONS] -- HOST [COMMAND]: runs it on this machine, in another home, as long as there is a connection.
cd {state} || exit
options=()
while [[ $1 != -- ]]; do options+=("$1") && shift; done
printf '%s: %s\\n' "$2" "${{options[*]}}" >>calls
case " ${{options[*]}} " in
    *' -O check '*) [[ -e master ]] || exit 255; exit 0 ;;
    *' -O exit '*) rm -f master && exit ;;
    *' -M '*) [[ ! -s refusal ]] || {{ cat refusal >&2 && exit 255; }}; touch master && exit ;;
esac
trap 'rm -f {state}/master; echo "client_loop: send disconnect: Broken pipe" >&2; exit 255' USR1
cd {home} || exit
env -i HOME={home} PATH={path} /bin/sh -c "$3" <&0 &
wait "$!"
"""


class LoginNode:
    """`bench` is what its user has there. `laptop` is where ctrain is called, with a home of its own."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.state, self.laptop = bench.folder / "ssh", bench.folder / "laptop"
        for folder in (self.state, self.laptop / "bin", bench.folder / "ctrain/bin"):
            folder.mkdir(parents=True)
        there = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in bench.environment.items())
        there += f'exec {shlex.quote(sys.executable)} -c {shlex.quote(CTRAIN)} "$@"\n'
        write_program(bench.folder / "ctrain/bin/ctrain", f"#!/bin/bash\n{there}")
        places = {"state": self.state, "home": bench.folder, "path": SYSTEM}
        write_program(
            self.laptop / "bin/ssh", SSH.format(**{name: shlex.quote(str(at)) for name, at in places.items()})
        )
        self.environment = {
            **bench.environment,
            "HOME": str(bench.folder / "home of the laptop"),
            "PATH": f"{self.laptop / 'bin'}:{SYSTEM}",
        }

    def job(self, program: str, name: str = "my train") -> Path:
        """A directory on the laptop with a job.yaml whose program is bash."""
        folder = self.laptop / name
        folder.mkdir()
        (folder / "job.yaml").write_text(f"image: {self.bench.image}\nlauncher: env\ncommand: [bash, train.sh]\n")
        (folder / "train.sh").write_text(program)
        return folder

    def ctrain(self, *arguments: str, cwd: str = ".", **variables: str) -> subprocess.Popen[str]:
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environment = {**self.environment, **variables}
        where = self.laptop / cwd
        return subprocess.Popen(self.bench.argv(*arguments), cwd=where, env=environment, text=True, **streams)

    def words(self) -> tuple[str, ...]:
        """The options by which a verb acts on runs there."""
        return "--on", HOST, "--site", str(self.bench.folder / "toy.yaml"), "--runs", str(self.bench.runs)
