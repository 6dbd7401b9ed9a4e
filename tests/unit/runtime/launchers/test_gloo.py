"""The part of launcher gloo that runs on the host. Real ranks of Horovod: tests/integration/test_launchers.py."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrain_runtime import payload
from ctrain_runtime.launchers import gloo
from samples.programs import SYSTEM, write_program
from samples.scripts import Scripts, slurm_task

# In the place of python3, and of the server: says how it was called, and starts the program.
SERVER = '#!/bin/bash\n[[ $1 == *.py ]] || exec /usr/bin/python3 "$@"\necho "server ${1##*/} $2 $3 $4"\nexec "${@:5}"\n'
SHOW = "env | grep ^HOROVOD | sort"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_the_first_rank_runs_below_the_server(scripts: Scripts) -> None:
    write_program(scripts.bin / "python3", SERVER)
    plan = scripts.plan("sh", "-c", SHOW, launcher="gloo", nodes=2, ranks_per_node=2)
    assert scripts.execute(plan, **slurm_task(rank=0, size=4, per_node=2)) == 0
    port = scripts.log().split()[2]
    assert 61000 <= int(port) < 65536
    assert f"server rendezvous.py {port} 2 2\n" in scripts.log()
    assert f"HOROVOD_GLOO_RENDEZVOUS_PORT={port}\n" in scripts.log()
    assert "RendezvousHTTPServer" in (scripts.run / "rendezvous.py").read_text()


def test_other_ranks_wait_for_it_and_are_numbered_by_node(scripts: Scripts, listener: socket.socket) -> None:
    master = listener.getsockname()[1] + 2268
    plan = scripts.plan("sh", "-c", SHOW, launcher="gloo", nodes=2, ranks_per_node=2)
    scripts.create(plan)
    library, script = scripts.run / "ctrain.bash", scripts.run / "task.sh"
    usual = "61000 + (MASTER_PORT - 61000 + 2268) % 4536"
    library.write_text(library.read_text().replace(usual, "MASTER_PORT - 2268"))
    meet = f"MASTER_ADDR=127.0.0.1 MASTER_PORT={master}\nexport RANK="
    script.write_text(script.read_text().replace("export RANK=", meet))
    assert scripts.start("task.sh", **slurm_task(rank=3, size=4, per_node=2)).wait(30) == 0
    assert scripts.log(3).splitlines() == [
        "HOROVOD_CONTROLLER=gloo",
        "HOROVOD_CPU_OPERATIONS=gloo",
        "HOROVOD_CROSS_RANK=1",
        "HOROVOD_CROSS_SIZE=2",
        "HOROVOD_GLOO_IFACE=lo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR=127.0.0.1",
        f"HOROVOD_GLOO_RENDEZVOUS_PORT={master - 2268}",
        "HOROVOD_GLOO_TIMEOUT_SECONDS=300",
        "HOROVOD_HOSTNAME=node1",
        "HOROVOD_LOCAL_RANK=1",
        "HOROVOD_LOCAL_SIZE=2",
        "HOROVOD_RANK=3",
        "HOROVOD_SIZE=4",
    ]


def test_variables_of_the_user_win(scripts: Scripts) -> None:
    write_program(scripts.bin / "python3", SERVER)
    own = {"HOROVOD_GLOO_IFACE": "ib0", "HOROVOD_GLOO_TIMEOUT_SECONDS": "30"}
    plan = scripts.plan("sh", "-c", SHOW, launcher="gloo", env=own)
    assert scripts.execute(plan, **slurm_task()) == 0
    assert "HOROVOD_GLOO_IFACE=ib0\n" in scripts.log()
    assert "HOROVOD_GLOO_TIMEOUT_SECONDS=30\n" in scripts.log()


def test_a_server_that_never_answers(scripts: Scripts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gloo, "JOIN_TIMEOUT_SECONDS", 1)
    plan = scripts.plan("true", launcher="gloo", nodes=2, ranks_per_node=1)
    assert scripts.execute(plan, **slurm_task(rank=1, size=2, per_node=1, hosts="no-such-host.invalid")) == 72
    assert scripts.log(1) == "ctrain: cannot connect to the server of the first rank\n"
    assert [event["what"] for event in scripts.node_events(1)] == ["started", "refused", "ended"]


def test_a_first_rank_that_has_ended_is_not_waited_for(scripts: Scripts) -> None:
    plan = scripts.plan("echo", "done", launcher="gloo", nodes=2, ranks_per_node=1)
    scripts.create(plan)
    (scripts.run / "nodes" / "0.jsonl").write_text('{"time": 1, "what": "ended", "rank": 0, "code": 0}\n')
    task = slurm_task(rank=1, size=2, per_node=1, hosts="no-such-host.invalid")
    assert scripts.start("task.sh", **task).wait(30) == 0
    assert scripts.log(1) == "done\n"


@pytest.mark.parametrize(("attempt", "code"), [(0, 72), (1, 0)])
def test_a_first_rank_that_has_ended_in_an_earlier_attempt_is(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch, attempt: int, code: int
) -> None:
    monkeypatch.setattr(gloo, "JOIN_TIMEOUT_SECONDS", 1)
    plan = scripts.plan("echo", "done", launcher="gloo", nodes=2, ranks_per_node=1, restarts=2)
    scripts.create(plan)
    event = f'{{"time": 1, "what": "ended", "attempt": {attempt}, "rank": 0, "code": 0}}\n'
    (scripts.run / "nodes" / "0.jsonl").write_text(event)
    task = slurm_task(rank=1, size=2, per_node=1, hosts="no-such-host.invalid")
    assert scripts.start("task.sh", CTRAIN_ATTEMPT="1", **task).wait(30) == code


ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
{rows}"""


@pytest.mark.parametrize(
    ("address", "rows", "interface"),
    [
        ("10.213.77.11", ["eth0 00000000 01D50AC0 3 0 0 0 00000000", "ib0 004DD50A 0 1 0 0 0 00FFFFFF"], "ib0"),
        ("10.213.77.11", ["ib0 004DD50A 0 1 0 0 0 00FFFFFF", "eth0 00000000 01D50AC0 3 0 0 0 00000000"], "ib0"),
        ("10.213.78.11", ["eth0 00000000 01D50AC0 3 0 0 0 00000000", "ib0 004DD50A 0 1 0 0 0 00FFFFFF"], "eth0"),
        ("10.213.77.11", ["a 0000D50A 0 1 0 0 0 0000FFFF", "b 0040D50A 0 1 0 0 0 00C0FFFF"], "b"),  # /16, /18
        ("127.0.1.1", ["eth0 00000000 01D50AC0 3 0 0 0 00000000"], "eth0"),  # as Debian calls itself
        ("10.0.0.1", [], ""),
        ("", ["eth0 00000000 01D50AC0 3 0 0 0 00000000"], ""),  # a name without an address
    ],
)
def test_the_interface_of_the_most_specific_route(
    address: str, rows: list[str], interface: str, tmp_path: Path
) -> None:
    table = "".join("\t".join(row.split()) + "\n" for row in rows)
    (tmp_path / "route").write_text(ROUTES.format(rows=table))
    known = f"echo '{address}      STREAM node01'; echo '10.9.9.9  DGRAM'" if address else "exit 2"
    write_program(tmp_path / "getent", f"#!/bin/bash\n[ \"$*\" = 'ahostsv4 node01' ] && {{ {known}; }}\n")
    text = payload.text("ctrain.bash").replace("/proc/net/route", str(tmp_path / "route"))
    script = f"run=/\n{text}\ninterface_to node01"
    environment = {"PATH": f"{tmp_path}:{SYSTEM}"}
    shown = subprocess.check_output(["/bin/bash", "-c", script], env=environment, text=True)
    assert shown.removesuffix("\n") == interface
